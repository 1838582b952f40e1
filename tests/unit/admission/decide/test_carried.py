"""What was seen of a machine before its NodeAdmission was made still counts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.decide_helpers import PASSED, SPEC, make_view, settled


@pytest.mark.parametrize(
    ("sequence", "report", "code"),
    [
        (0, "", "PASS"),
        (PASSED.sequence - 1, "9" * 64, "PASS"),
        (PASSED.sequence, PASSED.report_sha256, "PASS"),
        (PASSED.sequence, "9" * 64, "EVIDENCE_REPLAYED"),
        (PASSED.sequence + 1, "9" * 64, "EVIDENCE_REPLAYED"),
    ],
)
def test_older_evidence_than_was_carried_over_is_a_replay(sequence: int, report: str, code: str) -> None:
    identity = replace(SPEC.identity, carried_sequence=sequence, carried_report_sha256=report)
    view = settled(make_view(spec=replace(SPEC, identity=identity)))
    assert view.record is not None
    status = view.record.status
    assert (status.code, status.highest_sequence) == (code, max(sequence, PASSED.sequence))
