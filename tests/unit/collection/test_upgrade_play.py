"""playbooks/upgrade.yml: its order, what it leaves, and its page; what it asks for: test_operations_ask.py.

Only here: that the playbook removes what lay ready, and gives the lock back, also when it is refused.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.muster.fleet.plugins.modules.upgrade_facts import ADMITTER

from gpu_burnin.fleet import lock

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK = ROOT / "playbooks/upgrade.yml"
PAGE = (ROOT / "docs/operations/upgrade.md").read_text()


def plays() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(PLAYBOOK.read_text())
    return found


def test_what_runs_is_changed_one_host_after_the_other_and_the_first_failure_ends_it() -> None:
    changing = [play for play in plays() if str(play["hosts"]).startswith("upgrade_")]
    assert [play["hosts"] for play in changing] == [
        "upgrade_etcd", "upgrade_etcd_events", "upgrade_servers", "upgrade_controllers", "upgrade_nodes",
    ]  # fmt: skip
    assert [play["serial"] for play in changing[:4]] == [1, 1, 1, 1]
    for play in changing:
        # How each way ends with the first failure: test_one_after_the_other.py.
        assert "any_errors_fatal" not in play
        (task,) = play["tasks"]
        assert "upgrade_stop.yml" in str(task["rescue"])


def test_admission_that_is_closed_stays_closed_over_a_reboot_and_is_opened_after_the_servers() -> None:
    """What is disabled is what upgrade_facts takes for closed. How it is chosen: test_upgrade_rules.py."""
    by_host = [str(play["hosts"]) for play in plays()]
    closing = next(number for number, hosts in enumerate(by_host) if "upgrade_closed" in hosts)
    opening = next(number for number, hosts in enumerate(by_host) if "upgrade_opened" in hosts)
    assert closing < by_host.index("upgrade_servers") < opening
    (stop,) = plays()[closing]["tasks"]
    assert stop["ansible.builtin.systemd_service"] == {"name": ADMITTER, "state": "stopped", "enabled": False}
    see, run = plays()[opening]["tasks"]
    assert (see["ansible.builtin.import_role"]["tasks_from"], run["ansible.builtin.import_role"]["name"]) == (
        "verify",
        "muster.fleet.admitter",
    )


@pytest.mark.slow
@pytest.mark.parametrize("sick", ["no leader", ""])
def test_what_lay_ready_is_removed_also_when_it_is_refused(
    tmp_path: Path, ansible_playbook: Playbook, sick: str
) -> None:
    """The real plays from the judgement on, of a fleet that has nothing to upgrade, or must not."""
    real = {play["name"]: play for play in plays()}
    kept = [
        "Evaluate the fleet and plan what is left to do",
        "Remove the staging folders",
        "Report the running versions",
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump([real[name] for name in kept]))
    (tmp_path / "files").symlink_to(ROOT / "playbooks/files")
    runs = {"etcd": {"running": "3.6.16", "wanted": "3.6.16", "current": True}}
    found = {"programs": runs, "sick": sick, "served": True, "leads": False, "room": "", "closed": False}
    groups = {"etcd": {"hosts": {"etcd-1": {"upgrade_found": found}}}}
    variables = {"fleet_name": "lab", "fleet_state_dir": str(tmp_path / "state"), "part": "all", "fleet_domain": "a.b"}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    ready = tmp_path / "ready"
    ready.mkdir()
    (ready / "etcd").write_text("program")
    lock_file = lock.path_of(tmp_path / "state/etcd-lock-main")
    done = ansible_playbook("play.yml", "-e", f"upgrade_dir={ready}", inventory=str(path))
    said = " ".join((done.stdout + done.stderr).split())
    assert not ready.exists() and not lock_file.exists(), said
    assert (done.returncode == 0) is (sick == ""), said
    assert ("nothing was changed, the upgrade is refused" in said) is (sick != "")
    assert ("etcd-1: its etcd is not healthy: no leader; repair it first" in said) is (sick != "")


def test_a_host_that_cannot_have_all_programs_ready_keeps_none() -> None:
    (lay,) = (task for task in plays()[1]["tasks"] if "rescue" in task)
    _, remove, tell = lay["rescue"]
    assert remove["ansible.builtin.file"] == {"path": "{{ upgrade_dir }}", "state": "absent"}
    assert remove["check_mode"] is False and "ansible.builtin.fail" in tell


def test_it_knows_the_programs_of_each_group_as_preflight_does() -> None:
    _, look, *_ = plays()
    defaults = yaml.safe_load((ROOT / "roles/preflight/defaults/main.yml").read_text())
    assert look["vars"]["upgrade_programs"] == defaults["preflight_binaries"]


def test_the_page_names_what_there_is() -> None:
    playbook = PLAYBOOK.read_text().partition("\n- name")[2]
    named = set(re.findall(r"-e (\w+)=", PAGE))
    assert named == {"part", "snapshot", "nodes_at_once"}
    assert all(re.search(rf"\b{name}\b", playbook) for name in named)
    for path in re.findall(r"(?:playbooks|tests/\w+)/\w+\.\w+", PAGE):
        assert (ROOT / path).exists(), path
