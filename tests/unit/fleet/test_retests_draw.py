"""Which nodes a test at random may fall on."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from gpu_burnin.api.record import Ask, NodeAdmission, Spec, State, Status, Use
from gpu_burnin.fleet.cluster import retests

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
IDLE = Status(State.READY, use=Use("2026-11-21T12:00:00Z", "2026-11-21T12:00:00Z", False))


def test_a_hold_that_is_over_keeps_no_node_from_the_draw() -> None:
    holds = {"gpu-1": "2026-11-22T11:00:00Z", "gpu-2": "2026-11-22T13:00:00Z", "gpu-3": ""}
    made = [
        NodeAdmission(name, Spec(hold=Ask("ann", "x", "2026-11-22T10:00:00Z", until)), IDLE)
        for name, until in holds.items()
    ]
    assert [one.name for one in retests.draw(made, 1.0, random.Random(0), NOW)] == ["gpu-1"]
