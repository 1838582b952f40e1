"""Power waves of many hosts: the role grants so many at a time, through the module, to burn-ins that ask for them.

Hosts are folders here, systemd is a script, and a burn-in is a process that asks by checks.power.grant_request itself.
"""

from __future__ import annotations

import hashlib
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
from ansible_collections.muster.fleet.plugins.module_utils import burnin
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.modules import burnin as module

from gpu_burnin.checks.power import grant_request as power_grant

ROOT = Path(__file__).resolve().parents[3]
Playbook = Callable[..., subprocess.CompletedProcess[str]]
BOOT_ID = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
SYSTEMCTL = """\
#!/bin/sh
for unit; do :; done
[ "$unit" = gpu-burnin-run.service ] && [ -e "$FAKE_HOST/busy" ] && echo ActiveState=active || echo ActiveState=inactive
"""
SYSTEMD_RUN = """\
#!/bin/sh
touch "$FAKE_HOST/busy"
echo "$@" > "$FAKE_HOST/command"
setsid {python} {script} "$FAKE_HOST" >"$FAKE_HOST/log" 2>&1 </dev/null &
"""
# What a run does with its waves, and what it leaves.
BURNIN = """\
import hashlib, json, sys, time
from pathlib import Path
sys.path.insert(0, {root!r})
from gpu_burnin.checks.power import grant_request as power_grant
host = Path(sys.argv[1])
if not (host / "asks_nothing").exists():
    request = power_grant.ask(host / "state/waves", 60.0, 0.5)
    until = time.monotonic() + 60
    while not power_grant.granted(host / "state/waves", request):
        assert time.monotonic() < until
        time.sleep(0.02)
    request = power_grant.move(host / "state/waves", request, power_grant.State.RUNNING)
    # The waves themselves, or until two hosts have begun theirs.
    until = time.monotonic() + (60 if (host.parent / "together").exists() else 0.5)
    while time.monotonic() < until:
        requests = [path.read_bytes() for path in host.parent.glob("*/state/waves/request.json")]
        if sum(b'"granted_at": null' not in text for text in requests) > 1:
            break
        time.sleep(0.02)
    power_grant.move(host / "state/waves", request, power_grant.State.OVER)
run = host / "state/runs/20260801T120000Z-000001"
run.mkdir(parents=True)
body = json.dumps({{"action": "none", "reasons": [], "warnings": [{{"code": "EXTENDED_WANTED"}}]}}).encode()
(run / "report.json").write_bytes(body)
(run / "evidence.json").write_text(json.dumps({{
    "report_sha256": hashlib.sha256(body).hexdigest(), "boot_id": {boot_id!r}, "verdict": "PASS", "level": "standard",
    "simulated": False, "finished_at": "2026-08-01T12:00:30Z",
}}))
(host / "busy").unlink()
"""


