"""playbooks/driver_upgrade.yml and its role as far as they go without a host: refused, given back, failed, stopped.

Only here: that Ansible ends, goes on and tells as the role means it: given back, failed, and a lock of one run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.fleet.driver_upgrade import book
from gpu_burnin.fleet.driver_upgrade.book import Entry, Outcome, Run, Step
from gpu_burnin.fleet.roll import lock
from gpu_burnin.fleet.roll.lock import Lock
from tests.support.upgrade_site import NEW, OLD, Site

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
PLAYBOOK = str(ROOT / "playbooks/driver_upgrade.yml")
HOSTS = ("gpu-1", "gpu-2")
# As in the playbook, after its plan.
PLAY = """
- hosts: all
  gather_facts: false
  serial: [1, 1]
  ignore_unreachable: true
  roles: [muster.fleet.fleet]
  tasks:
    - ansible.builtin.set_fact:
        __driver_upgrade_seen: {loaded: LOADED}
    - ansible.builtin.import_role:
        name: muster.fleet.driver_upgrade
- hosts: all
  gather_facts: false
  roles: [muster.fleet.fleet]
  tasks:
    - ansible.builtin.import_role:
        name: muster.fleet.driver_upgrade
        tasks_from: summary
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.api.close()


def run(ansible_playbook: Playbook, site: Site) -> subprocess.CompletedProcess[str]:
    """Both hosts are this machine, on which no gpu-burnin is installed."""
    book.write_run(site.directory, Run("run-1", NEW, HOSTS, (1, 1)))
    play = site.folder / "play.yml"
    play.write_text(PLAY.replace("LOADED", OLD))
    variables = {
        "fleet_name": "test",
        "fleet_state_dir": str(site.folder),
        "driver_upgrade_kubeconfig": str(site.kubeconfig),
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
    }
    words = [word for key, value in variables.items() for word in ("-e", f"{key}={value}")]
    return ansible_playbook(str(play), *words, inventory=f"{','.join(HOSTS)},")


@pytest.mark.slow
def test_without_a_limit_nothing_is_done(ansible_playbook: Playbook) -> None:
    done = ansible_playbook(PLAYBOOK, inventory=str(ROOT / "inventory/example"))
    assert done.returncode == 2
    assert "changes the driver of the hosts you name and nothing else" in done.stdout + done.stderr


@pytest.mark.slow
def test_hosts_that_are_given_back_fail_nothing(ansible_playbook: Playbook, site: Site) -> None:
    done = run(ansible_playbook, site)
    assert done.returncode == 0, done.stdout + done.stderr
    for name in HOSTS:
        assert f"{name}  NOT DONE  driver {OLD} -> {NEW}: `gpu-burnin repair look` does not answer" in done.stdout
        assert site.spec(name) == {}
    assert "Quiesce the host" not in done.stdout
    assert "stops before its next batch" not in done.stdout


@pytest.mark.slow
def test_what_a_host_tells_on_stderr_is_not_taken_for_what_it_says_of_itself(
    ansible_playbook: Playbook, site: Site
) -> None:
    """SSH that is asked for a terminal has one stream for both, as with a sudo that cannot resolve the host's name."""
    scripts = {
        "ssh": 'for last; do :; done\ncase " $* " in *" -tt "*) exec 2>&1 ;; esac\nsh -c "$last"',
        "gpu-burnin": """echo 'unable to resolve host' >&2; echo '{"working": []}'""",
    }
    for name, text in scripts.items():
        (site.folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (site.folder / name).chmod(0o755)
    book.write_run(site.directory, Run("run-1", NEW, ("gpu-1",), (1,)))
    begin = {
        "phase": "begin", "node": "gpu-1", "loaded": OLD, "directory": str(site.directory),
        "kubeconfig": str(site.kubeconfig), "program": str(site.folder / "gpu-burnin"),
    }  # fmt: skip
    host = {"ansible_connection": "ssh", "ansible_ssh_executable": str(site.folder / "ssh")}
    tasks = [{"muster.fleet.driver_upgrade": begin}]
    play = [{"hosts": "gpu-1", "gather_facts": False, "vars": host, "tasks": tasks}]
    (site.folder / "play.yml").write_text(json.dumps(play))
    done = ansible_playbook(str(site.folder / "play.yml"), inventory="gpu-1,")
    assert done.returncode == 0, done.stdout + done.stderr
    assert site.entry().step is Step.DRIVER, site.entry().why


@pytest.mark.slow
def test_a_failure_is_kept_stops_the_next_batch_and_is_told(ansible_playbook: Playbook, site: Site) -> None:
    """The first host was changed by a run of before, and somebody else repairs it now."""
    lost = Entry("gpu-1", "run-0", OLD, NEW, "t", step=Step.TEST)
    book.write_entry(site.directory, replace(lost, outcome=Outcome.FAILED))
    site.spec()["repair"] = {"who": "bob", "why": "a new GPU", "since": "s", "until": "", "level": ""}
    done = run(ansible_playbook, site)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"gpu-1  FAILED  driver {OLD} -> {NEW}: bob has it in repair since s (a new GPU)" in done.stdout
    stopped = "This run stops before its next batch: 1 failed (gpu-1) and driver_upgrade_max_failures is 1"
    assert stopped in " ".join(done.stdout.split())
    # A result with a key `failed` would be a failure of the task that tells, and of its words.
    assert "gpu-1: the driver was not changed; see the lines above" in done.stdout + done.stderr
    assert "Unknown error" not in done.stdout + done.stderr
    assert "gpu-2  untouched: the run ended before it" in done.stdout
    assert site.entry().outcome is Outcome.FAILED and site.spec("gpu-2") == {}
    assert site.spec()["repair"]["who"] == "bob"
    assert site.spec()["quarantine"]["why"].startswith(f"driver upgrade to {NEW} failed: bob has it in repair")


@pytest.mark.slow
@pytest.mark.parametrize("dead", [False, True])
def test_one_run_at_a_time(ansible_playbook: Playbook, site: Site, dead: bool) -> None:
    """The lock is of this process, or of one that it was in another boot."""
    other = lock.owner(pid=os.getpid())
    lock.write(site.directory, Lock("bob", "t", replace(other, boot_id="another") if dead else other))
    play = site.folder / "plan.yml"
    host = {"name": "gpu-1", "source": "nvidia", "wanted": NEW, "loaded": OLD, "differs": "it differs"}
    given = {"directory": str(site.directory), "kubeconfig": str(site.kubeconfig)}
    tasks = [
        {"muster.fleet.driver_upgrade": {"phase": "plan", "hosts": [host], **given}, "register": "plan"},
        {"ansible.builtin.debug": {"var": "plan.text"}},
        # Whose lock it is now: of the playbook, so that each of its tasks finds its own.
        {
            "muster.fleet.driver_upgrade": {"phase": "next", **given},
            "register": "next",
            "failed_when": "next.stop != ''",
        },
        {"muster.fleet.driver_upgrade": {"phase": "summary", **given}},
    ]
    variables = {"ansible_python_interpreter": sys.executable}
    play.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": variables, "tasks": tasks}]))
    done = ansible_playbook(str(play))
    told = " ".join((done.stdout + done.stderr).split())
    if dead:
        assert done.returncode == 0, told
        assert "bob upgrades drivers since t" in told and "that run is dead" in told
        assert book.read_run(site.directory).hosts == ("gpu-1",)
        assert lock.read(site.directory) is None, "the summary gives the lock back"
    else:
        assert done.returncode == 2
        assert f"bob upgrades drivers since t (process {os.getpid()} on" in told
        assert not (site.directory / "run.json").exists()
