"""Power waves of many hosts: the role grants so many at a time, through the module, to burn-ins that ask for them.

Hosts are folders here, systemd is a script, and a burn-in is a process that asks by grant_request itself.

Only here: that the role grants waves to so many hosts at a time, over several hosts of one play, beside what others let
swing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.fleet.feeds.limits import Limits
from gpu_burnin.fleet.feeds.turns import SLACK_S, Turns
from gpu_burnin.fleet.roll.lock import may_run
from tests.support import fake_systemd

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
# gpu-burnin on a host: with files of its own.
PROGRAM = """\
import os, sys
from pathlib import Path
sys.path.insert(0, {root!r})
from gpu_burnin.node import unit
unit.RUN_DIR, unit.POLL_S = Path(os.environ["FAKE_HOST"]) / "run", 0.1
from gpu_burnin.__main__ import main
main()
"""
# What a run does with its waves, and what it leaves.
BURNIN = """\
import hashlib, json, os, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from gpu_burnin.api.evidence import Statement
from gpu_burnin.settings.config import load_config
from gpu_burnin.checks.power import grant_request as power_grant
from gpu_burnin.report import model
from gpu_burnin.system import host as machine
from gpu_burnin.types import Notice, Verdict
from tests.support.made_reports import make_report
from tests.support.report_helpers import HARDWARE_SHA256, leave_run
host = Path(os.environ["FAKE_HOST"])
# Until the other runs have begun, of which there is only a file.
until = time.monotonic() + 30
while (host.parent / "meet").exists() and len([*host.parent.glob("*/command")]) < 3:
    assert time.monotonic() < until, "the other runs were not started"
    time.sleep(0.02)
if not (host / "asks_nothing").exists():
    request = power_grant.ask(host / "state/power_grant", 60.0, 0.5)
    # The parent, which asks in a run, goes as soon as this one does.
    until = time.monotonic() + 60
    while not power_grant.granted(host / "state/power_grant", request):
        assert time.monotonic() < until
        time.sleep(0.02)
    request = power_grant.move(host / "state/power_grant", request, power_grant.State.RUNNING)
    if (host / "kills_its_play").exists():
        turn = json.loads((host.parent / f"state/feeds/{{host.name}}.json").read_text())
        os.kill(turn["owner"]["pid"], 9)
    # The waves themselves, or until two hosts have begun theirs.
    until = time.monotonic() + (60 if (host.parent / "together").exists() else 0.5)
    while time.monotonic() < until:
        requests = [path.read_bytes() for path in host.parent.glob("*/state/power_grant/request.json")]
        if sum(b'"granted_at": null' not in text for text in requests) > 1:
            break
        time.sleep(0.02)
    power_grant.move(host / "state/power_grant", request, power_grant.State.OVER)
report = make_report(warnings=(Notice("EXTENDED_WANTED", "run", "a new node"),))
body = json.dumps(model.document(report)).encode()
statement = Statement(
    host.name, machine.machine_id(), machine.boot_id(), hashlib.sha256(body).hexdigest(), Verdict.PASS, "standard",
    "b" * 64, HARDWARE_SHA256, False, 1, "2026-01-02T03:04:05Z",
)
run = leave_run(load_config(host / "config.yaml"), statement)
(run.path / "report.json").write_bytes(body)
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def fleet(tmp_path: Path, host_key: Path) -> Path:
    """A folder with three hosts, the scripts that stand for systemd and the program, and a play of the role's tasks."""
    (tmp_path / "bin").mkdir()
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        (tmp_path / name).mkdir()
        settings = {"node_name": name, "state_dir": str(tmp_path / name / "state"), "host_key": str(host_key)}
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(settings))
    (tmp_path / "burnin.py").write_text(BURNIN.format(root=str(ROOT)))
    (tmp_path / "program.py").write_text(PROGRAM.format(root=str(ROOT)))
    fake_systemd.install(tmp_path / "bin")
    executable(tmp_path / "bin/gpu-burnin", f'#!/bin/sh\nexec {sys.executable} {tmp_path}/program.py "$@"\n')
    role = ROOT / "roles/gpu_burnin"
    tasks = yaml.safe_load((role / "tasks/main.yml").read_text())
    count, run = (task for task in tasks if "block" in task or "ansible.builtin.set_fact" in task)
    # Outside of a role there is none to end.
    run["block"] = [task for task in run["block"] if "ansible.builtin.meta" not in task]
    for task in run["block"]:
        if include := task.get("ansible.builtin.include_tasks"):
            task["ansible.builtin.include_tasks"] = str(role / "tasks" / include)
    told = {"name": "Report", "ansible.builtin.debug": {"msg": "RESULT {{ inventory_hostname }} {{ found | to_json }}"}}
    keys = ("verdict", "why", "waves", "changed", "burnin_warnings")
    pairs = ", ".join(f"'{key}': __gpu_burnin_result.{key} | default('')" for key in keys)
    here = {"config": f"{tmp_path}/{{{{ inventory_hostname }}}}/config.yaml", "program": f"{tmp_path}/bin/gpu-burnin"}
    run["module_defaults"]["muster.fleet.burnin"] |= here
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(role / "defaults/main.yml"), str(role / "vars/main.yml")],
        "vars": {
            "found": "{{ {" + pairs + "} }}",
            "fleet_maintenance": [],
            "fleet_maintenance_before_s": 3600,
            "fleet_state_dir": str(tmp_path / "state"),
            "fleet_place": "{{ {'gpu-1': {'feed': 'a'}, 'gpu-2': {'feed': 'b'}}[inventory_hostname] | default({}) }}",
            "fleet_feed_limits": {},
            "fleet_scale": False,
            "fleet_domain": "muster.dev",
        },
        "environment": {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "FAKE_HOST": f"{tmp_path}/{{{{ inventory_hostname }}}}",
            "FAKE_PROGRAM": f"{sys.executable} {tmp_path}/burnin.py",
        },
        "module_defaults": {"muster.fleet.power_grant": here},
        "tasks": [count, run, told],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    return tmp_path


