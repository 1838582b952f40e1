"""One thing that a worker is asked to do, and the words for how that ended. Loads neither CUDA nor NVML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin.engine.messages import Failed
from gpu_burnin.engine.plan import CheckPlan
from gpu_burnin.hardware.reasons import load_reasons
from gpu_burnin.system.host_limits import Scarce, Shortage, shortage
from gpu_burnin.types import CheckResult, Reason, Verdict, verdict_of

OUT_OF_MEMORY = "OUT_OF_MEMORY"


@dataclass(frozen=True)
class Step:
    """One thing a worker does: "open" the GPU, a "selftest", a "check", "close"."""

    op: str
    check: CheckPlan | None = None
    attempt: int = 0

    @property
    def name(self) -> str:
        """Name of the check, or of the step where it belongs to none."""
        return self.op if self.check is None else self.check.name

    def __str__(self) -> str:
        """How a person calls it."""
        return {"open": "its start", "selftest": f"the self-test of {self.name}"}.get(self.op, self.name)


class Early:
    """Reasons that came before a check's result, by check: from attempts that failed, and from its self-test."""

    def __init__(self) -> None:
        self._reasons: dict[str, list[Reason]] = {}

    def add(self, check: str, reason: Reason) -> None:
        """Keep one for the check's result."""
        self._reasons.setdefault(check, []).append(reason)

    def forget(self, check: str, code: str) -> None:
        """A riddle that has found its answer."""
        self._reasons[check] = [reason for reason in self._reasons.get(check, ()) if reason.code != code]

    def checks(self) -> tuple[str, ...]:
        """Those that still have to come to a result."""
        return tuple(self._reasons)

    def joined(self, result: CheckResult) -> CheckResult:
        """The result with what came before it; where a real fault of the self-test was comes first in its errors."""
        early = self._reasons.pop(result.name, [])
        if not early:
            return result
        reasons = (*early, *result.reasons)
        places = [reason.details for reason in early if reason.details.get("phase") == "self-test"]
        return replace(result, reasons=reasons, verdict=verdict_of(reasons), errors=(*places, *result.errors))


@dataclass(frozen=True)
class Failure:
    """Why a step could not be done, as code, sentence and severity of a reason."""

    code: str
    text: str
    severity: Verdict = Verdict.INCONCLUSIVE


def failed(message: Failed) -> Failure:
    """What a worker's word makes of it: nothing is known of the GPU, unless that reported a fault itself."""
    if message.code is not None:
        return Failure(message.code, message.message, load_reasons()[message.code].severity)
    if message.scarce is None:
        return Failure("CHECK_ERROR", message.message)
    return short_of(shortage(message.scarce), message.message)


def short_of(met: Shortage, message: str) -> Failure:
    """A step for which the host had too little; a limit that can be raised is named."""
    if met.by_limit:
        return Failure("HOST_LIMIT", f"{met.text} ({message})")
    return Failure(OUT_OF_MEMORY if met.kind is Scarce.MEMORY else "CHECK_ERROR", message)


def death(when: str, obituary: Mapping[str, Any]) -> str:
    """A sentence on a worker that ended by itself; `when` completes "the worker died ..."."""
    status = obituary["exit_status"]
    how = f"by signal {-status}" if isinstance(status, int) and status < 0 else f"with exit status {status}"
    return f"the worker died {when} ({how})"


def overran(name: str, seconds: float, *, wedged: bool) -> str:
    """A sentence on a worker that its deadline has ended, or has not: that one is wedged."""
    end = "and its worker could not be killed: it is left behind" if wedged else "and its worker was killed"
    return f"{name} did not end in {seconds:.0f} s {end}"


def gave_up(spent_s: float, most_s: float) -> str:
    """A sentence on what a run had no time for."""
    return (
        f"the run gave up after {spent_s:.0f} s, before this was done: a run of this level ends within "
        f"{most_s:.0f} s; the journal shows what took the time, and a longer level has more"
    )
