"""Of two conditions that hold at once the one that stands first in the order is told; and each look is taken once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, facts, withheld
from gpu_burnin.admission.decide.order import Judged, judge
from gpu_burnin.admission.view import Budget, Evidence, HeartbeatState
from gpu_burnin.api.agent_note import AgentNote, Maintenance, Warned
from gpu_burnin.api.record import Ask, Hardware, PowerCycle
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, NOW
from tests.support.decide_helpers import GPU_POD, HARDWARE, PASSED, RULES, changed, ready_view

ASK = Ask("ann", "a reason", "2026-11-21T11:59:00Z")
FAILED = Evidence(replace(PASSED, verdict=Verdict.FAIL, sequence=6, code="GEMM_MISMATCH"), HARDWARE)
UNSURE = Evidence(replace(PASSED, verdict=Verdict.INCONCLUSIVE, sequence=6, code="COVERAGE_LOW"), HARDWARE)
SILENT = HeartbeatState(BOOT, 900.0)
# What makes each condition of a node at work, the strongest first.
MADE: Mapping[str, Mapping[str, Any]] = {
    "REPAIRING": {"spec": {"repair": ASK}},
    "GEMM_MISMATCH": {"evidence": FAILED},
    "QUARANTINED_BY_PERSON": {"spec": {"quarantine": ASK}},
    "HELD_BY_PERSON": {"spec": {"hold": ASK}},
    "NODE_UNKNOWN": {"kubelet": "Unknown"},
    "EVIDENCE_MISSING": {"evidence": Evidence()},
    "AGENT_SILENT": {"heartbeat": SILENT},
    "COVERAGE_LOW": {"evidence": UNSURE},
    "POWER_CYCLE_OWED": {"status": {"power_cycle": PowerCycle("GPU_LOST", BOOT, "2026-11-21T11:00:00Z")}},
    "LEDGER_RESTORED": {"spec": {"restored": ASK}},
    "GPUS_MISSING": {"spec": {"hardware": Hardware(8)}, "capacity": "8", "allocatable": "7"},
    "MAINTENANCE": {"calendar": (Maintenance("calendar", "started"),)},
    "AGENT_WARNED": {"agent": AgentNote(BOOT, warnings=(Warned("XID_31", "seen", "2026-11-21T11:59:00Z"),))},
}
PAIRS = [
    (strong, weak)
    for number, strong in enumerate(MADE)
    for weak in list(MADE)[number + 1 :]
    # Two of these need another evidence; a node without any has none that can be judged.
    if len({strong, weak} & {"GEMM_MISMATCH", "EVIDENCE_MISSING", "COVERAGE_LOW"}) < 2
]


def both(strong: str, weak: str) -> dict[str, Any]:
    """The changes of both, of which the spec may have some of each."""
    spec = {**MADE[weak].get("spec", {}), **MADE[strong].get("spec", {})}
    return {**MADE[weak], **MADE[strong], "spec": spec}


def found(changes: Mapping[str, Any], denied: Budget | None = None) -> Judged:
    """What the order makes of a node at work with these changes."""
    view = changed(ready_view(), **changes)
    assert view.record is not None
    return judge(replace(facts.look(view, view.record, RULES, NOW), denied=denied))


@pytest.mark.parametrize("code", MADE)
def test_each_of_them_alone_is_told(code: str) -> None:
    assert found(MADE[code]).shown.code == code


@pytest.mark.parametrize(("strong", "weak"), PAIRS)
def test_the_first_in_the_order_is_told(strong: str, weak: str) -> None:
    assert found(both(strong, weak)).shown.code == strong


def test_a_fault_without_leave_stands_below_what_people_ask() -> None:
    changes = both("GEMM_MISMATCH", "HELD_BY_PERSON")
    assert found(changes).shown.code == "GEMM_MISMATCH"
    braked = found(changes, denied=Budget.GATE)
    assert (braked.shown.code, braked.own.code, braked.own.fault) == ("HELD_BY_PERSON", "GEMM_MISMATCH", "")


@pytest.mark.parametrize("name", ["_examined", "windows"])
def test_evidence_and_windows_are_judged_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """For a decision and what is left of it without a grant together."""
    real: Callable[..., Any] = getattr(facts, name)
    calls: list[str] = []
    view = changed(ready_view(pods=(GPU_POD,)), evidence=FAILED)
    monkeypatch.setattr(facts, name, lambda *arguments: (calls.append(name), real(*arguments))[1])
    decision = decide(view, RULES, NOW)
    assert decision.needs is Budget.GATE
    assert withheld(decision, "no room", None).status.next is not None
    assert decide(replace(view, paused="rollout"), RULES, NOW).needs is Budget.GATE
    assert calls == [name] * 2
