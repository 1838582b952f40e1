"""What is decided in each situation of the table, and that it is decided once."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_burnin.admission.decide import CODES, decide
from gpu_burnin.api.evidence_codes import CODES as EVIDENCE_CODES
from gpu_burnin.hardware import load_reasons
from gpu_burnin.types import Verdict
from tests.support.decide_helpers import GPU_POD, RULES, carried_out, changed, seen
from tests.support.decide_situations import ASK, CASES, asks


@pytest.mark.parametrize("name", CASES)
def test_a_situation_is_decided_as_the_table_says(name: str) -> None:
    case = CASES[name]
    found = seen(case.view(), case.now)
    outcome = (found.state, found.code, set(found.taints), found.needs, found.verdict, found.condition, found.ready)
    assert outcome == (case.state, case.code, case.taints, case.needs, case.verdict, case.condition, case.ready)
    assert (found.evict, found.leave) == (case.evict, case.leave)
    assert (found.decision.status.request is not None) == case.asked
    assert found.decision.status.next is not None


@pytest.mark.parametrize("name", CASES)
def test_deciding_again_on_the_result_changes_nothing(name: str) -> None:
    case = CASES[name]
    after = seen(case.view(), case.now).after
    again = decide(after, RULES, case.now)
    assert after.record is not None and again.status == after.record.status
    assert (again.node_patch, again.node_status_patch, again.needs, again.evict) == (None, None, None, ())
    # And nothing a little later, as long as nothing is due by then.
    later = case.now + timedelta(seconds=1)
    if again.wake_at is None or again.wake_at > later:
        assert carried_out(after, decide(after, RULES, later)) == after


@pytest.mark.parametrize("name", CASES)
def test_every_code_is_explained(name: str) -> None:
    assert CASES[name].code in {*CODES, *EVIDENCE_CODES, *load_reasons(), *Verdict}


def test_a_pod_that_holds_is_left_and_told() -> None:
    pod = replace(GPU_POD, hold_until="checkpoint")
    found = seen(changed(asks(quarantine=ASK), pods=(pod,)))
    assert (found.evict, found.leave) == ((), True)
    ((outcome, sentence),) = found.decision.pod_events
    assert outcome == pod and sentence.startswith(
        "it is asked to leave, and is left until its checkpoint, at most to 20"
    )
