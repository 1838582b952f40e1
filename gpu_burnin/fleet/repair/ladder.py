"""Which rung of the ladder is next for a node: from what it says of itself and from what was done before. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from gpu_burnin.api.evidence import WATCHED
from gpu_burnin.api.record import PowerCycle
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.types import OMIT_DEFAULT, Action, Verdict

# How long a step counts for a fault that comes back: a GPU that needs a reset each week is the technician's.
MEMORY = timedelta(days=30)
# A rung whose controller was lost before it showed an effect is climbed once more, and not a third time.
MOST_ATTEMPTS = 2
_ABSENT = {OMIT_DEFAULT: True}


class Rung(StrEnum):
    """What is done to a node, mildest first. The machine is tested after each but the last."""

    RETEST = "retest"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"
    POWER_CYCLE = "power_cycle"
    HOLD = "hold"

    @property
    def rank(self) -> int:
        """Position on the ladder, 0 for the mildest."""
        return list(Rung).index(self)

    @property
    def boots(self) -> bool:
        """Whether the machine boots again by it."""
        return self in (Rung.REBOOT, Rung.POWER_CYCLE)


# The rung of an action. What the reasons ask of a person is tested once more before a person is asked.
_RUNGS: Mapping[Action, Rung] = {
    Action.NONE: Rung.RETEST,
    Action.RETEST: Rung.RETEST,
    Action.RESET_GPU: Rung.RESET_GPU,
    Action.REBOOT: Rung.REBOOT,
    Action.POWER_CYCLE: Rung.POWER_CYCLE,
    Action.REPAIR: Rung.HOLD,
    Action.HOLD: Rung.HOLD,
}
# What comes after a rung that did not clear the fault. A test that finds it again needs a person, as in judge.ladder.
_AFTER: Mapping[Rung, Rung] = {
    Rung.RETEST: Rung.HOLD,
    Rung.RESET_GPU: Rung.REBOOT,
    Rung.REBOOT: Rung.POWER_CYCLE,
    Rung.POWER_CYCLE: Rung.HOLD,
    Rung.HOLD: Rung.HOLD,
}


class StepState(StrEnum):
    """How far a step came. `failed`: the rung itself could not be done, such as a reset that the driver refuses."""

    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, order=True)
class Fault:
    """One fault as the ladder knows it again: code and GPU UUID, "" for the node."""

    code: str
    gpu: str = ""


@dataclass(frozen=True)
class Step:
    """One rung that was climbed. Boot and machine are those in which it began, verdict and run the test's after it."""

    rung: Rung
    faults: tuple[Fault, ...]
    began_at: str
    boot_id: str
    machine_id: str
    who: str
    state: StepState = StepState.BEGUN
    attempt: int = 1
    ended_at: str = field(default="", metadata=_ABSENT)
    message: str = field(default="", metadata=_ABSENT)
    verdict: str = field(default="", metadata=_ABSENT)
    run_id: str = field(default="", metadata=_ABSENT)


@dataclass(frozen=True)
class Found:
    """What a node says of itself now. `stale` is why its newest report says nothing of this boot, "" where it does.

    `gate` is why its own gate is closed, "" where it is open. `reached`: it answered.
    `said` is what speaks against it, in words.
    """

    reached: bool
    boot_id: str = ""
    machine_id: str = ""
    verdict: str = ""
    action: Action = Action.NONE
    faults: tuple[Fault, ...] = ()
    run_id: str = ""
    level: str = ""
    stale: str = ""
    gate: str = ""
    said: str = "its newest report"

    @property
    def blamed(self) -> tuple[Fault, ...]:
        """The faults that a step is about: none where the report says nothing of this boot."""
        return () if self.stale or self.verdict == Verdict.PASS else self.faults

    @property
    def passes(self) -> bool:
        """Whether nothing is left to repair."""
        return self.reached and not self.stale and self.verdict == Verdict.PASS and not self.gate


@dataclass(frozen=True)
class Next:
    """The next rung, None where there is nothing to do, and why, as one clause.

    `resumes`: the step before was begun and its end is not known; `done` says that it had its effect.
    """

    rung: Rung | None
    why: str
    resumes: bool = False
    done: bool = False


def found_of(look: Mapping[str, Any] | None) -> Found:
    """What `gpu-burnin repair look --json` says; None where the node did not answer."""
    if not look:
        return Found(reached=False)
    status: Mapping[str, Any] = look["status"]
    evidence: Mapping[str, Any] | None = status["evidence"]
    gate = "" if status["gate"]["open"] else str(status["gate"]["message"])
    here = Found(True, str(look["boot_id"]), str(look["machine_id"]), gate=gate)
    if status["unit"]["running"]:
        return replace(here, stale="a burn-in is under way")
    if evidence is None:
        return replace(here, stale="it has no report")
    if evidence["problem"]:
        return replace(here, stale=f"its newest report cannot be used ({evidence['problem']})")
    reasons = evidence["reasons"]
    stale = ""
    if not evidence["this_boot"]:
        stale = "its newest report is of another boot"
    elif any(reason["code"] == "INJECTED" for reason in reasons):
        stale = "its newest report is of a run with injected faults"
    return replace(
        here,
        verdict=str(evidence["verdict"]),
        action=Action(evidence["action"]),
        faults=tuple(sorted({Fault(reason["code"], reason["gpu"] or "") for reason in reasons})),
        run_id=str(evidence["run_id"]),
        level=str(evidence["level"]),
        stale=stale,
        said=_evidence_message(evidence),
    )


