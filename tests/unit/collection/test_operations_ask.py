"""What the operations on a running control plane ask for before they do anything.

Each wrong call is a host in the controller's place, in the first plays of the real playbooks, so that one run of
Ansible has them all: it goes on with the next one, and tells why each was refused. That a refusal ends the playbook
shows one run of each playbook as it is.

Only here: that the real playbooks refuse each wrong call, leave nothing, and end there.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.roll import lock
from tests.support.etcd_snapshot import lab_snapshot

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
# The variables of each call, by its name, and these by the group that hears the plays of its playbook.
Calls = Mapping[str, Mapping[str, Mapping[str, str]]]
Said = Callable[..., dict[str, str]]
LOCKED = lock.Lock("anna", "2026-11-22T17:00:00Z", lock.Owner("elsewhere", "1b4e", 40, 400), "restores etcd")
BUSY = "anna restores etcd since 2026-11-22T17:00:00Z (process 40 on elsewhere"
# The plays that ask, and who is asked: a call of `confirm` is right as far as the first of them goes.
ASKING = (
    ("etcd_restore", "Verify the snapshot", "restore:confirm"),
    ("etcd_restore", "Require a confirmation", "confirm"),
    ("etcd_replace_member", "Identify the member to replace", "replace"),
    ("rotate_encryption_key", "Check that the whole control plane is in the run", "key"),
    ("upgrade", "Check what is to be upgraded", "upgrade"),
)
SNAPSHOT = (
    "restores one etcd cluster from the snapshot you name: add `-e cluster=main` or `-e cluster=events`, `-e snapshot"
)
LOOKS = "and leave out `--check`: without a confirmation it only looks. Nothing was done."
MEMBER = (
    "add `-e member=HOST`, one of etcd-1, etcd-2, etcd-3, events-1, and leave out `--check` and `--limit`: all members"
)
ROTATE = (
    "add `-e confirm=rotate`, and leave out `--check` and `--limit`: a server that is left out could not read what the "
    "others write. Nothing was done."
)
PART = "leave out `--limit`, and add `-e part=all`"


def asking(groups: Calls) -> list[dict[str, Any]]:
    """These plays for the groups that are called: a call that is refused says why, another that it was let through."""
    found = []
    for playbook, name, hosts in ASKING:
        plays = yaml.safe_load((ROOT / f"playbooks/{playbook}.yml").read_text())
        (play,) = (one for one in plays if one["name"] == name)
        # With it the first refusal would be the last.
        assert play.pop("any_errors_fatal") and play.pop("hosts") == "localhost"
        # Of a task that loops, what each item says.
        failed = "ansible_failed_result.results | default([ansible_failed_result])"
        said = {"ansible.builtin.debug": {"msg": f"{{{{ {failed} | map(attribute='msg', default='') | join(' ') }}}}"}}
        through = {"ansible.builtin.debug": {"msg": "let through"}}
        tasks = [{"block": [*play["tasks"], through], "rescue": [said]}]
        found += [{**play, "hosts": hosts, "tasks": tasks}] if set(hosts.split(":")) & set(groups) else []
    return found


def inventory(state: Path, calls: Calls, members: int) -> str:
    """A fleet whose addresses are nobody's, and the calls, each with a state of its own."""
    fleet = {
        "etcd": [f"etcd-{n + 1}" for n in range(members)],
        "etcd_events": ["events-1"],
        "kube_apiserver": ["api-1"],
    }
    groups: dict[str, Any] = {group: {"hosts": {name: {} for name in names}} for group, names in fleet.items()}
    for group, given in calls.items():
        groups[group] = {"hosts": {name: {**one, "fleet_state_dir": str(state / name)} for name, one in given.items()}}
    address = {"ansible_host": "198.51.100.1", "ansible_connection": "local"}
    variables = {"fleet_name": "lab", "fleet_state_dir": str(state), **address}
    return yaml.safe_dump({"all": {"children": groups, "vars": variables}})


