"""The speed of the processors: what a stage did is judged, not what its seconds were worth."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tools import cpu_speed
from tools.cpu_speed import SpeedMeter, piece_cpu_s


def costs(*cost_s: float) -> Iterator[float]:
    yield from cost_s
    raise AssertionError("it was measured once more")


def test_a_piece_that_costs_twice_as_much_is_half_the_speed() -> None:
    """And what is shorter than the interval is measured at its end."""
    pieces = costs(0.2, 0.05)
    meter = SpeedMeter(0.1, lambda: next(pieces))
    assert meter.speed(time.monotonic()) == pytest.approx(0.5)
    assert meter.speed(time.monotonic()) == pytest.approx(2.0)


def test_only_what_was_measured_since_a_stage_began_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_speed, "INTERVAL_S", 0.001)
    at_s = iter(range(1, 5))
    monkeypatch.setattr(cpu_speed.time, "monotonic", lambda: float(next(at_s)))
    pieces = costs(0.4, 0.1, 0.2, 0.3)
    meter = SpeedMeter(0.1, lambda: next(pieces))
    with pytest.raises(StopIteration):
        meter._measure()
    assert meter.speed(1.0) == pytest.approx(0.4)
    assert meter.speed(2.0) == pytest.approx(0.5)
    assert meter.speed(4.0) == pytest.approx(1 / 3)


def test_the_thread_ends_with_the_stages() -> None:
    with SpeedMeter(0.1, lambda: 0.1) as meter:
        assert meter._thread.is_alive()
    assert not meter._thread.is_alive()


def test_the_piece_costs_processor_time_and_tells_when_it_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 0 < piece_cpu_s() < 60
    monkeypatch.setattr(cpu_speed, "__file__", "/nowhere/cpu_speed.py")
    with pytest.raises(RuntimeError, match=r"cpu_speed\.py ended with 2: run it by itself"):
        piece_cpu_s()
