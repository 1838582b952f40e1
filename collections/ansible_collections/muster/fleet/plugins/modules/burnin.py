#!/usr/bin/python
"""Ansible module: bring a GPU host to a burn-in result of its present boot."""

from __future__ import annotations

import time
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError, run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.burnin import (
    LEVELS,
    PROGRAM_SPEC,
    WAVES,
    Program,
    believed,
    decide,
    digests,
    duration_s,
    left_by_run,
    retested,
    run_options,
    sequence_of,
    stands,
    timeout,
    under_way,
    waiting_for_waves,
)

DOCUMENTATION = r"""
module: burnin
short_description: Run the GPU burn-in unless this boot has a result already
version_added: "0.1.0"
description:
  - Asks C(gpu-burnin status) for evidence of the present boot. A PASS stands when it is of the wanted level or
    above and the host's own gate accepts it; a FAIL or INCONCLUSIVE stands until O(retest).
  - Otherwise calls C(gpu-burnin start), whose systemd unit goes on when the controller is lost, and waits for the
    end of the run. A run found in progress (started by an earlier play, at boot or by a person) is joined.
  - FAIL and INCONCLUSIVE are results, not failures of the task. It fails when the run cannot start, leaves no
    evidence, or is still going on after O(timeout_s).
  - A play starts the runs of all its hosts with O(phase=start), and only then waits for them with O(phase=wait), so
    that they run beside each other however few hosts Ansible works on at a time.
  - With O(waves=granted) the run stops before the load of all GPUs swings together, and asks for a grant. So that few
    nodes swing at once, two more tasks follow, M(muster.fleet.power_grant), and this module with O(phase=end). A run
    that is granted nothing goes on without waves after O(wave_wait_s).
  - No run is started while a maintenance window of the host is near or open, by O(maintenance) or by what the host
    knows of its cloud's notices, but with O(despite_maintenance). Where nobody knows whether a window is near, the run
    starts.
  - In check mode nothing is started; C(changed) says whether a run would be.
options:
  phase:
    description:
      - C(all) is the whole run; it grants power waves as soon as they are asked for, without regard to other hosts.
      - C(start) ends with a result where no run is needed, else as soon as one is under way. C(wait) ends with its
        result or when it asks for power waves. C(end) waits for its end and returns its result.
    type: str
    version_added: "0.2.0"
    choices: [all, start, wait, end]
    default: all
  level:
    description: The level to run, and the lowest level of a pass that stands.
    type: str
    choices: [quick, standard, extended]
    default: standard
  retest:
    description:
      - Run again even when this boot has a result. The result of a run that was joined is enough where it is of the
        wanted level or above, or a FAIL.
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
    version_added: "0.2.0"
    default: ""
  waves:
    description: When a run started here may make power waves; empty, as the host's configuration says.
    type: str
    version_added: "0.2.0"
    choices: ["", always, granted, never]
    default: ""
  wave_wait_s:
    description: Seconds that a run waits for a grant of its power waves; not set, as the host's configuration says.
    type: int
    version_added: "0.2.0"
  after_sequence:
    description: >-
      With O(phase=wait) and O(phase=end), the number of the newest result before the run; a result that is not newer
      is none.
    type: int
    version_added: "0.2.0"
    default: 0
  joined:
    description:
      - With O(phase=wait) and O(phase=end), whether the run was found under way. Then another one may be needed after
        it, which O(phase=wait) does; O(phase=end) fails where O(retest) asks for more than the run did.
    type: bool
    version_added: "0.2.0"
    default: false
  maintenance:
    description: Which maintenance window of the host is near or open, as one sentence; empty for none.
    type: str
    version_added: "0.2.0"
    default: ""
  despite_maintenance:
    description: Start a run in a maintenance window too.
    type: bool
    version_added: "0.2.0"
    default: false
extends_documentation_fragment:
  - muster.fleet.check_mode
  - muster.fleet.program
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Run the burn-in of this boot
  muster.fleet.burnin:
    level: standard
  register: __gpu_burnin_result
"""

