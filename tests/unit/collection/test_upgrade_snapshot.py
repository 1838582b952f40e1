"""playbooks/upgrade.yml makes a snapshot of both etcd clusters before it changes the first member or server.

The real plays from the judgement on, with hosts that are this machine. What changes a host leaves a trace instead; a
snapshot is made by the tasks of the role, with a stand-in for its program.

Only here: the order of snapshot and first change in the real plays, and that none is changed without the snapshot.
"""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
Tasks = list[dict[str, Any]]
OLD, NEW = "1.36.1", "1.36.3"
MEMBERS = ("etcd-1", "etcd-2", "etcd-3", "events-1")
SNAPSHOTS = {f"snapshot {name}" for name in MEMBERS}
PROGRAM = """\
#!/bin/sh
echo "snapshot $2" >> trace
case "$2 {ends}" in
  "etcd-2 well"|"events-1 "*) echo "lab: made a snapshot" ;;
  "etcd-2 fails") echo "no snapshot of main: the second place failed" >&2; exit 1 ;;
  *) echo "lab: not this member's turn" ;;
esac
"""
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 9}

# Raw: a trace without a Python for each task and host; it writes none with --check, as a module.
TRACE = {"ansible.builtin.raw": "echo 'change {{ inventory_hostname }}' >> {{ playbook_dir }}/trace"}


def traced(tasks: Tasks) -> Tasks:
    """The tasks with a trace in the place of those that would touch a host."""
    found: Tasks = []
    for task in tasks:
        role = task.get("ansible.builtin.import_role", {})
        if "block" in task:
            found.append({"block": traced(task["block"]), "rescue": [{"ansible.builtin.fail": {"msg": "stopped"}}]})
        elif role.get("tasks_from") == "now":
            found += snapshot()
        elif found[-1:] != [TRACE]:
            # Of tasks that follow each other the first one tells when the host is changed.
            found.append(TRACE)
    return found


def snapshot() -> Tasks:
    text = (ROOT / "roles/etcd_backup/tasks/now.yml").read_text()
    tasks: Tasks = yaml.safe_load(text)
    (made,) = (task for task in tasks if "ansible.builtin.command" in task)
    assert made.pop("ansible.builtin.command")["argv"][1:] == ["--now"]
    made["ansible.builtin.raw"] = "cd {{ playbook_dir }} && ./etcd_backup --now {{ inventory_hostname }}"
    return tasks


def plays() -> list[dict[str, Any]]:
    """From the judgement on; an imported phase as its own play, with the variables of the import."""
    found = copy.deepcopy(yaml.safe_load((ROOT / "playbooks/upgrade.yml").read_text()))
    names = [play["name"] for play in found]
    first, last = (names.index(name) for name in ("Make a snapshot of each etcd cluster", "Remove the staging folders"))
    for number, play in enumerate(found[first:last], first):
        if path := play.get("ansible.builtin.import_playbook"):
            (phase,) = copy.deepcopy(yaml.safe_load((ROOT / "playbooks" / path).read_text()))
            found[number] = play = phase | {"vars": {**phase["vars"], **play["vars"]}}
            play.pop("vars_files")
        play.pop("roles", None)
        play["tasks"] = traced(play["tasks"])
    return list(found[first - 1 : last])


@pytest.fixture
def upgrade(tmp_path: Path, ansible_playbook: Playbook) -> Callable[..., tuple[bool, list[str], str]]:
    """Upgrades a fleet whose named programs are old: whether it ended well, its traces in order, what it said."""
    (tmp_path / "play.yml").write_text(json.dumps(plays()))

    def host(old: tuple[str, ...], *names: str, **more: Any) -> dict[str, Any]:
        runs = {
            name: {"running": OLD if name in old else NEW, "wanted": NEW, "current": name not in old} for name in names
        }
        if "etcd" in names:
            runs = {"etcd": {"running": "3.6.15" if "etcd" in old else "3.6.16", "wanted": "3.6.16"}}
            runs["etcd"]["current"] = "etcd" not in old
        found = {"programs": runs, "sick": "", "served": True, "leads": False, "room": "", "closed": False}
        return {"upgrade_found": found, **more}

    def run(
        *old: str, ends: str = "well", away: str = "", options: tuple[str, ...] = ()
    ) -> tuple[bool, list[str], str]:
        groups = {
            "etcd": {name: host(old, "etcd") for name in MEMBERS[:3]},
            "etcd_events": {"events-1": host(old, "etcd")},
            "kube_apiserver": {
                name: host(old, "kube-apiserver", "kube-controller-manager", "kube-scheduler")
                for name in ("api-1", "api-2")
            },
            "gpu_nodes": {"gpu-1": host(old, "kubelet", "kube-proxy")},
        }  # fmt: skip
        for hosts in groups.values():
            hosts.update({away: hosts[away] | AWAY} if away in hosts else {})
        role = {
            **yaml.safe_load((ROOT / "roles/etcd_backup/defaults/main.yml").read_text()),
            "__etcd_backup_wanted": True,
        }
        variables = {
            **role, "fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state"), "fleet_domain": "a.b",
            "part": "all",
        }  # fmt: skip
        children = {group: {"hosts": hosts} for group, hosts in groups.items()}
        (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": children, "vars": variables}}))
        program = tmp_path / "etcd_backup"
        program.write_text(PROGRAM.format(ends=ends))
        program.chmod(0o755)
        done = ansible_playbook("play.yml", *options, inventory="hosts.yml")
        trace = tmp_path / "trace"
        lines = trace.read_text().splitlines() if trace.exists() else []
        return done.returncode == 0, lines, " ".join((done.stdout + done.stderr).split())

    return run


Upgrade = Callable[..., tuple[bool, list[str], str]]


@pytest.mark.slow
@pytest.mark.parametrize(("old", "first"), [("etcd", "change etcd-1"), ("kube-apiserver", "change api-1")])
def test_both_clusters_are_safe_before_the_first_change(upgrade: Upgrade, old: str, first: str) -> None:
    well, lines, said = upgrade(old)
    assert well, said
    changes = [line for line in lines if line.startswith("change")]
    assert set(lines[: len(SNAPSHOTS)]) == SNAPSHOTS and lines[len(SNAPSHOTS)] == changes[0] == first
    assert len(lines) == len(SNAPSHOTS) + len(changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "why"),
    [
        # That each of the two alone ends a play with these words: test_one_after_the_other.py.
        ({"ends": "fails", "away": "etcd-1"}, ["no snapshot of main: the second place failed", "Connection refused"]),
        ({"ends": "nobody"}, ["No snapshot of main was made"]),
        ({"options": ("-e", '{"__etcd_backup_wanted": false}')}, ["the inventory names no second place for snapshots"]),
    ],
)
def test_without_a_snapshot_nothing_is_changed(upgrade: Upgrade, how: dict[str, Any], why: list[str]) -> None:
    well, lines, said = upgrade("etcd", "kube-apiserver", "kubelet", **how)
    assert not well and all(words in said for words in why), said
    assert [line for line in lines if line.startswith("change")] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "options", "changed"),
    [
        (("kubelet", "kube-proxy"), (), {"gpu-1"}),
        (("etcd",), ("-e", "snapshot=mine"), set(MEMBERS)),
        (("etcd",), ("--check",), set()),
    ],
)
def test_no_snapshot_where_none_is_needed(
    upgrade: Upgrade, old: tuple[str, ...], options: tuple[str, ...], changed: set[str]
) -> None:
    well, lines, said = upgrade(*old, options=options)
    assert well, said
    assert {line.removeprefix("change ") for line in lines} == changed
