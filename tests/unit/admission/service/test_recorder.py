"""Events: they give way to work that is more urgent, and none is lost for it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_burnin.admission.service.journal import EVENT_EVERY_S, GIVE_WAY_S, EventRecorder
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.record import State, Transition

CHANGE = Transition("2026-11-22T12:00:00Z", State.NEW, State.READY, "PASS", "it passed")


@pytest.mark.parametrize("busy", [True, False])
def test_an_event_gives_way_to_nodes_that_wait(busy: bool) -> None:
    reported: list[str] = []

    class Api:
        def create(self, path: str, event: dict[str, Any], what: str) -> None:
            reported.append(event["involvedObject"]["name"])
            if len(reported) == 3:
                recorder.close()

    def wait(seconds: float) -> None:
        told_when_waiting.append((seconds, len(reported)))

    told_when_waiting: list[tuple[float, int]] = []
    api: Any = Api()
    recorder = EventRecorder(api, Metrics(), busy=lambda: busy, wait=wait)
    for name in ("gpu-1", "gpu-2", "gpu-3"):
        recorder.transition(name, CHANGE)
    recorder.run()
    assert reported == ["gpu-1", "gpu-2", "gpu-3"]
    # Before each event for those who wait, and after each for the API server.
    before = [GIVE_WAY_S] if busy else []
    assert told_when_waiting == [(s, n + (s == EVENT_EVERY_S)) for n in range(3) for s in [*before, EVENT_EVERY_S]]


def test_what_calls_for_people_is_told_first_and_as_of_its_own_time() -> None:
    written: list[dict[str, Any]] = []

    class Api:
        def create(self, path: str, event: dict[str, Any], what: str) -> None:
            written.append(event)
            moment[0] += timedelta(minutes=1)
            if len(written) == 3:
                recorder.close()

    moment = [datetime(2026, 11, 22, 12, tzinfo=UTC)]
    api: Any = Api()
    recorder = EventRecorder(api, Metrics(), now=lambda: moment[0], wait=lambda seconds: None)
    for name, after in (("gpu-1", State.READY), ("gpu-2", State.SUSPECT), ("gpu-3", State.QUARANTINED)):
        recorder.transition(name, replace(CHANGE, after=after))
    assert len(recorder) == 3
    recorder.run()
    assert [(e["involvedObject"]["name"], e["type"]) for e in written] == [
        ("gpu-2", "Warning"),
        ("gpu-3", "Warning"),
        ("gpu-1", "Normal"),
    ]
    assert {e["firstTimestamp"] for e in written} == {"2026-11-22T12:00:00Z"}
