"""A host's gpu-burnin as the modules ask it, whether the host needs a burn-in, and what a task returns of one.

Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

LEVELS = ("quick", "standard", "extended")
WAVES = ("always", "granted", "never")
# What both modules take: where the program and its configuration are.
PROGRAM_SPEC: dict[str, Any] = {
    "program": {"type": "path", "default": "/usr/local/bin/gpu-burnin"},
    "config": {"type": "path"},
    "timeout_s": {"type": "int", "default": 1800},
}
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EXIT_INCONCLUSIVE = 3


@dataclass(frozen=True)
class Decision:
    """Whether to run, and why, as one clause without a full stop. `postponed`: a run is needed and must wait."""

    run: bool
    why: str
    postponed: bool = False


class Program:
    """The host's gpu-burnin."""

    def __init__(self, module: AnsibleModule) -> None:
        self._module = module
        self._path: str = module.params["program"]
        self._config = ["--config", module.params["config"]] if module.params["config"] else []

    @property
    def installed(self) -> bool:
        """Whether the program is there."""
        return os.access(self._path, os.X_OK)

    def status(self, *options: str) -> dict[str, Any]:
        """What `gpu-burnin status` says. Raises FleetError."""
        return self._ask("status", *self._config, *options)

    def start(self, options: Sequence[str]) -> None:
        """Start a run with these options of `gpu-burnin run`, unless one is under way. Raises FleetError."""
        self._ask("start", "--", *self._config, *options)

    def grant_and_wait(self, timeout_s: float) -> str:
        """Grant power waves and wait until they are over; the state of the request then. Raises FleetError."""
        return str(self._ask("power-grant", *self._config, "--wait", *timeout(timeout_s))["state"])

    def _ask(self, command: str, *options: str) -> dict[str, Any]:
        if not self.installed:
            raise FleetError(f"{self._path} is not installed; apply the role gpu_burnin to the whole host")
        code, out, err = self._module.run_command([self._path, command, "--json", *options])
        if code != 0:
            text = err.strip() or f"gpu-burnin {command} ended with exit code {code} and said nothing"
            message = text.splitlines()[-1].removeprefix("gpu-burnin: ").removeprefix(f"{os.uname().nodename}: ")
            # Only what was waited for and did not come ends so.
            again = "; run the play again, which joins it, or raise gpu_burnin_timeout_s"
            raise FleetError(message + (again if code == _EXIT_INCONCLUSIVE else ""))
        try:
            return dict(json.loads(out))
        except ValueError as error:
            raise FleetError(f"gpu-burnin {command} --json did not answer in JSON ({error})") from error


def timeout(seconds: float) -> list[str]:
    """The option of `gpu-burnin status` and `power-grant`: whole seconds, 1 or more."""
    return ["--timeout", f"{max(1, round(seconds))}s"]


def decide(status: Mapping[str, Any], *, level: str, retest: bool, maintenance: str = "") -> Decision:
    """Whether the host of this status (`gpu-burnin status --json`) needs a burn-in, and whether it may begin now.

    A FAIL or INCONCLUSIVE of this boot stands until somebody asks for a retest, and so does a revocation. A PASS
    stands when it, or one of this boot that it follows, was of the wanted `level` at least, and the host's own gate
    accepts it. `maintenance` says which window is near or open, "" for none.
    """
    needed = _needed(status, level=level, retest=retest)
    if not needed.run or not maintenance:
        return needed
    # A test that the maintenance interrupts would look like a fault of the host.
    why = f"{needed.why}, but nothing begins in a maintenance window ({maintenance}); run it again when that is over"
    return Decision(False, why, postponed=True)


def _needed(status: Mapping[str, Any], *, level: str, retest: bool) -> Decision:
    evidence = status["evidence"]
    if retest:
        return Decision(True, "a retest was asked for")
    if evidence is None:
        return Decision(True, "no burn-in has been completed on this host")
    if evidence["problem"]:
        return Decision(True, evidence["problem"])
    if not evidence["this_boot"]:
        return Decision(True, "the host was started again since its last burn-in")
    if evidence["level"] == "watch" and any(reason["code"] == "HARDWARE_CHANGED" for reason in evidence["reasons"]):
        return Decision(True, "the GPUs or the driver are not those that were tested")
    if evidence["level"] == "watch":
        found = "; ".join(f"{reason['code']}: {reason['message']}" for reason in evidence["reasons"])
        why = f"its agent took the pass of this boot back at {evidence['finished_at']} ({found})"
        return Decision(False, f"{why}; playbooks/repair.yml does what this asks for, and a retest tests it as it is")
    if evidence["verdict"] != "PASS":
        return Decision(False, f"the {evidence['verdict']} of this boot stands until a retest is asked for")
    passed = evidence.get("passed_level") or evidence["level"]
    if level not in LEVELS or passed not in LEVELS:
        raise ValueError(f"level {level!r} or {passed!r} is not one of {', '.join(LEVELS)}")
    if LEVELS.index(passed) < LEVELS.index(level):
        return Decision(True, f"this boot passed at {passed}; {level} is required")
    if status["revoked"] is not None:
        return Decision(False, "the gate was closed by hand or by the cluster; it opens after a retest")
    if not stands(status):
        return Decision(True, "the gate does not accept the pass of this boot")
    return Decision(False, "a pass of this boot exists")


