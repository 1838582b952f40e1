"""The controller of `muster fabric run` is killed at five points: the same call goes on, and the nodes work again.

Only here: what it leaves is on real hosts, and the holds are in a real ledger with a real admitter.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_burnin.fleet.fabric.keep import WHY
from gpu_burnin.fleet.waves import leftovers
from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE

from .fabric_site import MOST_S, Site, ended
from .fleet import Fleet, wait_until

pytestmark = pytest.mark.soak
NODES = ("gpu-1", "gpu-2")
KUBECONFIG = "{}/kubeconfig/admin.kubeconfig"
# Of a step on the way, that the process is killed there. What comes before it is as it is without.
_HOOK = """
import os, signal
from gpu_burnin.fleet.fabric import execute
from gpu_burnin.fleet.fabric.folder import RoundFolder
"""
AFTER_VIEWS = "RoundFolder.end = lambda self: os.kill(os.getpid(), signal.SIGKILL)"
BETWEEN_ROUNDS = """
step = execute.Executor.__call__
execute.Executor.__call__ = lambda self, made: step(self, made) if made.number == 1 else os.kill(os.getpid(), 9)
"""


def rounds(site: Site) -> Path:
    return site.folder / "state/fabric/rounds/round-0001"


def files(site: Site, name: str) -> int:
    folder = rounds(site) / name
    return len(list(folder.iterdir())) if folder.exists() else 0


def begun(site: Site, name: str) -> int:
    """How many tests a host has begun."""
    return site.fleet.must(name, f"journalctl -q -o cat -u {site.unit}").count("Started")


def at_once(probe: Callable[[], bool]) -> None:
    """Wait for what lasts a second and less."""
    end_s = time.monotonic() + MOST_S
    while not probe():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def is_working(fleet: Fleet, node: str) -> bool:
    entry = fleet.get("nodeadmissions", node)
    return entry["status"]["state"] == "ready" and "hold" not in entry["spec"]


@pytest.mark.parametrize(
    ("point", "most_again"),
    [("before the offer", 0), ("after the offer", 1), ("in the test", 1), ("after the views", 1),
     ("between rounds", 0)],
)  # fmt: skip
def test_a_controller_that_is_killed_goes_on_with_the_same_call(
    fleet: Fleet, tmp_path: Path, point: str, most_again: int
) -> None:
    """A round that came to its end is not run again: each node begins two tests, and that of the round cut off."""
    site = Site(fleet, tmp_path, {"leaf-1": NODES})
    arguments = ("--through", "nodes", "--seconds", "6", "--kubeconfig", KUBECONFIG.format(fleet.state))
    wait_until("both work", lambda: all(is_working(fleet, node) for node in NODES), timeout_s=120)
    patches = {"after the views": [_HOOK + AFTER_VIEWS], "between rounds": [_HOOK + BETWEEN_ROUNDS]}
    process = site.start(*arguments, patches=patches.get(point, ()))
    reached = {
        "before the offer": lambda: files(site, "present") == len(NODES),
        "after the offer": lambda: files(site, "offers") == 1,
        "in the test": lambda: all(site.joined(node) for node in NODES),
    }
    if point in reached:
        at_once(reached[point])
        process.kill()
    process.communicate(timeout=MOST_S)
    assert process.returncode == -9
    kept = 1 if point == "between rounds" else 0
    assert site.rounds() == kept
    for node in NODES:
        hold = fleet.get("nodeadmissions", node)["spec"]["hold"]
        assert hold["why"].startswith(WHY) and hold["until"], "it would end by itself"
    done = ended(site.start(*arguments))
    assert (done.rc, done.claims, site.rounds()) == (0, [], 2), done.err
    for node in NODES:
        again = begun(site, node) - 2
        assert 0 <= again <= most_again, (node, again)
    assert ("round 1 of" in done.err) is (kept == 0), done.err
    site.nothing_is_left()
    wait_until("both are given back", lambda: all(is_working(fleet, node) for node in NODES), timeout_s=120)


def test_where_ansible_is_killed_tests_are_ended_before_the_nodes_are_given_back(fleet: Fleet, tmp_path: Path) -> None:
    """The controller lives. Its nodes could get work while the test of half a minute still runs on them."""
    site = Site(fleet, tmp_path, {"leaf-1": NODES})
    wait_until("both work", lambda: all(is_working(fleet, node) for node in NODES), timeout_s=120)
    process = site.start("--through", "nodes", "--seconds", "60", "--kubeconfig", KUBECONFIG.format(fleet.state))
    wait_until("both have joined", lambda: all(site.joined(node) for node in NODES), timeout_s=MOST_S)
    assert leftovers.end(FOLDER_VARIABLE, str(rounds(site))) > 0
    _, err = process.communicate(timeout=MOST_S)
    site.nothing_is_left()
    assert process.returncode == 2 and "call this again: it goes on with this round" in err, err
    assert "tests that may still run on gpu-1, gpu-2 are ended" in err.replace(" and ", ", "), err
    wait_until("both are given back", lambda: all(is_working(fleet, node) for node in NODES), timeout_s=120)
