"""`muster fabric run` on the lab's hosts with real faults: each is named, with proven partners, and no other node.

Only here: the collectives go from host to host, and a host sends a wrong byte, has a slow link, or falls silent.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_burnin.fabric.model import Found
from tests.lab import hosts

from .fabric_site import HOSTS, MOST_S, Site, ended, program
from .fleet import Fleet, wait_until

pytestmark = pytest.mark.soak
FOUR = HOSTS[4:]
SICK = "mon-1"
SPOILED = "/usr/local/bin/gpu-burnin-spoiled"
# One byte of what this host sends to each other one is changed on its way out.
WRONG_BYTE = """
from gpu_burnin.checks import fabric
from gpu_burnin.checks.fabric import Fault
well = fabric.run
def run(meeting):
    return well(meeting, [Fault("wrong_byte", to, "all_reduce") for to in meeting.others])
fabric.run = run
"""


def one_leaf(fleet: Fleet, folder: Path) -> Site:
    return Site(fleet, folder, {"leaf-1": FOUR})


def only_the_sick(site: Site, found: Found) -> None:
    """The run names the sick host by tests with three proven partners, and nobody else."""
    done = site.finish("--without-cluster", "--through", "nodes", "--seconds", "4")
    assert done.rc == 1, done.err
    assert done.claims == [(f"node {SICK}", True, [SICK])], done.report
    [claim] = done.report["claims"]
    assert claim["found"] == found and "failed 3 of 3 tests with proven partners" in claim["evidence"][0], claim
    site.nothing_is_left()


def test_sound_hosts_are_all_proven(fleet: Fleet, tmp_path: Path) -> None:
    """What is named below is named for the fault alone."""
    site = one_leaf(fleet, tmp_path)
    done = site.finish("--without-cluster", "--through", "nodes", "--seconds", "4")
    assert (done.rc, done.claims) == (0, []), done.err
    assert site.rounds() == 2
    site.nothing_is_left()


def test_a_host_that_sends_a_wrong_byte_is_named(fleet: Fleet, tmp_path: Path) -> None:
    site = one_leaf(fleet, tmp_path)
    program(fleet, SICK, SPOILED, WRONG_BYTE)
    site.variables[SICK] = {"fabric_program": SPOILED}
    only_the_sick(site, Found.WRONG)


def test_a_host_whose_test_is_killed_each_time_is_silent_and_named(fleet: Fleet, tmp_path: Path) -> None:
    """By kill -9 of the process itself, in the middle of a ring."""
    site = one_leaf(fleet, tmp_path)
    program(fleet, SICK, SPOILED, WRONG_BYTE.replace('"wrong_byte", to, "all_reduce"', '"dead_rank"'))
    site.variables[SICK] = {"fabric_program": SPOILED}
    only_the_sick(site, Found.SILENT)


def test_a_host_that_is_booted_in_its_test_makes_it_inconclusive(fleet: Fleet, tmp_path: Path) -> None:
    """Once: the test comes again, and nobody is named."""
    site = one_leaf(fleet, tmp_path)
    run = site.start("--without-cluster", "--through", "nodes", "--seconds", "20")
    wait_until("the sick host has joined", lambda: site.joined(SICK), timeout_s=MOST_S)
    hosts.reboot(fleet.lab, SICK)
    done = ended(run)
    assert (done.rc, done.claims) == (0, []), done.err
    [first] = [one for one in site.run_file().rounds[0].results if one.rebooted]
    assert first.rebooted == (SICK,)
    assert site.rounds() == 3, "the test comes again"
    site.nothing_is_left()


def test_a_host_that_is_paused_is_silent_and_named(fleet: Fleet, tmp_path: Path) -> None:
    """Its kernel takes connections and nothing answers: each task for it is given up by its time."""
    site = one_leaf(fleet, tmp_path)
    run = site.start("--without-cluster", "--through", "nodes", "--seconds", "10")
    container = f"muster-{fleet.lab.name}-{SICK}"
    wait_until("the sick host has joined", lambda: site.joined(SICK), timeout_s=MOST_S)
    subprocess.run(["podman", "pause", container], check=True)
    try:
        done = ended(run)
    finally:
        subprocess.run(["podman", "unpause", container], check=True)
    assert done.rc == 1, done.err
    assert done.claims == [(f"node {SICK}", True, [SICK])], done.report
    assert done.report["claims"][0]["found"] == Found.SILENT