def stands(status: Mapping[str, Any]) -> bool:
    """Whether kubelet may start on the host, or start again while a test of it is under way."""
    return bool(status["gate"]["open"] or status["gate"].get("under_test"))


def retested(status: Mapping[str, Any], level: str, before: int) -> bool:
    """Whether a run that was joined serves as a retest of `level`: it left a result newer than `before`, of that level.

    A FAIL of a lower level serves too. What passed earlier in this boot counts for nothing.
    """
    evidence = status["evidence"]
    if sequence_of(status) <= before or evidence["problem"] or not evidence["this_boot"]:
        return False
    found = evidence["level"]
    return evidence["verdict"] == "FAIL" or (found in LEVELS and LEVELS.index(found) >= LEVELS.index(level))


def duration_s(text: str) -> int:
    """Seconds of a time like 90s, 30m, 2h or 1d; 0 for an empty one. Raises FleetError."""
    if not text:
        return 0
    match = re.fullmatch(r"(\d+)\s*([smhd])", text.strip())
    if not match:
        raise FleetError(f"extended_for_new: {text!r} is not a duration; write it as 90s, 30m, 2h or 1d")
    return int(match[1]) * _UNIT_S[match[2]]


def run_options(level: str | None, extended_s: int, waves: str, wave_wait_s: int | None) -> list[str]:
    """Options of `gpu-burnin run`; what is empty or None is left to the host's configuration."""
    return [
        *(["--level", level] if level else []),
        # Only the level extended has a length of its own.
        *(["--for", f"{extended_s}s"] if level == "extended" else []),
        *(["--waves", waves] if waves else []),
        *(["--wave-wait", f"{wave_wait_s}s"] if wave_wait_s is not None else []),
    ]


def sequence_of(status: Mapping[str, Any]) -> int:
    """The number of the newest result, 0 for none."""
    return int(status["evidence"]["sequence"]) if status["evidence"] else 0


def summary(status: Mapping[str, Any]) -> dict[str, Any]:
    """What the module returns about the newest evidence. Raises FleetError when the gate itself does not work."""
    evidence, gate = status["evidence"], status["gate"]
    if gate["exit_code"] not in (0, 1, _EXIT_INCONCLUSIVE):
        raise FleetError(gate["message"])
    keys = (
        "verdict",
        "reasons",
        "action",
        "order",
        "run_id",
        "level",
        "sequence",
        "simulated",
        "boot_id",
        "finished_at",
        "report",
    )
    return {
        **{key: evidence[key] for key in keys},
        "burnin_warnings": evidence["warnings"],
        # Version 0.1.0 left none.
        **({"page": evidence["page"]} if evidence["page"] else {}),
        "gate_open": stands(status),
        "gate_message": "" if stands(status) else gate["message"],
    }


def left_by_run(status: dict[str, Any], before: int) -> dict[str, Any]:
    """The result of a run that has ended. Raises FleetError when there is none newer than `before`."""
    if sequence_of(status) <= before:
        raise FleetError(f"the burn-in ended without evidence: {status['unit']['last_lines']}")
    if status["evidence"]["problem"]:
        raise FleetError(f"the burn-in left evidence that cannot be used: {status['evidence']['problem']}")
    return summary(status)


def waiting_for_waves(status: dict[str, Any], why: str, before: int) -> dict[str, Any]:
    """The result of a run that stops at its power waves; `before` numbers the newest result then."""
    waves_s = status["power_grant"]["waves_s"]
    return {
        "changed": True,
        "ran": False,
        "why": why,
        "waves": "waiting",
        "waves_s": waves_s,
        "sequence_before": before,
    }


def under_way(why: str, before: int, *, joined: bool) -> dict[str, Any]:
    """The result of the phase start where a run goes on."""
    return {
        "changed": not joined,
        "ran": False,
        "why": why,
        "under_way": True,
        "joined": joined,
        "sequence_before": before,
    }


def believed(status: dict[str, Any]) -> dict[str, Any]:
    """What the newest evidence says, nothing when there is none that can be believed."""
    return summary(status) if status["evidence"] and not status["evidence"]["problem"] else {}


def digests(result: Mapping[str, Any]) -> dict[str, str]:
    """Of report and page, as far as they are there: a run that the host has forgotten has none."""
    files = {f"{key}_sha256": Path(result[key]) for key in ("report", "page") if result.get(key)}
    return {key: hashlib.sha256(path.read_bytes()).hexdigest() for key, path in files.items() if path.is_file()}