@pytest.fixture
def ask(tmp_path: Path, ansible_playbook: Playbook) -> Said:
    """What each of these calls hears, by its name. What begins with -- is for all."""

    def run(calls: Calls, *options: str) -> dict[str, str]:
        (tmp_path / "play.yml").write_text(json.dumps(asking(calls)))
        (tmp_path / "hosts.yml").write_text(inventory(tmp_path / "state", calls, 3))
        done = ansible_playbook("play.yml", *options, inventory="hosts.yml")
        assert done.returncode == 0, done.stdout + done.stderr
        told = re.findall(r"^ok: \[(\S+)\] => (\{\n.*?^\})", done.stdout, re.MULTILINE | re.DOTALL)
        return {name: " ".join(json.loads(text)["msg"].split()) for name, text in told}

    return run


def lock_of_another(folder: Path) -> Path:
    """The folder, with the lock of a run elsewhere."""
    folder.mkdir(parents=True)
    lock.write(folder, LOCKED)
    return folder


def test_each_wrong_call_is_refused_and_leaves_nothing(tmp_path: Path, ask: Said) -> None:
    main = {"cluster": "main", "snapshot": str(lab_snapshot(tmp_path))}
    events = {"cluster": "events", "snapshot": str(lab_snapshot(tmp_path, cluster="events"))}
    calls: Calls = {
        "restore": {
            "of-nothing": {},
            "of-no-snapshot": {"cluster": "main"},
            "of-no-cluster": {**main, "cluster": "all"},
            "of-the-other-cluster": {**events, "snapshot": main["snapshot"], "confirm": "lab-events"},
            "of-what-is-old": {**main, "confirm": "lab-main", "max_age_hours": "0.001"},
            "of-nowhere": {**main, "confirm": "lab-main", "snapshot": "/nowhere.tar"},
        },
        "confirm": {
            "main-as-events": {**main, "confirm": "lab-events"},
            "events-as-the-fleet": {**events, "confirm": "lab"},
        },
        "replace": {
            "nobody": {},
            "a-stranger": {"member": "etcd-4"},
            "everybody": {"member": "all"},
            "the-only-member": {"member": "events-1"},
            "while-it-is-restored": {"member": "etcd-1"},
        },
        "key": {
            "without-a-word": {},
            "with-another-word": {"confirm": "yes"},
            "while-etcd-is-restored": {"confirm": "rotate"},
        },
        "upgrade": {
            "of-no-part": {},
            "of-everything": {"part": "everything"},
            "while-main-is-restored": {"part": "all"},
            "while-events-are-restored": {"part": "all"},
        },
    }
    expected = {
        "of-nothing": SNAPSHOT,
        "of-no-snapshot": SNAPSHOT,
        "of-no-cluster": SNAPSHOT,
        "of-the-other-cluster": "cluster lab-main, not of lab-events",
        "of-what-is-old": "are allowed",
        "of-nowhere": "/nowhere.tar is not there",
        "main-as-events": "add `-e confirm=lab-main`. Nothing was done.",
        "events-as-the-fleet": "add `-e confirm=lab-events`. Nothing was done.",
        "nobody": MEMBER,
        "a-stranger": MEMBER,
        "everybody": MEMBER,
        "the-only-member": "events-1 is the only member of its cluster, and its data is nowhere else",
        "without-a-word": ROTATE,
        "with-another-word": ROTATE,
        "of-no-part": PART,
        "of-everything": PART,
    }
    state = tmp_path / "state"
    locks = [
        lock_of_another(state / name)
        for name in (
            "while-it-is-restored/etcd-lock-main",
            "while-etcd-is-restored/etcd-lock-main",
            "while-main-is-restored/etcd-lock-main",
            "while-events-are-restored/etcd-lock-events",
        )
    ]
    said = ask(calls)
    expected |= {folder.parent.name: BUSY for folder in locks}
    assert [(name, said.get(name)) for name, words in expected.items() if words not in said.get(name, "")] == []
    assert set(said) == set(expected) == {name for given in calls.values() for name in given}
    assert all("wait until that run has ended" in said[folder.parent.name] for folder in locks)
    assert [lock.read(folder) for folder in locks] == [LOCKED] * len(locks)
    assert sorted(state.iterdir()) == sorted(folder.parent for folder in locks)
    assert "agent has spoken" in said["main-as-events"] and "agent has spoken" not in said["events-as-the-fleet"]


