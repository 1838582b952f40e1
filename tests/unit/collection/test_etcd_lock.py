"""muster.fleet.etcd_lock through the real ansible-playbook; and that each operation on a control plane takes it.

Only here: that all tasks of one run are one owner, and what the next run does with the lock of a dead or a living one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.roll import lock
from tests.support.site_plays import site_plays

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
MODULE = "muster.fleet.etcd_lock"
# A process of this machine that has ended: no boot had this id.
DEAD = lock.Lock("bob", "2026-11-22T17:00:00Z", lock.Owner(socket.gethostname(), "none", 40, 4), "restores etcd")
# This process is of no ansible-playbook, and lives as long as the test.
ALIVE = lock.Lock("anna", "2026-11-22T17:00:00Z", lock.owner(pid=os.getpid()), "restores etcd")
# Which clusters each operation locks, as the playbooks name them.
OPERATIONS = {
    "etcd_restore": {"{{ cluster }}"},
    "etcd_replace_member": {"{{ replace_cluster }}"},
    "rotate_certificates": {"main", "events"},
    "rotate_encryption_key": {"main"},
    "upgrade": {"main", "events"},
}


def locks_of(path: Path) -> list[tuple[str, set[str]]]:
    """Each task with the lock: its state, and the clusters."""
    found = []
    for play in yaml.safe_load(path.read_text()):
        for task in play.get("tasks", []):
            if MODULE in task:
                cluster = task[MODULE]["directory"].partition("etcd-lock-")[2]
                loop = task.get("loop", [])
                clusters = {"main", "events"} if "main" in str(loop) and cluster == "{{ item }}" else {cluster}
                found.append((task[MODULE].get("state", "taken"), clusters))
    return found


@pytest.mark.parametrize("name", OPERATIONS)
def test_each_operation_on_the_control_plane_takes_the_lock_first_and_gives_it_back(name: str) -> None:
    taken, *given_back = locks_of(ROOT / f"playbooks/{name}.yml")
    # What the certificates need besides is in site.yml, which is named after it.
    if name == "rotate_certificates":
        given_back += [one for one in locks_of(ROOT / "site.yml") if one[0] != "free"]
    # A shard of `muster roll` has a share: test_upgrade_play.py.
    assert (taken[0].removeprefix("{{ 'shared' if upgrade_shard else ").strip("'} "), taken[1]) == (
        "taken", OPERATIONS[name],
    )  # fmt: skip
    assert given_back == [("released", OPERATIONS[name])]


def test_no_other_playbook_changes_the_control_plane_of_a_running_fleet() -> None:
    # A phase is of upgrade.yml, and by itself of no host.
    others = {path.stem for path in ROOT.glob("playbooks/*.yml")} - set(OPERATIONS) - {"upgrade_phase"}
    assert others == {"admit", "burnin", "driver_upgrade", "etcd_backup", "fabric", "repair"}


def play(tmp_path: Path, *states: str) -> str:
    tasks: list[dict[str, Any]] = [
        {"name": state, MODULE: {"directory": str(tmp_path / "lock"), "what": "replaces certificates", "state": state}}
        for state in states
    ]
    tasks.insert(1, {"name": "Read the lock", "ansible.builtin.raw": f"cat {tmp_path}/lock/lock.json"})
    path = tmp_path / "play.yml"
    variables = {"ansible_python_interpreter": sys.executable}
    path.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": tasks}]))
    return str(path)


@pytest.mark.slow
def test_the_lock_of_a_killed_run_is_told_and_taken_over_and_given_back(
    tmp_path: Path, ansible_playbook: Playbook
) -> None:
    (tmp_path / "lock").mkdir()
    lock.write(tmp_path / "lock", DEAD)
    foretold = ansible_playbook(play(tmp_path, "taken"), "--check")
    done = ansible_playbook(play(tmp_path, "taken", "released"), "-vv")
    for said in (" ".join((run.stdout + run.stderr).split()) for run in (foretold, done)):
        assert (
            f"bob restores etcd since {DEAD.since} (process 40 on {DEAD.owner.machine}), and that run is dead" in said
        )
        assert "this run takes its lock over" in said
    assert done.returncode == 0, done.stdout
    assert "replaces certificates" in done.stdout
    assert lock.read(tmp_path / "lock") is None
    assert "is dead" not in ansible_playbook(play(tmp_path, "taken", "released")).stdout


def lock_tasks(path: Path) -> list[dict[str, Any]]:
    """Its real tasks with the lock, in their order."""
    return [task for part in yaml.safe_load(path.read_text()) for task in part.get("tasks", []) if MODULE in task]


def write_play(path: Path, tasks: list[dict[str, Any]], state: Path) -> None:
    variables = {"ansible_python_interpreter": sys.executable, "fleet_state_dir": str(state)}
    play = {"hosts": "localhost", "gather_facts": False, "tags": ["preflight"], "vars": variables, "tasks": tasks}
    path.write_text(json.dumps([play]))


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The fleet's state; beside it `rotate.yml` and `site.yml` with the real tasks of both playbooks about the lock."""
    path = tmp_path / "state"
    look = {"ansible.builtin.raw": f"ls {path}/etcd-lock-main/lock.json {path}/etcd-lock-events/lock.json"}
    write_play(tmp_path / "rotate.yml", [*lock_tasks(ROOT / "playbooks/rotate_certificates.yml"), look], path)
    # Between them site.yml builds the fleet.
    free, released = lock_tasks(ROOT / "site.yml")
    write_play(tmp_path / "site.yml", [free, {"ansible.builtin.debug": {"msg": "builds the fleet"}}, released], path)
    return path