def _evidence_message(evidence: Mapping[str, Any]) -> str:
    """What speaks against the node: a report, or the words of its agent, of which there is none."""
    if evidence["level"] != WATCHED:
        return "its newest report"
    words = "; ".join(str(reason["message"]) for reason in evidence["reasons"])
    return f"what its agent saw at {evidence['finished_at']}: {words}"


def next_rung(
    found: Found, steps: Sequence[Step], can: Collection[Rung], now: datetime, owed: PowerCycle | None = None
) -> Next:
    """What comes next for a node. `steps` are its history, oldest first; `can` the rungs that can be climbed here.

    A rung is climbed at most once for a fault, and what a higher one has included is not done after it. `owed` is the
    power cycle or repair that the ledger waits for, though the node passes.
    """
    last = steps[-1] if steps else None
    if last is not None and last.state is StepState.BEGUN and last.rung is not Rung.HOLD:
        return _after_loss(last, found, can)
    if not found.reached:
        return _unreached(last, can)
    if found.passes and owed is not None and owed.action is Action.REPAIR:
        return Next(Rung.HOLD, f"{owed.code} asked for {owed.what} at {owed.since}, and a PASS after it is none")
    if found.passes and owed is not None:
        why = f"{owed.code} asked for {owed.what} at {owed.since}, and a PASS after a reboot is none"
        return _within(Rung.POWER_CYCLE, can, why)
    if found.passes:
        return Next(None, "its burn-in of this boot is a PASS and its gate is open")
    if found.stale:
        return _once(Rung.RETEST, found, steps, f"{found.stale}, so that it is tested first")
    if found.verdict == Verdict.PASS:
        return _once(Rung.RETEST, found, steps, f"its report is a PASS and its gate is closed: {found.gate}")
    tried = {
        step.rung for step in steps if step.faults and {*step.faults} & {*found.faults} and now - _when(step) < MEMORY
    }
    wanted, codes = _RUNGS[found.action], ", ".join(dict.fromkeys(fault.code for fault in found.faults))
    highest = max(tried, key=lambda rung: rung.rank, default=None)
    rung = wanted
    if highest is not None and wanted.rank <= highest.rank:
        # A doubt that stays blames no hardware: nobody's power is cut for it.
        rung = _AFTER[highest] if found.verdict == Verdict.FAIL else Rung.HOLD
    why = f"{found.said} ({found.verdict}: {codes}) asks for {found.action}"
    if rung is not wanted:
        why += f", and {highest} has not cleared it"
    return _within(rung, can, why)


def _after_loss(last: Step, found: Found, can: Collection[Rung]) -> Next:
    """After a run that ended in the middle of a rung: whether that took effect shows in the boot."""
    if found.reached and last.rung.boots and found.boot_id != last.boot_id:
        return Next(Rung.RETEST, f"the {last.rung} begun at {last.began_at} has been done", resumes=True, done=True)
    if found.reached and last.rung is Rung.RETEST:
        return Next(Rung.RETEST, f"the test begun at {last.began_at} is gone on with", resumes=True)
    if not found.reached and last.rung is not Rung.POWER_CYCLE:
        return _unreached(last, can)
    why = f"a {last.rung} was begun at {last.began_at}, and nothing shows that it was done"
    if last.attempt < MOST_ATTEMPTS:
        return Next(last.rung, why, resumes=True)
    return _within(_AFTER[last.rung], can, f"{why} in {last.attempt} attempts")


def _unreached(last: Step | None, can: Collection[Rung]) -> Next:
    """A machine that does not answer is off or hangs: what it said before is no more than history."""
    if last is not None and last.rung in (Rung.POWER_CYCLE, Rung.HOLD):
        return Next(Rung.HOLD, f"it does not answer by SSH after a {last.rung}")
    return _within(Rung.POWER_CYCLE, can, "it does not answer by SSH")


def _once(rung: Rung, found: Found, steps: Sequence[Step], why: str) -> Next:
    """A rung for a node without a fault to know again: where it was the last step in this boot, a person looks."""
    if steps and steps[-1].rung is rung and steps[-1].boot_id == found.boot_id and not steps[-1].faults:
        return Next(Rung.HOLD, f"{why}, and after a test it is still so")
    return Next(rung, why)


def _within(rung: Rung, can: Collection[Rung], why: str) -> Next:
    if rung in can or rung is Rung.HOLD:
        return Next(rung, why)
    return Next(Rung.HOLD, f"{why}, and a {rung} is not possible from here")


def _when(step: Step) -> datetime:
    """When it began. What cannot be read counts as old."""
    try:
        return parse_rfc3339(step.began_at)
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