def results(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """What the role holds for the result of each host."""
    found = {}
    for line in done.stdout.splitlines():
        if "RESULT" in line:
            name, text = line.partition("RESULT ")[2].rstrip('"').split(" ", 1)
            found[name] = json.loads(text.replace('\\"', '"'))
    return found


def most_at_once(fleet: Path) -> int:
    """How many hosts were in their waves at the same time, by what they wrote themselves."""
    spans = []
    for path in fleet.glob("gpu-*/state/power_grant/request.json"):
        request = json.loads(path.read_text())
        spans.append([datetime.fromisoformat(request[key]) for key in ("granted_at", "over_at")])
    assert spans
    return max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)


def play(fleet: Path, ansible_playbook: Playbook, limit: int, *more: str) -> subprocess.CompletedProcess[str]:
    """The role's tasks on three hosts of which two ask for waves, `limit` of them at a time."""
    (fleet / "gpu-3/asks_nothing").touch()
    arguments = ("play.yml", "-e", f"gpu_burnin_wave_max_nodes={limit}", "-f", "3", *more)
    done = ansible_playbook(*arguments, inventory="gpu-1,gpu-2,gpu-3")
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.mark.slow
def test_no_more_hosts_swing_at_once_than_the_site_stands(fleet: Path, ansible_playbook: Playbook) -> None:
    play(fleet, ansible_playbook, 1, "--check", "--limit", "gpu-1")
    assert not list(fleet.glob("*/command")), "a check run starts nothing"
    found = results(play(fleet, ansible_playbook, 1))
    assert {name: (result["verdict"], result["waves"]) for name, result in found.items()} == {
        "gpu-1": ("PASS", "over"), "gpu-2": ("PASS", "over"), "gpu-3": ("PASS", "none")
    }  # fmt: skip
    assert all(result["why"] == "no burn-in has been completed on this host" for result in found.values())
    assert [one["code"] for one in found["gpu-1"]["burnin_warnings"]] == ["EXTENDED_WANTED"]
    assert most_at_once(fleet) == 1
    assert not list((fleet / "state/feeds").glob("*.json")), "a turn is given back when its waves are over"
    command = (fleet / "gpu-1/command").read_text()
    assert "gpu_burnin run --json " in command
    assert " --level standard --waves granted --wave-wait " in command
    # Long enough for the last of three hosts, and never less than the role's own default.
    assert int(command.split("--wave-wait ")[1].split("s")[0]) >= 1800
    # One that asked for waves and one that did not.
    again = play(fleet, ansible_playbook, 1, "--limit", "gpu-1,gpu-3")
    assert again.stdout.count("changed=0") == 2
    assert {result["why"] for result in results(again).values()} == {"a pass of this boot exists"}


