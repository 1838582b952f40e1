"""Times of a run on a host whose clock is set meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpu_burnin.system.clock import RunClock, Times

BEGAN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def run(lasted_s: float, step_s: float) -> Times:
    """A run that lasts so long, while the clock is set forward by `step_s`."""
    wall = iter((BEGAN, BEGAN + timedelta(seconds=lasted_s + step_s)))
    steady = iter((1000.0, 1000.0 + lasted_s))
    return RunClock(lambda: next(wall), lambda: next(steady)).ended()


def seconds(times: Times) -> float:
    started, finished = (datetime.fromisoformat(text) for text in (times.started_at, times.finished_at))
    return (finished - started).total_seconds()


@pytest.mark.parametrize("step_s", [0.0, 0.4, -0.4, 3600.0, -3600.0])
def test_a_run_lasts_as_long_as_it_did_and_ends_when_the_clock_says(step_s: float) -> None:
    times = run(60.0, step_s)
    assert seconds(times) == 60.0
    assert datetime.fromisoformat(times.finished_at) == BEGAN + timedelta(seconds=60 + step_s)


@pytest.mark.parametrize(
    ("lasted_s", "step_s", "says"),
    [
        (60.0, -3600.0, "set back by 3600.0 s"),
        (60.0, 1.5, "set forward by 1.5 s"),
        (60.0, 0.9, None),
        (7200.0, -6.0, None),  # slewed
        (7200.0, -8.0, "set back by 8.0 s"),
    ],
)
def test_a_step_is_said_and_a_slew_is_not(lasted_s: float, step_s: float, says: str | None) -> None:
    notices = run(lasted_s, step_s).notices()
    assert [notice.code for notice in notices] == (["CLOCK_STEPPED"] if says else [])
    assert says is None or says in notices[0].message