def executable(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder with three hosts, the scripts that stand for systemd and the program, and a play of the role's tasks."""
    (tmp_path / "bin").mkdir()
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        (tmp_path / name).mkdir()
    script = tmp_path / "burnin.py"
    script.write_text(BURNIN.format(root=str(ROOT), boot_id=BOOT_ID))
    executable(tmp_path / "bin/systemctl", SYSTEMCTL)
    executable(tmp_path / "bin/systemd-run", SYSTEMD_RUN.format(python=sys.executable, script=script))
    executable(tmp_path / "bin/gpu-burnin", "#!/bin/sh\nexit 0\n")
    role = ROOT / "roles/gpu_burnin"
    tasks = yaml.safe_load((role / "tasks/main.yml").read_text())
    names = [task["name"] for task in tasks]
    first, last = (next(i for i, name in enumerate(names) if words in name) for words in ("power waves", "Bring"))
    told = {"name": "Tell", "ansible.builtin.debug": {"msg": "RESULT {{ inventory_hostname }} {{ found | to_json }}"}}
    keys = ("verdict", "why", "waves", "changed", "burnin_warnings")
    pairs = ", ".join(f"'{key}': __gpu_burnin_result.{key} | default('')" for key in keys)
    play = {
        "hosts": "all",
        "gather_facts": False,
        "vars_files": [str(role / "defaults/main.yml"), str(role / "vars/main.yml")],
        "vars": {"found": "{{ {" + pairs + "} }}"},
        "environment": {
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "FAKE_HOST": f"{tmp_path}/{{{{ inventory_hostname }}}}",
        },
        "module_defaults": {
            "muster.fleet.burnin": {
                "state_dir": f"{tmp_path}/{{{{ inventory_hostname }}}}/state",
                "program": f"{tmp_path}/bin/gpu-burnin",
            }
        },
        "tasks": [*tasks[first:last], told],
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
    for path in fleet.glob("gpu-*/state/waves/request.json"):
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
    play(fleet, ansible_playbook, 1, "--check")
    assert not list(fleet.glob("*/command")), "a check run starts nothing"
    found = results(play(fleet, ansible_playbook, 1))
    assert {name: (result["verdict"], result["waves"]) for name, result in found.items()} == {
        "gpu-1": ("PASS", "over"), "gpu-2": ("PASS", "over"), "gpu-3": ("PASS", "none")
    }  # fmt: skip
    assert all(result["why"] == "no burn-in has been completed on this host" for result in found.values())
    assert found["gpu-1"]["burnin_warnings"] == [{"code": "EXTENDED_WANTED"}]
    assert most_at_once(fleet) == 1
    command = (fleet / "gpu-1/command").read_text()
    assert "run --level standard --waves granted --wave-wait " in command
    # Long enough for the last of three hosts, and never less than the role's own default.
    assert int(command.split("--wave-wait ")[1].split("s")[0]) >= 1800
    again = play(fleet, ansible_playbook, 1)
    assert again.stdout.count("changed=0") == 3
    assert {result["why"] for result in results(again).values()} == {"a pass of this boot exists"}


@pytest.mark.slow
def test_hosts_swing_at_the_same_time_where_the_site_stands_it(fleet: Path, ansible_playbook: Playbook) -> None:
    """What shows that the test above can fail, too."""
    (fleet / "together").touch()
    play(fleet, ansible_playbook, 3)
    assert most_at_once(fleet) == 2


@pytest.mark.slow
def test_a_run_that_a_lost_controller_left_waiting_is_joined_and_granted(
    fleet: Path, ansible_playbook: Playbook
) -> None:
    host = fleet / "gpu-1"
    (host / "busy").touch()
    process = subprocess.Popen([sys.executable, str(fleet / "burnin.py"), str(host)])
    try:
        done = ansible_playbook("play.yml", inventory="gpu-1,")
        assert done.returncode == 0, done.stdout + done.stderr
        assert process.wait(timeout=10) == 0
    finally:
        process.kill()
    assert results(done)["gpu-1"]["why"] == "joined the run in gpu-burnin-run.service"
    assert results(done)["gpu-1"]["waves"] == "over"
    assert not (host / "command").exists(), "no second run was started"


# --- the module's states ---


class FakeModule:
    """As much of AnsibleModule as the burnin module uses; `busy` says whether the run's unit is at work."""

    def __init__(self, state: Path, busy: Callable[[], bool], check_mode: bool = False, **params: Any) -> None:
        self.check_mode, self._busy = check_mode, busy
        self.params = {
            "phase": "waves", "level": "standard", "retest": False, "extended_s": 7200, "timeout_s": 1800,
            "extended_for_new": "", "waves": "granted", "wave_wait_s": None, "after_sequence": 0,
            "state_dir": str(state), "program": "/none/gpu-burnin", **params,
        }  # fmt: skip

    def run_command(self, command: list[str], check_rc: bool = False) -> tuple[int, str, str]:
        if command[0] == "systemctl":
            busy = command[-1] == "gpu-burnin-run.service" and self._busy()
            return 0, "ActiveState=active\n" if busy else "ActiveState=inactive\n", ""
        return 0, "", ""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """What happens on the host at each look of the module, instead of time that passes."""
    planned: list[Callable[[], Any]] = []

    def sleep(_: float) -> None:
        assert planned, "the module waits for something that does not come"
        planned.pop(0)()

    monkeypatch.setattr(module.time, "sleep", sleep)
    return planned


def phase(name: str, state: Path, busy: Callable[[], bool] = lambda: True, **params: Any) -> dict[str, Any]:
    return module.PHASES[name](module.Host(FakeModule(state, busy, phase=name, **params)))  # type: ignore[arg-type]


def granted(state: Path) -> str:
    path = state / "waves/grant"
    return path.read_text().strip() if path.exists() else ""


def test_waves_are_granted_once_asked_for_and_waited_for(tmp_path: Path, steps: list[Callable[[], Any]]) -> None:
    request(tmp_path / "waves")
    steps += [
        lambda: request(tmp_path / "waves", state="running", granted_at="2026-08-01T12:00:01Z"),
        lambda: request(tmp_path / "waves", state="over", granted_at="2026-08-01T12:00:01Z", over_at="x"),
    ]
    done = phase("waves", tmp_path)
    assert (done["changed"], done["waves"]) == (True, "over")
    assert granted(tmp_path) == "2026-08-01T12:00:00.000001Z"
    assert not steps


def test_a_worker_that_asks_anew_is_granted_anew(tmp_path: Path, steps: list[Callable[[], Any]]) -> None:
    request(tmp_path / "waves")
    steps += [
        lambda: request(tmp_path / "waves", asked_at="2026-08-01T12:00:09.000001Z"),
        lambda: request(tmp_path / "waves", asked_at=granted(tmp_path), state="over"),
    ]
    steps.insert(1, lambda: None)
    assert phase("waves", tmp_path)["waves"] == "over"
    assert granted(tmp_path) == "2026-08-01T12:00:09.000001Z"


@pytest.mark.parametrize("state", ["over", "given_up"])
def test_nothing_is_granted_where_nothing_is_asked(state: str, tmp_path: Path) -> None:
    assert not phase("waves", tmp_path)["changed"]
    request(tmp_path / "waves", state=state)
    assert phase("waves", tmp_path)["waves"] == state
    request(tmp_path / "waves")
    assert not phase("waves", tmp_path, busy=lambda: False)["changed"], "no run is at work"
    assert phase("waves", tmp_path, check_mode=True)["changed"]
    assert not granted(tmp_path)


def test_waves_of_a_burn_in_that_dies_are_waited_for_no_longer(tmp_path: Path, steps: list[Callable[[], Any]]) -> None:
    request(tmp_path / "waves")
    steps += [lambda: request(tmp_path / "waves", state="running", pid=2**22 + 1)]
    assert phase("waves", tmp_path)["waves"] == "none"


def test_a_check_that_breaks_off_does_not_keep_the_turn(
    tmp_path: Path, steps: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request stays as it was until the run ends, which may go on for hours without waves."""
    now = iter(range(0, 1000, 10))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(now)))
    request(tmp_path / "waves", waves_s=30.0)
    steps += [lambda: request(tmp_path / "waves", waves_s=30.0, state="running"), *[lambda: None] * 50]
    assert phase("waves", tmp_path)["waves"] == "running"
    assert next(now) <= 30 + module.WAVES_SLACK_S + 60
    assert steps


def test_waves_that_do_not_end_fail_the_task_with_what_to_do(tmp_path: Path) -> None:
    request(tmp_path / "waves", waves_s=0.0)
    with pytest.raises(FleetError, match=r"has not ended after 0 s and goes on.*run the play again"):
        phase("waves", tmp_path, timeout_s=0)


def test_the_first_phase_comes_back_when_waves_are_asked_for(tmp_path: Path, steps: list[Callable[[], Any]]) -> None:
    steps += [lambda: request(tmp_path / "waves", state="running"), lambda: request(tmp_path / "waves")]
    done = phase("run", tmp_path)
    assert (done["waves"], done["sequence_before"], done["ran"]) == ("waiting", 0, False)
    assert not granted(tmp_path), "that is for the phase with the throttle"
    assert not steps, "waves that are under way are no request"


def leave_result(state: Path) -> None:
    """A finished run of this boot, as gpu_burnin leaves it."""
    run = state / "runs/20260801T120000Z-000001"
    run.mkdir(parents=True)
    body = json.dumps({"action": "none", "reasons": []}).encode()
    (run / "report.json").write_bytes(body)
    statement = {
        "report_sha256": hashlib.sha256(body).hexdigest(), "boot_id": BOOT_ID, "verdict": "PASS", "level": "standard",
        "simulated": False, "finished_at": "2026-08-01T12:00:30Z",
    }  # fmt: skip
    (run / "evidence.json").write_text(json.dumps(statement))


def test_the_whole_run_in_one_task_grants_by_itself(tmp_path: Path, steps: list[Callable[[], Any]]) -> None:
    request(tmp_path / "waves")
    busy = [True]

    def over() -> None:
        request(tmp_path / "waves", state="over")
        leave_result(tmp_path)
        busy.clear()

    steps += [over]
    done = phase("all", tmp_path, busy=lambda: bool(busy))
    assert granted(tmp_path)
    assert (done["verdict"], done["waves"], done["ran"]) == ("PASS", "over", True)


def test_the_last_phase_waits_for_the_end_and_gives_the_result(tmp_path: Path, steps: list[Callable[[], Any]]) -> None:
    busy = [True]
    steps += [lambda: leave_result(tmp_path), busy.clear]
    done = phase("end", tmp_path, busy=lambda: bool(busy))
    assert (done["verdict"], done["changed"], done["gate_open"]) == ("PASS", True, True)
    with pytest.raises(FleetError, match="the burn-in ended without evidence"):
        phase("end", tmp_path, busy=lambda: False, after_sequence=1)


def test_a_wrong_duration_is_named(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="extended_for_new: 'soon' is not a duration"):
        phase("waves", tmp_path, extended_for_new="soon")


# --- what the module reads and writes ---


def request(directory: Path, **changes: Any) -> Path:
    """The request of a burn-in that lives (this process), in the form of gpu_burnin.checks.power.grant_request."""
    directory.mkdir(parents=True, exist_ok=True)
    fields = {
        "asked_at": "2026-08-01T12:00:00.000001Z", "boot_id": BOOT_ID, "pid": os.getpid(), "wait_s": 60.0,
        "waves_s": 12.5, "state": "waiting", "granted_at": None, "over_at": None, **changes,
    }  # fmt: skip
    path = directory / "request.json"
    path.write_text(json.dumps(fields))
    return path


def test_the_module_reads_what_the_burn_in_writes(tmp_path: Path) -> None:
    assert burnin.wave_request(tmp_path, BOOT_ID) == burnin.WaveRequest()
    asked = power_grant.ask(tmp_path / "waves", 60.0, 12.5)
    seen = burnin.wave_request(tmp_path, BOOT_ID)
    assert (seen.state, seen.open, seen.asked_at, seen.waves_s) == ("waiting", True, asked.asked_at, 12.5)
    burnin.grant_waves(tmp_path, seen)
    assert power_grant.granted(tmp_path / "waves", asked)
    assert (tmp_path / "waves/grant").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (tmp_path / "waves").iterdir()) == ["grant", "request.json"]
    over = power_grant.move(
        tmp_path / "waves",
        power_grant.move(tmp_path / "waves", asked, power_grant.State.RUNNING),
        power_grant.State.OVER,
    )
    seen = burnin.wave_request(tmp_path, BOOT_ID)
    assert (seen.state, seen.open, seen.granted_at, seen.over_at) == ("over", False, over.granted_at, over.over_at)


def test_a_grant_is_for_one_request_alone(tmp_path: Path) -> None:
    first = power_grant.ask(tmp_path / "waves", 60.0, 1.0)
    burnin.grant_waves(tmp_path, burnin.wave_request(tmp_path, BOOT_ID))
    assert power_grant.granted(tmp_path / "waves", first)
    second = power_grant.ask(tmp_path / "waves", 60.0, 1.0)
    assert not power_grant.granted(tmp_path / "waves", second)


@pytest.mark.parametrize("state", ["waiting", "running"])
def test_a_request_of_a_burn_in_that_is_gone_is_none(state: str, tmp_path: Path) -> None:
    request(tmp_path / "waves", state=state)
    assert burnin.wave_request(tmp_path, BOOT_ID).open
    assert burnin.wave_request(tmp_path, "another boot").state == "none"
    assert burnin.wave_request(tmp_path, BOOT_ID, proc=tmp_path / "no_such_proc").state == "none"
    request(tmp_path / "waves", state="over")
    assert burnin.wave_request(tmp_path, "another boot").state == "over", "what is over stays to be read"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"state": "waiting"}', '{"state": "waiting", "pid": "x"}'])
def test_a_damaged_request_is_named(text: str, tmp_path: Path) -> None:
    request(tmp_path / "waves").write_text(text)
    with pytest.raises(ValueError, match=r"request\.json is no request for power waves"):
        burnin.wave_request(tmp_path, BOOT_ID)
