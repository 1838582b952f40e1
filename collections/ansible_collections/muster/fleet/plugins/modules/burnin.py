#!/usr/bin/python
"""Ansible module: bring a GPU host to a burn-in result of its present boot."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.burnin import (
    LEVELS,
    WAVES,
    Decision,
    Evidence,
    WaveRequest,
    asked_for_waves,
    decide,
    duration_s,
    grant_waves,
    is_busy,
    newest_evidence,
    parse_show,
    run_command,
    sequence_of,
    summary,
    wave_options,
    wave_request,
)
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module

DOCUMENTATION = r"""
module: burnin
short_description: Run the GPU burn-in unless this boot has a result already
version_added: "0.1.0"
description:
  - Looks for evidence of the present boot under O(state_dir). A PASS stands when it is of the wanted level or
    above and the host's own gate accepts it; a FAIL or INCONCLUSIVE stands until O(retest).
  - Otherwise starts C(gpu-burnin run) in a transient systemd unit, which goes on when the controller is lost,
    and waits for its end. A run found in progress (started by an earlier play or by the boot) is joined.
  - FAIL and INCONCLUSIVE are results, not failures of the task. It fails when the run cannot start, leaves no
    evidence, or is still going on after O(timeout_s).
  - With O(waves=granted) the run stops before the load of all GPUs swings together, and asks for a grant. So that few
    nodes swing at once, a play has three tasks, with O(phase) run, waves and end, the middle one with C(throttle). A
    run that is granted nothing goes on without waves after O(wave_wait_s).
  - In check mode nothing is started; C(changed) says whether a run would be.
options:
  phase:
    description:
      - C(all) is the whole run; it grants power waves as soon as they are asked for, without regard to other hosts.
      - C(run) ends with a result or when the run asks for power waves. O(waves) grants them and waits until they are
        over, if any are asked for. C(end) waits for the end of the run and returns its result.
    type: str
    choices: [all, run, waves, end]
    default: all
  level:
    description: The level to run, and the lowest level of a pass that stands.
    type: str
    choices: [quick, standard, extended]
    default: standard
  retest:
    description: Run again even when this boot has a result.
    type: bool
    default: false
  extended_s:
    description: How long a run of the level extended lasts, in seconds.
    type: int
    default: 7200
  timeout_s:
    description: Longest time to wait in each phase, in seconds; O(extended_s) or the length of the waves come on top.
    type: int
    default: 1800
  extended_for_new:
    description:
      - A time such as 2h when the host's configuration makes a run with a new GPU an extended one of that length. Then
        the level is left to it, and the time to wait is longer.
    type: str
    default: ""
  waves:
    description: When a run started here may make power waves; empty, as the host's configuration says.
    type: str
    choices: ["", always, granted, never]
    default: ""
  wave_wait_s:
    description: Seconds that a run waits for a grant of its power waves; not set, as the host's configuration says.
    type: int
  after_sequence:
    description: With O(phase=end), the number of the newest result before the run; a result that is not newer is none.
    type: int
    default: 0
  state_dir:
    description: The burn-in's state directory.
    type: path
    default: /var/lib/gpu-burnin
  program:
    description: The gpu-burnin command.
    type: path
    default: /usr/local/bin/gpu-burnin
extends_documentation_fragment:
  - muster.fleet.check_mode
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Have a burn-in result of this boot
  muster.fleet.burnin:
    level: standard
  register: __gpu_burnin_result
"""

RETURN = r"""
waves:
  description: What became of the power waves, one of none (nothing was asked), waiting, running, over and given_up.
  returned: success, but for check mode
  type: str
sequence_before:
  description: Number of the newest result before this run, for O(after_sequence).
  returned: when the run asks for power waves
  type: int
burnin_warnings:
  description: What the report warns of (code, check, gpu, message, evidence), such as C(EXTENDED_WANTED).
  returned: when there is evidence
  type: list
  elements: dict
why:
  description: Why it ran, or why it did not, as one clause.
  returned: success
  type: str
ran:
  description: Whether a burn-in ended during this task, whoever started it.
  returned: success
  type: bool
verdict:
  description: PASS, FAIL or INCONCLUSIVE; absent in check mode when there is no evidence yet.
  returned: when there is evidence
  type: str
reasons:
  description: The report's reasons (code, check, gpu, message, evidence).
  returned: when there is evidence
  type: list
  elements: dict
action:
  description: What the report says to do next.
  returned: when there is evidence
  type: str
run_id:
  description: Name of the run.
  returned: when there is evidence
  type: str
report:
  description: Path of report.json on the host.
  returned: when there is evidence
  type: str
page:
  description: Path of report.html on the host, the report for people.
  returned: when the run left one
  type: str
gate_open:
  description: Whether the host's own gate lets kubelet start now.
  returned: when there is evidence
  type: bool
gate_message:
  description: The gate's own sentence when it is closed.
  returned: when there is evidence
  type: str
