"""What a node writes holds that node at the worst: nothing in it makes the rules raise."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide
from gpu_burnin.admission.view import View
from gpu_burnin.api.agent_note import AgentNote, Answer, Maintenance, NoteError, Warned, read_note
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, NOW
from tests.support.decide_helpers import GPU_POD, PASSED, RULES, changed, ready_view, seen

BASE = ready_view()
HUGE = "x" * 100_000
BELL = "line\nbreak\x00\u202e\ud800 ünï"
TEXTS = ("", HUGE, BELL, "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "9999-12-31T23:59:59-23:59", "now", "\uff11Z")
TIMES: tuple[dict[str, Any], ...] = tuple({"not_before": a, "not_after": b} for a in TEXTS for b in TEXTS)


def judged(view: View) -> Any:
    """The decision, of which every text is short and one line."""
    for now in (NOW, NOW + timedelta(days=30)):
        found = seen(view, now)
        status = found.decision.status
        next_why = status.next.why if status.next else ""
        for text in (status.message, next_why, *(t.message for t in status.transitions)):
            assert len(text) <= 1000 and "\n" not in text and "\x00" not in text
        for taint in found.taints:
            assert len(taint) < 100
    return seen(view)


@pytest.mark.parametrize("field", ["boot_id", "level", "machine_id", "node", "code", "message", "finished_at"])
@pytest.mark.parametrize("text", [HUGE, BELL, *TEXTS[3:5]], ids=range(4))
@pytest.mark.parametrize("verdict", list(Verdict))
def test_a_statement_with_anything_in_it(field: str, text: str, verdict: Verdict) -> None:
    statement = replace(PASSED, **{field: text}, verdict=verdict, sequence=6)
    found = judged(changed(BASE, statement=statement))
    assert found.ready == (field in ("code", "message") and verdict is Verdict.PASS)


@pytest.mark.parametrize("sequence", [0, -1, 2**53 + 1, 10**4000, 10**6000], ids=range(5))
def test_a_sequence_out_of_all_bounds(sequence: int) -> None:
    found = judged(changed(BASE, statement=replace(PASSED, sequence=sequence)))
    assert (found.code, found.decision.status.highest_sequence) == ("EVIDENCE_MALFORMED", 5)


@pytest.mark.parametrize("code", ["", "lower", "A" * 64, "XID FATAL", "Ü", "XID_FATAL\n", "-", "X_"])
def test_a_code_that_can_stand_in_no_taint_is_the_verdict(code: str) -> None:
    found = judged(changed(BASE, statement=replace(PASSED, sequence=6, verdict=Verdict.FAIL, code=code)))
    assert (found.code, "quarantine=FAIL:NoSchedule" in found.taints) == ("FAIL", True)


def test_hardware_of_any_form() -> None:
    other = replace(PASSED, sequence=6, hardware_sha256="4" * 64)
    deep: Any = []
    for _ in range(5000):
        deep = [deep]
    for hardware in (
        {"gpus": deep, "driver": "", "kernel": ""},
        {"gpus": [["a", "b", "c"]] * 4000, "driver": HUGE, "kernel": BELL},
        {"gpus": "GPU-a", "driver": 1, "kernel": None},
        {"gpus": [["a", 1, {}]], "driver": "", "kernel": ""},
        {},
        {HUGE: HUGE},
    ):
        found = judged(changed(BASE, statement=other, hardware=hardware))
        assert found.code == "HARDWARE_CHANGED"


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_an_agents_note_with_anything_in_it(text: str) -> None:
    judged(changed(BASE, agent=AgentNote(text or BOOT)))
    judged(changed(BASE, agent=AgentNote(BOOT, warnings=(Warned(text, text, text),))))
    judged(changed(BASE, agent=AgentNote(BOOT, request=Answer(text, text, text)), test="quick"))
    for state in ("scheduled", "started", "none", "unknown", text):
        notice = Maintenance(text, state, kind=text, message=text, impact_s=float("nan"), id=text, fetched_at=text)
        judged(changed(BASE, agent=AgentNote(BOOT, maintenance=notice)))


@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_a_notice_with_any_times(state: str) -> None:
    for times in TIMES:
        notice = Maintenance("azure", state, **times)
        decide(replace(BASE, agent=AgentNote(BOOT, maintenance=notice)), RULES, NOW)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 8000,
        "{" * 100,
        '{"bootID": 1}',
        '{"bootID": "x", "warnings": 5}',
        HUGE,
        "1e999",
        '{"bootID": "\\ud800"}',
        f'{{"bootID": "x", "maintenance": {{"provider": "p", "state": "none", "impactSeconds": 1{"0" * 400}}}}}',
    ],
)
def test_a_note_that_cannot_be_read_is_none_and_the_node_is_held(text: str) -> None:
    with pytest.raises(NoteError):
        read_note(text)
    found = judged(changed(BASE, agent=None))
    assert (found.ready, found.code) == (False, "AGENT_SILENT")


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_pods_that_hold_with_anything(text: str) -> None:
    failed = replace(PASSED, verdict=Verdict.FAIL, sequence=6)
    judged(changed(BASE, statement=failed, pods=(replace(GPU_POD, hold_until=text),)))
