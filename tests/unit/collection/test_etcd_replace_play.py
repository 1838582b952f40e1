"""playbooks/etcd_replace_member.yml: its lock, its order, and its page; what it asks for: test_operations_ask.py."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = ROOT / "playbooks/etcd_replace_member.yml"
PAGE = (ROOT / "docs/operations/etcd-member-replacement.md").read_text()


def test_a_restore_keeps_it_out_by_the_same_lock() -> None:
    locks = [re.findall(r"etcd-lock-\S+", path.read_text()) for path in (PLAYBOOK, ROOT / "playbooks/etcd_restore.yml")]
    assert [len(found) for found in locks] == [1, 2]


def test_it_looks_at_everything_before_it_changes_the_host() -> None:
    """The roles of `Replace the member` format disks and install what the member runs."""
    plays = yaml.safe_load(PLAYBOOK.read_text())
    changes = next(number for number, play in enumerate(plays) if play["name"] == "Replace the member")
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