"""

RUN_UNIT = "gpu-burnin-run.service"
BOOT_UNIT = "gpu-burnin-boot.service"
PUBLISH_UNIT = "gpu-burnin-publish.service"
POLL_S = 0.5
# How much longer than they should power waves may take, from when they were granted.
WAVES_SLACK_S = 60.0
NEVER_S = float("inf")


class Host:
    """The host's side of the module: its commands and files."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.state_dir = Path(module.params["state_dir"])
        self.program: str = module.params["program"]
        self.level: str = module.params["level"]
        self.extended_s: int = module.params["extended_s"]
        try:
            self.new_s = duration_s(module.params["extended_for_new"])
        except ValueError as error:
            self.fail(f"extended_for_new: {error}")
        longer_s = max(self.extended_s if self.level == "extended" else 0, self.new_s)
        self.timeout_s: int = module.params["timeout_s"] + longer_s
        self.deadline = time.monotonic() + self.timeout_s

    def fail(self, message: str) -> NoReturn:
        """End the task."""
        raise FleetError(message)

    def show(self, unit: str) -> dict[str, str]:
        """State of a unit, which need not exist."""
        _, out, _ = self.module.run_command(
            ["systemctl", "show", "--property=ActiveState,Result,ExecMainStatus", unit], check_rc=True
        )
        return parse_show(out)

    def busy_unit(self) -> str | None:
        """The unit that runs a burn-in now, if any."""
        return next((unit for unit in (RUN_UNIT, BOOT_UNIT) if is_busy(self.show(unit))), None)

    def waves(self) -> WaveRequest:
        """What the burn-in says of its power waves."""
        try:
            return wave_request(self.state_dir, self.boot_id())
        except (OSError, ValueError) as error:
            self.fail(f"{error}; remove it")

    def grant(self, request: WaveRequest) -> None:
        """Grant the request."""
        try:
            grant_waves(self.state_dir, request)
        except OSError as error:
            self.fail(f"power waves cannot be granted: {error}; make room or mend {self.state_dir}/waves")

    def wait(self, unit: str, asked: Callable[[WaveRequest], bool]) -> bool:
        """Wait for the end of a unit; True before that when `asked` says so of a request that waits.

        Ends the task when the unit failed or the deadline passes.
        """
        while is_busy(properties := self.show(unit)):
            request = self.waves()
            if request.state == "waiting" and asked(request):
                return True
            self.pause(unit)
        if properties.get("ActiveState") == "failed":
            self.fail(f"{unit} failed ({properties.get('Result')}): {self.last_words(unit)}")
        return False

    def pause(self, unit: str) -> None:
        """Until the next look; ends the task when the deadline has passed."""
        if time.monotonic() >= self.deadline:
            self.fail(
                f"the burn-in in {unit} has not ended after {self.timeout_s} s and goes on; "
                f"see `journalctl -u {unit}`, then run the play again, which joins it, "
                "or raise gpu_burnin_timeout_s"
            )
        time.sleep(POLL_S)

    def last_words(self, unit: str) -> str:
        """The last lines a unit wrote."""
        _, out, _ = self.module.run_command(["journalctl", "--unit", unit, "--lines=5", "--output=cat", "--no-pager"])
        return " / ".join(line.strip() for line in out.splitlines() if line.strip()) or "it wrote nothing"

    def gate(self) -> tuple[bool, str]:
        """Whether the gate is open, and its sentence when it is not."""
        code, out, err = self.module.run_command([self.program, "gate"])
        said = (err.strip() or out.strip()).splitlines()
        sentence = said[-1] if said else f"gpu-burnin gate ended with exit code {code} and said nothing"
        if code not in (0, 1, 3):
            self.fail(f"gpu-burnin gate does not work: {sentence}")
        return code == 0, "" if code == 0 else sentence

    def boot_id(self) -> str:
        """The present boot's id."""
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()

    def start(self) -> None:
        """Start a run in its transient unit."""
        if self.show(RUN_UNIT).get("ActiveState") == "failed":
            # A unit left failed by an earlier configuration error would keep its name occupied.
            self.module.run_command(["systemctl", "reset-failed", RUN_UNIT], check_rc=True)
        level = None if self.new_s else self.level
        leave = wave_options(self.module.params["waves"], self.module.params["wave_wait_s"])
        command = run_command(self.program, level, self.extended_s, RUN_UNIT, PUBLISH_UNIT, leave)
        code, _, err = self.module.run_command(command)
        if code != 0:
            self.fail(f"systemd-run cannot start the burn-in: {err.strip()}")

    def left_by_run(self, before: int) -> Evidence:
        """The evidence of a run that has ended; ends the task when there is none newer than `before`."""
        evidence = newest_evidence(self.state_dir)
        if evidence is None or evidence.sequence <= before:
            self.fail(f"the burn-in ended without evidence: {self.last_words(RUN_UNIT)}")
        if evidence.problem:
            self.fail(f"the burn-in left evidence that cannot be used: {evidence.problem}")
        return evidence


