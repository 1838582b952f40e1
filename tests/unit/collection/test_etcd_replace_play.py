"""playbooks/etcd_replace_member.yml as far as it goes without a host: what it asks for and refuses; and its page.

Only here: that the playbook itself refuses each wrong call before it leaves anything.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from gpu_burnin.fleet.driver_upgrade import book, lock

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK = ROOT / "playbooks/etcd_replace_member.yml"
PAGE = (ROOT / "docs/operations/etcd-member-replacement.md").read_text()
LOCKED = book.Lock("anna", "2026-11-22T17:00:00Z", lock.Owner("elsewhere", "1b4e", 40, 400), "restores etcd")


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """Three members of main and one for events, whose address is nobody's."""
    host = {"ansible_host": "198.51.100.1", "ansible_connection": "local"}
    groups = {"etcd": {"hosts": {f"etcd-{n}": host for n in (1, 2, 3)}}, "etcd_events": {"hosts": {"events-1": host}}}
    variables = {"fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state")}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    return path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "add `-e member=HOST`, one of etcd-1, etcd-2, etcd-3, events-1"),
        (["-e", "member=etcd-4"], "add `-e member=HOST`"),
        (["-e", "member=all"], "add `-e member=HOST`"),
        (["-e", "member=etcd-1", "--check"], "leave out `--check`"),
        (["-e", "member=etcd-1", "--limit", "etcd-1,localhost"], "`--limit`: all members of its cluster are asked"),
        (["-e", "member=events-1"], "is the only member of its cluster, and its data is nowhere else"),
    ],
)
def test_what_it_refuses(
    inventory: Path, tmp_path: Path, ansible_playbook: Playbook, options: list[str], why: str
) -> None:
    done = ansible_playbook(str(PLAYBOOK), *options, inventory=str(inventory))
    assert done.returncode != 0, done.stdout
    assert why in " ".join((done.stdout + done.stderr).split())
    assert not (tmp_path / "state").exists()


@pytest.mark.slow
def test_while_another_operation_runs_nothing_is_done(
    inventory: Path, tmp_path: Path, ansible_playbook: Playbook
) -> None:
    folder = tmp_path / "state/etcd-lock-main"
    folder.mkdir(parents=True)
    book.write_lock(folder, LOCKED)
    done = ansible_playbook(str(PLAYBOOK), "-e", "member=etcd-1", inventory=str(inventory))
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0
    assert "anna restores etcd since 2026-11-22T17:00:00Z (process 40 on elsewhere" in said
    assert "wait until that run has ended" in said
    assert book.read_lock(folder) == LOCKED


def test_a_restore_keeps_it_out_by_the_same_lock() -> None:
    locks = [re.findall(r"etcd-lock-\S+", path.read_text()) for path in (PLAYBOOK, ROOT / "playbooks/etcd_restore.yml")]
    assert [len(found) for found in locks] == [1, 2]


def test_it_looks_at_everything_before_it_changes_the_host() -> None:
    """The roles of `Replace it` format disks and install what the member runs."""
    plays = yaml.safe_load(PLAYBOOK.read_text())
    changes = next(number for number, play in enumerate(plays) if play["name"] == "Replace it")
    before = plays[1:changes]
    assert [role for play in before for role in play.get("roles", [])] == [{"role": "muster.fleet.fleet"}] * 2
    looks = [task for play in before for task in play["tasks"]]
    assert "muster.fleet.clock_skew" in looks[0]
    assert [task["ansible.builtin.import_role"]["tasks_from"] for task in looks[1:]] == [
        "replace_look",
        "replace_check",
    ]
    (check,) = yaml.safe_load((ROOT / "roles/etcd/tasks/replace_check.yml").read_text())
    assert check["check_mode"] is True
    look = (ROOT / "roles/etcd/tasks/replace_look.yml").read_text()
    assert set(re.findall(r"(?:path|directory|ready): (\S+)", look)) == {"/usr/local/bin", "/var/lib/muster-replace"}


def test_the_page_names_what_there_is() -> None:
    playbook = PLAYBOOK.read_text()
    named = set(re.findall(r"-e (\w+)=", PAGE))
    assert named == {"member", "confirm"}
    assert all(re.search(rf"\b{name}\b", playbook.partition("\n- name")[2]) for name in named)
    for path in re.findall(r"(?:playbooks|tests/integration)/\w+\.\w+", PAGE):
        assert (ROOT / path).exists(), path
