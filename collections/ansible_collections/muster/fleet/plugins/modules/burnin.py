#!/usr/bin/python
"""Ansible module: bring a GPU host to a burn-in result of its present boot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, NoReturn

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.burnin import (
    LEVELS,
    Decision,
    Evidence,
    decide,
    is_busy,
    newest_evidence,
    parse_show,
    run_command,
    summary,
)

DOCUMENTATION = r"""
module: burnin
short_description: Run the GPU burn-in unless this boot has a result already
description:
  - Looks for evidence of the present boot under I(state_dir). A PASS stands when it is of the wanted level or
    above and the host's own gate accepts it; a FAIL or INCONCLUSIVE stands until I(retest).
  - Otherwise starts C(gpu-burnin run) in a transient systemd unit, which goes on when the controller is lost,
    and waits for its end. A run found in progress (started by an earlier play or by the boot) is joined.
  - FAIL and INCONCLUSIVE are results, not failures of the task. It fails when the run cannot start, leaves no
    evidence, or is still going on after I(timeout_s).
  - In check mode nothing is started; C(changed) says whether a run would be.
options:
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
    description: Longest time to wait for the end of a run, in seconds; I(extended_s) comes on top where it applies.
    type: int
    default: 1800
  state_dir:
    description: The burn-in's state directory.
    type: path
    default: /var/lib/gpu-burnin
  program:
    description: The gpu-burnin command.
    type: path
    default: /usr/local/bin/gpu-burnin
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


class Host:
    """The host's side of the module: its commands and files."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.state_dir = Path(module.params["state_dir"])
        self.program: str = module.params["program"]
        self.level: str = module.params["level"]
        self.extended_s: int = module.params["extended_s"]
        self.timeout_s: int = module.params["timeout_s"] + (self.extended_s if self.level == "extended" else 0)
        self.deadline = time.monotonic() + self.timeout_s

    def fail(self, message: str) -> NoReturn:
        """End the task; the message names the host."""
        self.module.fail_json(msg=f"{os.uname().nodename}: {message}")
        raise AssertionError("fail_json returned")

    def show(self, unit: str) -> dict[str, str]:
        """State of a unit, which need not exist."""
        _, out, _ = self.module.run_command(
            ["systemctl", "show", "--property=ActiveState,Result,ExecMainStatus", unit], check_rc=True
        )
        return parse_show(out)

    def busy_unit(self) -> str | None:
        """The unit that runs a burn-in now, if any."""
        return next((unit for unit in (RUN_UNIT, BOOT_UNIT) if is_busy(self.show(unit))), None)

    def wait(self, unit: str) -> None:
        """Wait for the end of a unit; ends the task when it failed or the deadline passes."""
        while is_busy(properties := self.show(unit)):
            if time.monotonic() >= self.deadline:
                self.fail(
                    f"the burn-in in {unit} has not ended after {self.timeout_s} s and goes on; "
                    f"see `journalctl -u {unit}`, then run the play again, which joins it, "
                    "or raise gpu_burnin_timeout_s"
                )
            time.sleep(POLL_S)
        if properties.get("ActiveState") == "failed":
            self.fail(f"{unit} failed ({properties.get('Result')}): {self.last_words(unit)}")

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
        command = run_command(self.program, self.level, self.extended_s, RUN_UNIT, PUBLISH_UNIT)
        code, _, err = self.module.run_command(command)
        if code != 0:
            self.fail(f"systemd-run cannot start the burn-in: {err.strip()}")


def run_and_wait(host: Host, before: Evidence | None) -> Evidence:
    """One burn-in from start to evidence; ends the task when it leaves none."""
    host.start()
    host.wait(RUN_UNIT)
    evidence = newest_evidence(host.state_dir)
    if evidence is None or (before is not None and evidence.sequence <= before.sequence):
        host.fail(f"the burn-in ended without evidence: {host.last_words(RUN_UNIT)}")
    if evidence.problem:
        host.fail(f"the burn-in left evidence that cannot be used: {evidence.problem}")
    return evidence


def bring_to_result(host: Host) -> dict[str, Any]:
    """Join or start what is needed, and give the task's result; in check mode only say what would be done."""
    check_mode, retest = host.module.check_mode, host.module.params["retest"]
    busy = host.busy_unit()
    if busy is not None and not check_mode:
        host.wait(busy)
        # What just ended is as fresh as any retest.
        retest = False
    evidence = newest_evidence(host.state_dir)
    gate_open, gate_message = host.gate() if evidence is not None else (False, "")
    decision = decide(
        evidence,
        boot_id=host.boot_id(),
        level=host.level,
        retest=retest,
        gate_open=gate_open,
        revoked=(host.state_dir / "revoked").exists(),
    )
    if busy is not None and check_mode:
        decision = Decision(False, f"a burn-in is going on in {busy}")
    ran = not check_mode and (busy is not None or decision.run)
    if decision.run and not check_mode:
        evidence = run_and_wait(host, evidence)
        gate_open, gate_message = host.gate()
    why = f"joined the run in {busy}; {decision.why}" if busy is not None and not check_mode else decision.why
    result = {"changed": decision.run or ran, "ran": ran, "why": why}
    if evidence is not None and not evidence.problem:
        result |= summary(evidence, gate_open=gate_open, gate_message=gate_message)
    return result


def main() -> None:
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "level": {"type": "str", "choices": list(LEVELS), "default": "standard"},
            "retest": {"type": "bool", "default": False},
            "extended_s": {"type": "int", "default": 7200},
            "timeout_s": {"type": "int", "default": 1800},
            "state_dir": {"type": "path", "default": "/var/lib/gpu-burnin"},
            "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
        },
        supports_check_mode=True,
    )
    host = Host(module)
    if not os.access(host.program, os.X_OK):
        if module.check_mode:
            module.exit_json(changed=True, ran=False, why="gpu-burnin is not installed on this host yet")
        host.fail(f"{host.program} is not installed; apply the role gpu_burnin to the whole host")
    result = bring_to_result(host)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