def bring_to_result(host: Host) -> dict[str, Any]:
    """Join or start what is needed, and give the task's result; in check mode only say what would be done.

    In the phase run it comes back early when the run asks for power waves.
    """
    check_mode, retest = host.module.check_mode, host.module.params["retest"]

    def asked(request: WaveRequest) -> bool:
        if host.module.params["phase"] == "run":
            return True
        host.grant(request)
        return False

    if (busy := host.busy_unit()) is not None and not check_mode:
        before = sequence_of(newest_evidence(host.state_dir))
        if host.wait(busy, asked):
            return asked_for_waves(f"joined the run in {busy}", before)
        # What just ended is as fresh as any retest.
        retest = False
    evidence = newest_evidence(host.state_dir)
    gate_open, gate_message = host.gate() if evidence is not None else (False, "")
    revoked = (host.state_dir / "revoked").exists()
    decision = decide(
        evidence, boot_id=host.boot_id(), level=host.level, retest=retest, gate_open=gate_open, revoked=revoked
    )
    if busy is not None and check_mode:
        decision = Decision(False, f"a burn-in is going on in {busy}")
    ran = not check_mode and (busy is not None or decision.run)
    if decision.run and not check_mode:
        host.start()
        if host.wait(RUN_UNIT, asked):
            return asked_for_waves(decision.why, sequence_of(evidence))
        evidence = host.left_by_run(sequence_of(evidence))
        gate_open, gate_message = host.gate()
    why = f"joined the run in {busy}; {decision.why}" if busy is not None and not check_mode else decision.why
    result = {"changed": decision.run or ran, "ran": ran, "why": why}
    if not check_mode:
        result["waves"] = host.waves().state if ran else "none"
    if evidence and not evidence.problem:
        result |= summary(evidence, gate_open=gate_open, gate_message=gate_message)
    return result


def let_swing(host: Host) -> dict[str, Any]:
    """Grant the power waves that are asked for and wait until they are over; nothing on a host that does not ask."""
    request = host.waves()
    unit = host.busy_unit()
    if unit is None or not request.open:
        return {"changed": False, "ran": False, "why": "no burn-in asks for power waves", "waves": request.state}
    if host.module.check_mode:
        return {"changed": True, "ran": False, "why": "a burn-in asks for power waves"}
    host.deadline += request.waves_s
    granted, over_by = "", NEVER_S
    while request.open and time.monotonic() < over_by:
        # A worker that dies is followed by another, which asks anew.
        if request.state == "waiting" and request.asked_at != granted:
            host.grant(request)
            granted, over_by = request.asked_at, NEVER_S
        # A check that broke off does not say so; others wait for the turn.
        if request.state == "running" and over_by == NEVER_S:
            over_by = time.monotonic() + request.waves_s + WAVES_SLACK_S
        host.pause(unit)
        request = host.waves()
    return {"changed": True, "ran": False, "why": "a burn-in asked for power waves", "waves": request.state}


def result_of_run(host: Host) -> dict[str, Any]:
    """Wait for the end of the run that is under way and give its result."""
    unit = host.busy_unit()
    if host.module.check_mode:
        return {"changed": False, "ran": False, "why": "a run is waited for"}
    if unit is not None:
        host.wait(unit, lambda _: False)
    evidence = host.left_by_run(host.module.params["after_sequence"])
    gate_open, gate_message = host.gate()
    result = {"changed": True, "ran": True, "why": "a run has ended", "waves": host.waves().state}
    return result | summary(evidence, gate_open=gate_open, gate_message=gate_message)


PHASES: dict[str, Callable[[Host], dict[str, Any]]] = {
    "all": bring_to_result,
    "run": bring_to_result,
    "waves": let_swing,
    "end": result_of_run,
}


ARGUMENT_SPEC: dict[str, Any] = {
    "phase": {"type": "str", "choices": list(PHASES), "default": "all"},
    "level": {"type": "str", "choices": list(LEVELS), "default": "standard"},
    "retest": {"type": "bool", "default": False},
    "extended_s": {"type": "int", "default": 7200},
    "timeout_s": {"type": "int", "default": 1800},
    "extended_for_new": {"type": "str", "default": ""},
    "waves": {"type": "str", "choices": ["", *WAVES], "default": ""},
    "wave_wait_s": {"type": "int"},
    "after_sequence": {"type": "int", "default": 0},
    "state_dir": {"type": "path", "default": "/var/lib/gpu-burnin"},
    "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
}


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do the phase asked for. Raises FleetError, OSError."""
    host = Host(module)
    if not os.access(host.program, os.X_OK):
        if module.check_mode:
            return {"changed": True, "ran": False, "why": "gpu-burnin is not installed on this host yet"}
        host.fail(f"{host.program} is not installed; apply the role gpu_burnin to the whole host")
    return PHASES[module.params["phase"]](host)


def main() -> None:
    """Entry point."""
    run_module(run, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