@pytest.mark.slow
def test_the_lock_of_a_rotation_of_certificates_is_given_back_by_the_site_yml_named_after_it(
    state: Path, ansible_playbook: Playbook
) -> None:
    """In one run of ansible-playbook; and site.yml alone goes on beside a dead run's lock, and gives back nothing."""
    both = ansible_playbook("rotate.yml", "site.yml")
    assert both.returncode == 0 and "builds the fleet" in both.stdout, both.stdout + both.stderr
    assert not list(state.glob("*/lock.json"))
    lock.write(state / "etcd-lock-main", DEAD)
    alone = ansible_playbook("site.yml")
    assert alone.returncode == 0 and "builds the fleet" in alone.stdout, alone.stdout + alone.stderr
    assert lock.read(state / "etcd-lock-main") == DEAD


@pytest.mark.slow
@pytest.mark.parametrize("cluster", ["main", "events"])
def test_site_yml_does_not_begin_beside_an_operation_that_goes_on(
    state: Path, ansible_playbook: Playbook, cluster: str
) -> None:
    """It would start what that has stopped. What only looks is told of it, and goes on."""
    (state / f"etcd-lock-{cluster}").mkdir(parents=True)
    lock.write(state / f"etcd-lock-{cluster}", ALIVE)
    told = f"anna restores etcd since {ALIVE.since} (process {os.getpid()} on {socket.gethostname()}); wait until"
    for options, allowed in (((), False), (("--check",), True), (("--tags", "preflight"), True)):
        done = ansible_playbook("site.yml", *options)
        said = " ".join((done.stdout + done.stderr).split())
        assert told in said and ("builds the fleet" in said) == allowed == (done.returncode == 0), said
        assert ("Nothing was done" in said) != allowed
    assert lock.read(state / f"etcd-lock-{cluster}") == ALIVE


def test_site_yml_looks_for_such_an_operation_first() -> None:
    first = site_plays()[0]
    assert lock_tasks(ROOT / "site.yml")[0] in first["tasks"]


@pytest.mark.slow
def test_while_another_operation_runs_no_certificate_is_replaced(tmp_path: Path, ansible_playbook: Playbook) -> None:
    other = lock.Lock("anna", "2026-11-22T17:00:00Z", lock.Owner("elsewhere", "1b4e", 40, 400), "upgrades etcd")
    state = tmp_path / "state"
    (state / "etcd-lock-events").mkdir(parents=True)
    lock.write(state / "etcd-lock-events", other)
    inventory = tmp_path / "hosts.yml"
    variables = {"fleet_name": "lab", "fleet_state_dir": str(state)}
    inventory.write_text(yaml.safe_dump({"all": {"hosts": {"api-1": {}}, "vars": variables}}))
    done = ansible_playbook(
        str(ROOT / "playbooks/rotate_certificates.yml"), "-e", "step=leaves", inventory=str(inventory)
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0, said
    assert "anna upgrades etcd since 2026-11-22T17:00:00Z (process 40 on elsewhere" in said
    assert f"remove {state}/etcd-lock-events/lock.json" in said
    assert lock.read(state / "etcd-lock-events") == other and not (state / "pki").exists()