def test_what_only_looks_is_refused_where_nothing_can_be_looked_at(tmp_path: Path, ask: Said) -> None:
    calls: Calls = {
        "restore": {"restore": {"cluster": "main", "snapshot": str(lab_snapshot(tmp_path)), "confirm": "lab-main"}},
        "replace": {"replace": {"member": "etcd-1"}},
        "key": {"key": {"confirm": "rotate"}},
        "upgrade": {"upgrade": {"part": "all"}},
    }
    # A look lays programs ready, and removes at its end what the other run installs from.
    folder = lock_of_another(tmp_path / "state/upgrade/etcd-lock-events")
    said = ask(calls, "--check")
    expected = {"restore": LOOKS, "replace": MEMBER, "key": ROTATE, "upgrade": BUSY}
    assert [(name, said.get(name)) for name, words in expected.items() if words not in said.get(name, "")] == []
    assert lock.read(folder) == LOCKED
    assert list((tmp_path / "state").iterdir()) == [folder.parent]


@pytest.fixture
def plays_of(tmp_path: Path, ansible_playbook: Playbook) -> Callable[..., tuple[list[str], str]]:
    """Runs a playbook as it is, which must fail and leave nothing: the plays that it came to, and what it said."""

    def run(playbook: str, *options: str, members: int = 3) -> tuple[list[str], str]:
        state = tmp_path / "state"
        (tmp_path / "hosts.yml").write_text(inventory(state, {}, members))
        done = ansible_playbook(str(ROOT / f"playbooks/{playbook}.yml"), *options, inventory="hosts.yml")
        assert done.returncode != 0, done.stdout
        assert not state.exists()
        return re.findall(r"^PLAY \[(.*)\]", done.stdout, re.MULTILINE), " ".join((done.stdout + done.stderr).split())

    return run


@pytest.mark.parametrize(
    ("playbook", "variable", "hosts", "why"),
    [
        ("etcd_replace_member", "member=etcd-1", "etcd-1", MEMBER),
        ("rotate_encryption_key", "confirm=rotate", "api-1", ROTATE),
        ("upgrade", "part=all", "etcd", PART),
    ],
)
def test_a_limit_ends_the_playbook_at_once(
    plays_of: Callable[..., tuple[list[str], str]], playbook: str, variable: str, hosts: str, why: str
) -> None:
    plays, said = plays_of(playbook, "-e", variable, "--limit", f"{hosts},localhost")
    assert why in said
    assert plays == [name for book_name, name, _ in ASKING if book_name == playbook]


def test_without_the_clusters_name_a_restore_tells_what_it_would_do(
    tmp_path: Path, plays_of: Callable[..., tuple[list[str], str]]
) -> None:
    given = ("-e", "cluster=main", "-e", f"snapshot={lab_snapshot(tmp_path)}")
    plays, said = plays_of("etcd_restore", *given, members=1)
    assert "is whole: lab-main as of" in said
    assert "revision 7, 3 keys" in said
    assert "stops every API server meanwhile: etcd-1" in said
    assert "add `-e confirm=lab-main`. Nothing was done." in said
    # Nobody is there to say what the nodes were.
    assert "Every node takes no new work afterwards until its agent has spoken" in said
    assert "no member of etcd answers" in said
    assert plays == ["Verify the snapshot", "Read what the cluster knows of the nodes", "Require a confirmation"]