RETURN = r"""
waves:
  description: What became of the power waves, one of none (nothing was asked), waiting, running, over and given_up.
  returned: success, but for check mode
  type: str
under_way:
  description: True when a run is under way, whose result is still to come.
  returned: with O(phase=start), when that is so
  type: bool
joined:
  description: Whether that run was found under way, for O(joined).
  returned: with O(phase=start), when a run is under way
  type: bool
waves_s:
  description: How long the waves take that the run asks for, in seconds.
  returned: when the run asks for power waves
  type: float
sequence_before:
  description: Number of the newest result before this run, for O(after_sequence).
  returned: when a run is under way, or asks for power waves
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
postponed:
  description: True when a run is needed and was not started, for a maintenance window.
  returned: when that is so
  type: bool
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
  description: What the report says to do next, in one word.
  returned: when there is evidence
  type: str
order:
  description: The same as an order to a person (action, sentence, command, covered), and the smaller ones it covers.
  returned: when there is evidence
  type: dict
run_id:
  description: Name of the run.
  returned: when there is evidence
  type: str
report:
  description: Path of report.json on the host.
  returned: when there is evidence
  type: str
report_sha256:
  description: SHA-256 of that file, so that the controller need not fetch what it has.
  returned: when there is evidence and the file can be read
  type: str
page:
  description: Path of report.html on the host, the report for people.
  returned: when the run left one
  type: str
page_sha256:
  description: SHA-256 of that file.
  returned: when the run left one that can be read
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


class Host:
    """The host's side of the module: its gpu-burnin and what is asked of it."""

    def __init__(self, module: AnsibleModule) -> None:
        self.params = module.params
        self.check_mode: bool = module.check_mode
        self.program = Program(module)
        self.new_s = duration_s(self.params["extended_for_new"])
        longer_s = max(self.params["extended_s"] if self.params["level"] == "extended" else 0, self.new_s)
        self._deadline = time.monotonic() + self.params["timeout_s"] + longer_s

    @property
    def left_s(self) -> float:
        """How long may still be waited."""
        return self._deadline - time.monotonic()

    def maintenance(self, status: dict[str, Any]) -> str:
        """Which maintenance window keeps a run from starting, "" for none."""
        if self.params["despite_maintenance"]:
            return ""
        return str(self.params["maintenance"] or status["maintenance"]["near"])

    def start(self) -> None:
        """Start a run, unless one is under way."""
        level = None if self.new_s else self.params["level"]
        waves, wait_s = self.params["waves"], self.params["wave_wait_s"]
        self.program.start(run_options(level, self.params["extended_s"], waves, wait_s))

    def wait(self, event: str) -> dict[str, Any]:
        """The status once the run under way has ended, or (event power-request) once it asks for power waves.

        In the phase all that request is granted. Raises FleetError when the unit failed or the time is over.
        """
        while True:
            status = self.program.status("--wait-for", event, *timeout(self.left_s))
            if not status["unit"]["running"]:
                break
            if self.params["phase"] != "all":
                return status
            self.program.grant_and_wait(self.left_s)
        if status["unit"]["failed"]:
            unit = status["unit"]
            raise FleetError(f"{unit['name']} failed ({unit['failed']}): {unit['last_lines']}")
        return status


def bring_to_result(host: Host) -> dict[str, Any]:
    """Join or start what is needed, and give the task's result; in check mode only say what would be done.

    In the phase start it comes back as soon as a run is under way.
    """
    status = host.program.status()
    busy, unit = status["unit"]["running"], status["unit"]["name"]
    if busy and not host.params["retest"] and stands(status):
        # A test of an idle node may take hours; what passed before it is not waited for.
        decision = decide(status, level=host.params["level"], retest=False, maintenance="")
        if not decision.run:
            why = f"{decision.why}; a test of it is under way in {unit}"
            return {"changed": False, "ran": False, "why": why, "waves": "none"} | believed(status)
    if busy and host.check_mode:
        return {"changed": False, "ran": False, "why": f"a burn-in is going on in {unit}"} | believed(status)
    if busy and host.params["phase"] == "start":
        return under_way(f"joined the run in {unit}", sequence_of(status), joined=True)
    if busy:
        return result_of_joined(host, sequence_of(status))
    return run_where_needed(host, status, retest=host.params["retest"], joined="")