@pytest.mark.slow
def test_all_runs_are_started_before_one_is_waited_for(fleet: Path, ansible_playbook: Playbook) -> None:
    """Ansible works on one host at a time, and each run ends only when all have begun."""
    for path in (fleet / "meet", *(fleet / name / "asks_nothing" for name in ("gpu-1", "gpu-2", "gpu-3"))):
        path.touch()
    done = ansible_playbook("play.yml", "-f", "1", inventory="gpu-1,gpu-2,gpu-3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert {result["verdict"] for result in results(done).values()} == {"PASS"}


@pytest.mark.slow
def test_hosts_swing_at_the_same_time_where_the_site_stands_it(fleet: Path, ansible_playbook: Playbook) -> None:
    """What shows that the test above can fail, too."""
    (fleet / "together").touch()
    play(fleet, ansible_playbook, 3, "--limit", "gpu-1,gpu-2")
    assert most_at_once(fleet) == 2


@pytest.mark.slow
def test_each_feed_that_has_a_limit_has_turns_of_its_own(fleet: Path, ansible_playbook: Playbook) -> None:
    (fleet / "together").touch()
    limits = '{"fleet_feed_limits": {"b": 1}}'
    play(fleet, ansible_playbook, 1, "--limit", "gpu-1,gpu-2", "-e", limits)
    assert most_at_once(fleet) == 2


@pytest.mark.slow
def test_a_host_that_has_no_turn_is_granted_nothing_and_says_for_whom_it_waited(
    fleet: Path, ansible_playbook: Playbook
) -> None:
    turns = Turns(fleet / "state/feeds", Limits(1))
    assert turns.take("gpu-9", "", 5.0, 0.0, print) == ""
    document = yaml.safe_load((fleet / "play.yml").read_text())
    tasks = yaml.safe_load((ROOT / "roles/gpu_burnin/tasks/result.yml").read_text())
    document[0]["tasks"] = [
        {**next(task for task in tasks if "muster.fleet.power_grant" in task), "register": "found"},
        {"name": "Report", "ansible.builtin.debug": {"msg": "RESULT {{ inventory_hostname }} {{ found | to_json }}"}},
    ]
    document[0]["vars"] |= {"__gpu_burnin_wait": {"waves": "waiting", "waves_s": 0.5}, "__gpu_burnin_wave_wait_s": 1}
    # The role's own file would say otherwise.
    document[0]["vars_files"] = document[0]["vars_files"][:1]
    (fleet / "play.yml").write_text(yaml.safe_dump(document))
    done = play(fleet, ansible_playbook, 1, "--limit", "gpu-1")
    (result,) = results(done).values()
    who = f"in the fleet 1 may swing at a time: gpu-9 since {turns.counted()[0].since} (process {os.getpid()} on "
    assert (result["changed"], result["waves"]) == (False, "waiting")
    assert result["why"].startswith(f"it had no turn to swing its power within 1 s ({who}")
    assert f"gpu-1 waits for its turn: {who}" in done.stdout


@pytest.mark.slow
def test_a_host_whose_play_is_killed_keeps_its_turn_until_its_waves_must_be_over(
    fleet: Path, ansible_playbook: Playbook
) -> None:
    (fleet / "gpu-1/kills_its_play").touch()
    done = ansible_playbook("play.yml", inventory="gpu-1,")
    assert done.returncode != 0 and "dead state" in done.stdout + done.stderr
    (turn,) = Turns(fleet / "state/feeds", Limits(1)).counted()
    assert (turn.node, turn.feed) == ("gpu-1", "a") and not may_run(turn.owner)
    busy = Turns(fleet / "state/feeds", Limits(1)).take("gpu-2", "b", 0.5, 0.0, print)
    assert busy.endswith(f"gpu-1 until {turn.until} at the latest (its play, process {turn.owner.pid}, is gone)")
    after = datetime.fromisoformat(turn.until)
    assert (after - datetime.fromisoformat(turn.since)).total_seconds() == pytest.approx(0.5 + SLACK_S)
    assert Turns(fleet / "state/feeds", Limits(1), now=lambda: after).take("gpu-2", "b", 0.5, 0.0, print) == ""


@pytest.mark.slow
def test_a_run_that_a_lost_controller_left_waiting_is_joined_and_granted(
    fleet: Path, ansible_playbook: Playbook
) -> None:
    host = fleet / "gpu-1"
    environment = {
        **os.environ, "PATH": f"{fleet}/bin:{os.environ['PATH']}", "FAKE_HOST": str(host),
        "FAKE_PROGRAM": f"{sys.executable} {fleet}/burnin.py",
    }  # fmt: skip
    subprocess.run([fleet / "bin/gpu-burnin", "start", "--", "--level", "quick"], env=environment, check=True)
    done = ansible_playbook("play.yml", inventory="gpu-1,")
    assert done.returncode == 0, done.stdout + done.stderr
    assert results(done)["gpu-1"]["why"] == "joined the run in gpu-burnin-run.service"
    assert results(done)["gpu-1"]["waves"] == "over"
    assert "--level quick" in (host / "command").read_text(), "no second run was started"
