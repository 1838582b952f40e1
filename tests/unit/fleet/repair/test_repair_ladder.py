"""Which rung is next: by action, by history, after a loss, for a node that says nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_burnin.fleet.repair import ladder
from gpu_burnin.fleet.repair.ladder import Fault, Found, Rung, Step, StepState, found_of, next_rung
from gpu_burnin.types import Action

NOW = datetime(2026, 11, 22, 17, tzinfo=UTC)
ALL = {*Rung}
GPU = Fault("XID_FATAL", "GPU-1")
OTHER = Fault("XID_FATAL", "GPU-2")


def found(action: Action, *faults: Fault, **changes: Any) -> Found:
    given = {"verdict": "FAIL", "action": action, "faults": faults or (GPU,), "boot_id": "b1", **changes}
    return Found(reached=True, **given)


def step(rung: Rung, *faults: Fault, days: float = 0.1, state: StepState = StepState.DONE, **changes: Any) -> Step:
    began = (NOW - timedelta(days=days)).isoformat()
    return Step(rung, faults or (GPU,), began, changes.pop("boot_id", "b0"), "m", "anna", state, **changes)


@pytest.mark.parametrize(
    ("action", "tried", "rung"),
    [
        (Action.NONE, [], Rung.RETEST),
        (Action.RETEST, [], Rung.RETEST),
        (Action.RESET_GPU, [], Rung.RESET_GPU),
        (Action.REBOOT, [], Rung.REBOOT),
        (Action.POWER_CYCLE, [], Rung.POWER_CYCLE),
        (Action.REPAIR, [], Rung.HOLD),
        (Action.HOLD, [], Rung.HOLD),
        # What did not clear the fault is not done again, nor what it has included.
        (Action.RETEST, [Rung.RETEST], Rung.HOLD),
        (Action.RESET_GPU, [Rung.RESET_GPU], Rung.REBOOT),
        (Action.RESET_GPU, [Rung.RESET_GPU, Rung.REBOOT], Rung.POWER_CYCLE),
        (Action.RESET_GPU, [Rung.POWER_CYCLE], Rung.HOLD),
        (Action.REBOOT, [Rung.REBOOT], Rung.POWER_CYCLE),
        (Action.POWER_CYCLE, [Rung.RESET_GPU], Rung.POWER_CYCLE),
        (Action.POWER_CYCLE, [Rung.POWER_CYCLE], Rung.HOLD),
        (Action.RESET_GPU, [Rung.HOLD], Rung.HOLD),
    ],
)
def test_a_rung_is_climbed_once_for_a_fault(action: Action, tried: list[Rung], rung: Rung) -> None:
    assert next_rung(found(action), [step(one) for one in tried], ALL, NOW).rung is rung


def test_a_doubt_that_stays_is_a_persons_and_cuts_no_power() -> None:
    doubt = found(Action.REBOOT, Fault("XID_GAP"), verdict="INCONCLUSIVE")
    assert next_rung(doubt, [], ALL, NOW).rung is Rung.REBOOT
    assert next_rung(doubt, [step(Rung.REBOOT, Fault("XID_GAP"))], ALL, NOW).rung is Rung.HOLD


def test_the_ladder_of_a_fault_that_nothing_clears_ends() -> None:
    steps: list[Step] = []
    climbed = []
    for number in range(20):
        chosen = next_rung(found(Action.RESET_GPU), steps, ALL, NOW)
        assert chosen.rung is not None
        climbed.append(chosen.rung)
        if chosen.rung is Rung.HOLD:
            break
        steps.append(step(chosen.rung, boot_id=f"b{number}"))
    assert climbed == [Rung.RESET_GPU, Rung.REBOOT, Rung.POWER_CYCLE, Rung.HOLD]


def test_another_fault_begins_below_and_an_old_one_too() -> None:
    assert next_rung(found(Action.RESET_GPU, OTHER), [step(Rung.RESET_GPU, GPU)], ALL, NOW).rung is Rung.RESET_GPU
    old = step(Rung.RESET_GPU, GPU, days=ladder.MEMORY.days + 1)
    assert next_rung(found(Action.RESET_GPU, GPU), [old], ALL, NOW).rung is Rung.RESET_GPU
    assert next_rung(found(Action.RESET_GPU, GPU, OTHER), [step(Rung.RESET_GPU, GPU)], ALL, NOW).rung is Rung.REBOOT


def test_a_fault_that_came_back_after_a_pass_goes_on_where_it_was() -> None:
    helped = step(Rung.RESET_GPU, GPU, days=3, verdict="PASS")
    assert next_rung(found(Action.RESET_GPU, GPU), [helped], ALL, NOW).rung is Rung.REBOOT


def test_a_pass_with_an_open_gate_is_the_end() -> None:
    assert next_rung(found(Action.NONE, verdict="PASS", faults=()), [step(Rung.REBOOT)], ALL, NOW).rung is None


@pytest.mark.parametrize(
    "changes", [{"stale": "its newest report is of another boot"}, {"verdict": "PASS", "gate": "closed: XID 79"}]
)
def test_what_says_nothing_of_this_boot_is_tested_first_and_once(changes: dict[str, str]) -> None:
    now = found(Action.POWER_CYCLE, **changes)
    chosen = next_rung(now, [], ALL, NOW)
    assert chosen.rung is Rung.RETEST
    assert next(iter(changes.values())) in chosen.why or changes["gate"] in chosen.why
    tested = Step(Rung.RETEST, now.blamed, NOW.isoformat(), "b1", "m", "anna", StepState.DONE)
    assert next_rung(now, [tested], ALL, NOW).rung is Rung.HOLD
    # A test before the last boot says nothing of this one.
    before = Step(Rung.RETEST, now.blamed, NOW.isoformat(), "b0", "m", "anna", StepState.DONE)
    assert next_rung(now, [before], ALL, NOW).rung is Rung.RETEST


def test_what_is_not_possible_from_here_is_the_technicians() -> None:
    chosen = next_rung(found(Action.POWER_CYCLE), [], ALL - {Rung.POWER_CYCLE}, NOW)
    assert chosen.rung is Rung.HOLD
    assert "a power_cycle is not possible from here" in chosen.why


GONE, HERE = Found(reached=False), found(Action.REBOOT)


def begun(rung: Rung, *, boot_id: str = "b1", attempt: int = 1) -> Step:
    return step(rung, state=StepState.BEGUN, boot_id=boot_id, attempt=attempt)


@pytest.mark.parametrize(
    ("last", "now", "rung", "done"),
    [
        # A boot shows that a reboot or a power cycle has been done; what is left is its test.
        (begun(Rung.REBOOT, boot_id="b0"), HERE, Rung.RETEST, True),
        (begun(Rung.POWER_CYCLE, boot_id="b0"), HERE, Rung.RETEST, True),
        # Nothing shows it: once more, and not a third time.
        (begun(Rung.REBOOT), HERE, Rung.REBOOT, False),
        (begun(Rung.REBOOT, attempt=2), HERE, Rung.POWER_CYCLE, False),
        (begun(Rung.RESET_GPU), HERE, Rung.RESET_GPU, False),
        (begun(Rung.RESET_GPU, attempt=2), HERE, Rung.REBOOT, False),
        (begun(Rung.RETEST), HERE, Rung.RETEST, False),
        # A machine that was left off is put on.
        (begun(Rung.POWER_CYCLE), GONE, Rung.POWER_CYCLE, False),
        (begun(Rung.POWER_CYCLE, attempt=2), GONE, Rung.HOLD, False),
        (begun(Rung.REBOOT), GONE, Rung.POWER_CYCLE, False),
        (step(Rung.REBOOT, state=StepState.FAILED), GONE, Rung.POWER_CYCLE, False),
        (step(Rung.POWER_CYCLE, state=StepState.FAILED), GONE, Rung.HOLD, False),
        (begun(Rung.RESET_GPU), GONE, Rung.POWER_CYCLE, False),
        (None, GONE, Rung.POWER_CYCLE, False),
    ],
)
def test_after_a_lost_run_it_goes_on_where_it_was(last: Step | None, now: Found, rung: Rung, done: bool) -> None:
    chosen = next_rung(now, [last] if last else [], ALL, NOW)
    assert (chosen.rung, chosen.done) == (rung, done)


def look(**evidence: Any) -> dict[str, Any]:
    reasons = evidence.pop("reasons", [{"code": "XID_FATAL", "gpu": "GPU-1"}, {"code": "GPU_COUNT", "gpu": None}])
    told = {"problem": "", "this_boot": True, "verdict": "FAIL", "action": "reboot", "run_id": "r7", "level": "quick"}
    return {
        "boot_id": "b1",
        "machine_id": "m1",
        "status": {
            "evidence": {**told, "reasons": reasons, **evidence},
            "gate": {"open": False, "message": "closed: FAIL"},
            "unit": {"running": False},
        },
    }


def test_what_a_node_says_is_read() -> None:
    assert found_of(look()) == Found(
        True, "b1", "m1", "FAIL", Action.REBOOT, (Fault("GPU_COUNT"), GPU), "r7", "quick", "", "closed: FAIL"
    )
    assert found_of(None) == GONE
    assert found_of(look(this_boot=False)).stale == "its newest report is of another boot"
    assert "injected" in found_of(look(reasons=[{"code": "INJECTED", "gpu": None}])).stale
    assert "is damaged" in found_of(look(problem="report.json is damaged")).stale
    none = look()
    none["status"]["evidence"] = None
    assert found_of(none).stale == "it has no report"
    busy = look()
    busy["status"]["unit"]["running"] = True
    assert found_of(busy).stale == "a burn-in is under way"
    assert found_of(busy).blamed == ()


def test_what_the_agent_saw_is_told_in_its_words_and_is_no_report() -> None:
    reason = {"code": "XID_FATAL", "gpu": None, "message": "XID 79 on GPU 3: GPU has fallen off the bus"}
    seen = look(level="watch", reasons=[reason], finished_at="2026-11-22T16:58:00Z", action="reset_gpu")
    assert next_rung(found_of(seen), [], ALL, NOW).why == (
        "what its agent saw at 2026-11-22T16:58:00Z: XID 79 on GPU 3: GPU has fallen off the bus (FAIL: XID_FATAL) "
        "asks for reset_gpu"
    )
