"""Events: they give way to work that is more urgent, and none is lost for it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.admission.record import State, Transition
from gpu_burnin.admission.service.journal import GIVE_WAY_S, Herald
from gpu_burnin.admission.service.metrics import Metrics

CHANGE = Transition("2026-11-22T12:00:00Z", State.NEW, State.READY, "PASS", "it passed")


@pytest.mark.parametrize("busy", [True, False])
def test_an_event_gives_way_to_nodes_that_wait(busy: bool) -> None:
    told: list[str] = []

    class Api:
        def create(self, path: str, event: dict[str, Any], what: str) -> None:
            told.append(event["involvedObject"]["name"])
            if len(told) == 3:
                herald.close()

    def wait(seconds: float) -> None:
        told_when_waiting.append((seconds, len(told)))

    told_when_waiting: list[tuple[float, int]] = []
    api: Any = Api()
    herald = Herald(api, Metrics(), busy=lambda: busy, wait=wait)
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        herald.transition(name, CHANGE)
    herald.run()
    assert told == ["gpu-1", "gpu-2", "gpu-3"]
    assert told_when_waiting == ([(GIVE_WAY_S, n) for n in range(3)] if busy else [])
