"""The callback `muster.fleet.history` in real runs of ansible-playbook.

Only here: what the callback keeps of plays that Ansible really ran.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpu_burnin.fleet import history
from gpu_burnin.fleet.baseline import rates
from gpu_burnin.report import model
from gpu_burnin.system.clock import rfc3339
from tests.support.playbook_fixtures import PlaybookIn, warm_playbook
from tests.support.sample_reports import healthy_1

Playbook = Callable[..., subprocess.CompletedProcess[str]]
ALWAYS = ("2000-01-01T00:00:00.000Z", "2099-01-01T00:00:00.000Z")
INVENTORY = """
all:
  vars: {fleet_name: prod, fleet_state_dir: "{{ inventory_dir }}/{{ fleet_name }}"}
  hosts: {localhost: , gpu-1: , gpu-2: }
"""
PLAYS = """
- name: First
  hosts: all
  gather_facts: false
  tasks:
    - name: Report a message
      ansible.builtin.debug: {msg: hello}
    - name: Change it
      ansible.builtin.command: "true"
      when: inventory_hostname == "gpu-1"
    - name: Power it off and on
      bmc_power:
      when: inventory_hostname == "gpu-1"
    - name: Fail where it counts
      ansible.builtin.fail: {msg: "no room  on the disk"}
      when: inventory_hostname == "gpu-2"
    - name: Fail and be passed over
      ansible.builtin.command: "false"
      ignore_errors: true
- name: Second
  hosts: gpu-1
  gather_facts: false
  tasks:
    - name: Keep a secret
      ansible.builtin.fail: {msg: hunter2}
      no_log: true
"""
BMC_POWER = """#!/usr/bin/python
from ansible.module_utils.basic import AnsibleModule
AnsibleModule({}).exit_json(changed=True, done=True)
"""


@pytest.fixture(scope="module")
def playbook_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlaybookIn]:
    """With the callback."""
    with warm_playbook(tmp_path_factory.mktemp("ansible"), ANSIBLE_CALLBACKS_ENABLED="muster.fleet.history") as made:
        yield made


@pytest.fixture
def enabled(tmp_path: Path) -> Path:
    """The folder of fleet_state_dir, for runs that have the callback."""
    (tmp_path / "hosts.yml").write_text(INVENTORY)
    (tmp_path / "plays.yml").write_text(PLAYS)
    # As the collection's own: with a task that takes a while, and is over when the machine is back.
    (tmp_path / "library").mkdir()
    (tmp_path / "library/bmc_power.py").write_text(BMC_POWER)
    (tmp_path / "prod").mkdir()
    return tmp_path / "prod"


@pytest.mark.slow
def test_each_play_keeps_what_it_did_to_each_host(enabled: Path, ansible_playbook: Playbook) -> None:
    done = ansible_playbook("plays.yml", "-l", "all", inventory="hosts.yml")
    assert done.returncode == 2 and "Callback dispatch" not in done.stderr, done.stdout + done.stderr
    path = enabled / history.FILE
    (first, one), (second, two) = history.of_host(path, "gpu-1", *ALWAYS)
    assert (first.name, first.playbook, first.only_hosts, first.check_mode) == ("First", "plays.yml", "all", False)
    assert (one.ok, one.changed, one.failed, one.skipped) == (4, 3, 0, 1)
    assert one.rebooted == "Power it off and on" and first.started_at <= one.rebooted_at <= first.ended_at
    assert not two.rebooted and not two.rebooted_at
    assert second.name == "Second" and second.run == first.run and second.started_at >= first.ended_at
    assert (two.failed, two.task) == (1, "Keep a secret") and b"hunter2" not in path.read_bytes()
    [(_, failed)] = history.of_host(path, "gpu-2", *ALWAYS)
    assert (failed.failed, failed.task, failed.message) == (1, "Fail where it counts", "no room on the disk")


@pytest.mark.slow
def test_the_rates_of_a_report_are_kept_when_it_is_fetched(
    enabled: Path, ansible_playbook: Playbook, tmp_path: Path
) -> None:
    report = model.document(healthy_1()[0]) | {"finished_at": rfc3339(datetime.now(UTC))}
    (tmp_path / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (tmp_path / "fetch.yml").write_text(f"""
- hosts: gpu-1
  gather_facts: false
  connection: local
  tasks:
    - name: Fetch the report and its page
      ansible.builtin.fetch:
        src: "{{{{ item }}}}"
        dest: "{{{{ fleet_state_dir }}}}/reports/gpu-1/report.json"
        flat: true
      loop: ["{tmp_path}/report.json"]
""")
    for _ in range(2):  # the second time nothing comes
        done = ansible_playbook("fetch.yml", inventory="hosts.yml")
        assert done.returncode == 0 and "WARNING" not in done.stderr, done.stdout + done.stderr
    with rates.DATABASE.reading(enabled / rates.FILE) as connection:
        [(host, why_not)] = connection.execute("SELECT name, why_not FROM hosts")
        [(run,)] = connection.execute("SELECT run FROM points")
    assert (host, why_not, run) == ("gpu-1", "", report["run_id"])


@pytest.mark.slow
def test_a_damaged_or_forbidden_history_is_one_warning_and_breaks_no_run(
    enabled: Path, ansible_playbook: Playbook, tmp_path: Path
) -> None:
    (tmp_path / "fine.yml").write_text("- {hosts: gpu-1, gather_facts: false, tasks: [{debug: {msg: hi}}]}\n")
    (enabled / history.FILE).write_bytes(b"no database at all" * 100)
    done = ansible_playbook("fine.yml", "--check", inventory="hosts.yml")
    assert done.returncode == 0
    assert " ".join(done.stderr.split()).count("it is kept as history.sqlite3.damaged-1, and a new one began") == 1
    [(kept, _)] = history.of_host(enabled / history.FILE, "gpu-1", *ALWAYS)
    assert kept.check_mode
    (enabled / history.FILE).unlink()
    (enabled / history.FILE).mkdir()
    done = ansible_playbook("fine.yml", inventory="hosts.yml")
    assert done.returncode == 0 and "is not in the history" in " ".join(done.stderr.split())


@pytest.mark.parametrize("state", ["", "fleet_state_dir: /none/here", 'fleet_state_dir: "{{ not_there }}"'])
@pytest.mark.slow
def test_without_a_place_to_write_nothing_is_said(
    state: str, enabled: Path, ansible_playbook: Playbook, tmp_path: Path
) -> None:
    (tmp_path / "hosts.yml").write_text(f"all: {{vars: {{{state}}}, hosts: {{gpu-1: }}}}\n")
    (tmp_path / "fine.yml").write_text("- {hosts: gpu-1, gather_facts: false, tasks: [{debug: {msg: hi}}]}\n")
    done = ansible_playbook("fine.yml", inventory="hosts.yml")
    assert done.returncode == 0 and "history" not in done.stderr
    assert not [*tmp_path.rglob(history.FILE)]
