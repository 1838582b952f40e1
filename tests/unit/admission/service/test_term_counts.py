"""What a term says of the fleet as a whole: nodes by reason, and proofs that end."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.service.cache import Records
from gpu_burnin.admission.service.term import Term
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.api.names import Names


def term_of(*statuses: dict[str, Any]) -> Term:
    """A term that has read these NodeAdmissions, and does nothing."""
    records = Records(Names())
    for number, status in enumerate(statuses):
        records.put({"metadata": {"name": f"gpu-{number}", "resourceVersion": "1"}, "spec": {}, "status": status})
    term = object.__new__(Term)
    term.records, term.config = records, AdmitterConfig()
    return term


def test_held_nodes_are_counted_by_reason() -> None:
    states = [("held", "HELD_BY_PERSON"), ("suspect", "XID_FATAL"), ("quarantined", "XID_FATAL"), ("new", "")]
    working = [("ready", "PASS"), ("expiring", "PASS"), ("testing", "TEST_DUE")]
    term = term_of(*({"state": state, "code": code} for state, code in states + working))
    assert term.held() == Counter({"XID_FATAL": 2, "HELD_BY_PERSON": 1, "NONE": 1})


def test_codes_that_nodes_invent_stay_a_bounded_number() -> None:
    term = term_of(
        *({"state": "suspect", "code": "GPU_LOST"} for _ in range(3)),
        *({"state": "suspect", "code": f"MADE_UP_{number}"} for number in range(100)),
    )
    held = term.held()
    assert len(held) == 25
    assert (held["GPU_LOST"], held["OTHER"], held.total()) == (3, 77, 103)


def test_counts_follow_each_change_and_each_node_that_goes() -> None:
    term = term_of({"state": "new"}, {"state": "suspect", "code": "AGENT_SILENT"}, {"state": "ready", "code": "PASS"})
    assert (term.states()["ready"], term.held(), term.of_code("AGENT_SILENT")) == (1, {"NONE": 1, "AGENT_SILENT": 1}, 1)
    term.records.put(
        {"metadata": {"name": "gpu-1", "resourceVersion": "2"}, "status": {"state": "ready", "code": "PASS"}}
    )
    term.records.drop("gpu-0")
    term.records.drop("never-there")
    assert {state: nodes for state, nodes in term.states().items() if nodes} == {"ready": 2}
    assert (term.held(), term.of_code("AGENT_SILENT")) == (Counter(), 0)


def test_numbers_are_read_without_a_walk_over_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    term = term_of(*({"state": "ready", "code": "PASS"} for _ in range(50)), {"state": "suspect", "code": "GPU_LOST"})
    monkeypatch.setattr(Records, "all_summaries", lambda _: pytest.fail("it walks over all nodes"))
    assert (term.states()["ready"], term.held()["GPU_LOST"], term.of_code("AGENT_SILENT")) == (50, 1, 0)


def test_proofs_that_have_ended_or_end_before_their_late_test() -> None:
    now = datetime(2026, 11, 1, 12, tzinfo=UTC)
    # By the defaults 3.6 hours before the end; of a node of the level quick it is a day.
    ends = ["2026-11-01T11:00:00Z", "2026-11-01T15:35:59Z", "2026-11-01T15:36:00Z", "2026-11-07T00:00:00Z", ""]
    working = [{"state": "ready", "accepted": {"expiresAt": end}} for end in ends]
    held = [{"state": "held", "accepted": {"expiresAt": ends[0]}}]
    term = term_of(*working, *held, {"state": "expiring"})
    assert term.proofs_end_soon(now) == 2
    quick = {"evidence": {"level": "quick"}}
    term.records.put({"metadata": {"name": "gpu-2", "resourceVersion": "2"}, "spec": quick, "status": working[2]})
    assert term.proofs_end_soon(now) == 3