def result_of_joined(host: Host, before: int) -> dict[str, Any]:
    """Wait for a run that somebody else has started, and run another one where that is not enough."""
    status = host.wait("power-request")
    joined = f"joined the run in {status['unit']['name']}"
    if status["unit"]["running"]:
        return waiting_for_waves(status, joined, before)
    # What just ended is as fresh as any retest, where it is as deep.
    retest = host.params["retest"] and not retested(status, host.params["level"], before)
    return run_where_needed(host, status, retest=retest, joined=f"{joined}; ")


def run_where_needed(host: Host, status: dict[str, Any], *, retest: bool, joined: str) -> dict[str, Any]:
    """Start a run where one is needed, and give the task's result. `joined`: which one has just ended, "" for none."""
    decision = decide(status, level=host.params["level"], retest=retest, maintenance=host.maintenance(status))
    why, ended = f"{joined}{decision.why}", bool(joined)
    if decision.postponed:
        # What another boot has left is no result of this one.
        found = believed(status) if status["evidence"] and status["evidence"]["this_boot"] else {}
        return {"changed": ended, "ran": ended, "why": why, "postponed": True, "waves": "none"} | found
    if host.check_mode:
        return {"changed": decision.run, "ran": False, "why": why} | believed(status)
    if not decision.run:
        waves = status["power_grant"]["state"] if ended else "none"
        return {"changed": ended, "ran": ended, "why": why, "waves": waves} | believed(status)
    before = sequence_of(status)
    host.start()
    if host.params["phase"] == "start":
        return under_way(why, before, joined=False)
    return result_of_started(host, before, why)


def result_of_started(host: Host, before: int, why: str) -> dict[str, Any]:
    """Wait for the run that was started, until it has ended or asks for power waves."""
    status = host.wait("power-request")
    if status["unit"]["running"]:
        return waiting_for_waves(status, why, before)
    result = left_by_run(status, before)
    return {"changed": True, "ran": True, "why": why, "waves": status["power_grant"]["state"]} | result


def result_of_start(host: Host) -> dict[str, Any]:
    """Wait for what the phase start has left under way, as above."""
    before = host.params["after_sequence"]
    if host.check_mode:
        return {"changed": False, "ran": False, "why": "a run is waited for"}
    return (
        result_of_joined(host, before) if host.params["joined"] else result_of_started(host, before, "a run has ended")
    )


def result_of_run(host: Host) -> dict[str, Any]:
    """Wait for the end of the run that is under way and give its result."""
    if host.check_mode:
        return {"changed": False, "ran": False, "why": "a run is waited for"}
    status = host.wait("end")
    before, level = host.params["after_sequence"], host.params["level"]
    result = left_by_run(status, before)
    if host.params["joined"] and host.params["retest"] and not retested(status, level, before):
        found = f"the run that was joined ended {result['verdict']} at level {result['level']}"
        raise FleetError(f"{found}, and a retest of level {level} is asked for; run the play again")
    return {"changed": True, "ran": True, "why": "a run has ended", "waves": status["power_grant"]["state"]} | result


ARGUMENT_SPEC: dict[str, Any] = {
    **PROGRAM_SPEC,
    "phase": {"type": "str", "choices": ["all", "start", "wait", "end"], "default": "all"},
    "level": {"type": "str", "choices": list(LEVELS), "default": "standard"},
    "retest": {"type": "bool", "default": False},
    "extended_s": {"type": "int", "default": 7200},
    "extended_for_new": {"type": "str", "default": ""},
    "waves": {"type": "str", "choices": ["", *WAVES], "default": ""},
    "wave_wait_s": {"type": "int"},
    "after_sequence": {"type": "int", "default": 0},
    "joined": {"type": "bool", "default": False},
    "maintenance": {"type": "str", "default": ""},
    "despite_maintenance": {"type": "bool", "default": False},
}


def run(module: AnsibleModule) -> dict[str, Any]:
    """Do the phase asked for. Raises FleetError, OSError."""
    result = result_of_phase(module)
    return result | digests(result)


def result_of_phase(module: AnsibleModule) -> dict[str, Any]:
    """What the phase asked for returns. Raises FleetError, OSError."""
    host = Host(module)
    if module.check_mode and not host.program.installed:
        return {"changed": True, "ran": False, "why": "gpu-burnin is not installed on this host yet"}
    if module.params["phase"] == "end":
        return result_of_run(host)
    return result_of_start(host) if module.params["phase"] == "wait" else bring_to_result(host)


def main() -> None:
    """Entry point."""
    run_module(run, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
