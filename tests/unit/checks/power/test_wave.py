"""Square waves: frequencies of a level, edges without drift, and what counts as a wave that was made."""

from __future__ import annotations

import pytest

from gpu_burnin.checks.power.wave import (
    FREQUENCIES_HZ,
    ON_DEVICE,
    SWEEP_HZ,
    WITHOUT_DEVICE,
    Wave,
    WaveRecord,
    periods_of,
    starts,
    total_s,
    waves_for,
)
from gpu_burnin.checks.together import Clock
from gpu_burnin.system.codec import to_json

FAST = Wave(50.0, 4)  # half a period: 10 ms


def record() -> WaveRecord:
    return WaveRecord(FAST, 100.0)


def made(**changes: float) -> WaveRecord:
    """A wave whose periods were all made but for the third one."""
    found = record()
    for period in periods_of(FAST, 100.0):
        times = {"late_s": 0.0001, "over_s": -0.0005, "load_s": 0.0092, **(changes if period.number == 2 else {})}
        found.add(period, period.rise_s + times["late_s"], period.fall_s + times["over_s"], times["load_s"], 12)
    return found


def test_the_levels_and_their_frequencies() -> None:
    assert waves_for("quick", 100.0) == ()
    assert tuple(wave.frequency_hz for wave in waves_for("standard", 24.0)) == FREQUENCIES_HZ
    assert tuple(wave.frequency_hz for wave in waves_for("extended", 600.0)) == SWEEP_HZ
    assert set(FREQUENCIES_HZ) <= set(SWEEP_HZ)
    assert (min(SWEEP_HZ), max(SWEEP_HZ)) == (0.5, 50.0)


@pytest.mark.parametrize(
    ("level", "seconds"), [("standard", 9.0), ("standard", 24.0), ("extended", 60.0), ("extended", 900.0)]
)
def test_the_waves_keep_to_their_time_and_all_get_the_same(level: str, seconds: float) -> None:
    waves = waves_for(level, seconds)
    assert total_s(waves) == pytest.approx(seconds, rel=0.2)
    each_s = seconds / len(waves)
    assert all(abs(wave.seconds - each_s) <= 1 / wave.frequency_hz for wave in waves)


def test_without_time_there_is_one_period_of_each() -> None:
    assert {wave.periods for wave in waves_for("standard", 0.0)} == {1}


def test_without_a_gpu_the_waves_are_few_and_short() -> None:
    waves = waves_for("standard", 600.0, simulated=True)
    assert 0 < total_s(waves) < 1.5
    assert sum(wave.periods for wave in waves) < 10


def test_edges_do_not_drift_however_long_the_wave_is() -> None:
    wave = Wave(50.0, 200_000)  # more than an hour
    *_, last = periods_of(wave, 1000.0)
    assert last.rise_s == pytest.approx(1000.0 + 199_999 * 0.02, abs=1e-6)
    assert last.fall_s - last.rise_s == pytest.approx(0.01, abs=1e-6)


def test_waves_follow_each_other() -> None:
    waves = (Wave(1.0, 2), Wave(10.0, 5), FAST)
    assert starts(waves, 10.0) == (10.0, 12.0, 12.5)
    assert total_s(waves) == pytest.approx(2.58)


def test_a_wave_that_was_made() -> None:
    found = made()
    assert (found.made, found.edges_missed, found.share_made, found.why_not) == (4, 0, 1.0, "")
    assert to_json(found.result) == {
        "frequency_hz": 50.0,
        "started_s": 100.0,
        "ended_s": 100.08,
        "periods_planned": 4,
        "periods_made": 4,
        "edges_missed": 0,
        "worst_lateness_s": 0.0001,
        "worst_overrun_s": 0.0,
        "load_share": 0.92,
        "products": 48,
        "edges_verified": 0,
        "wrong_products": 0,
    }


@pytest.mark.parametrize(
    ("changes", "missed", "why"),
    [
        ({"late_s": 0.0011}, 1, "edges were up to 1.1 ms late on the host"),
        ({"over_s": 0.0011}, 1, "still at work 1.1 ms after an edge down"),
        ({"load_s": 0.0049}, 0, "worked too little in 1 of 4 half periods"),
    ],
)
def test_a_period_that_was_not_made(changes: dict[str, float], missed: int, why: str) -> None:
    found = made(**changes)
    assert (found.made, found.edges_missed) == (3, missed)
    assert why in found.why_not


@pytest.mark.parametrize("changes", [{"late_s": 0.0009}, {"over_s": 0.0009}, {"load_s": 0.0051}])
def test_a_period_that_was_just_made(changes: dict[str, float]) -> None:
    assert made(**changes).made == 4


def test_a_period_whose_edge_has_passed_is_left_out() -> None:
    found, period = record(), next(periods_of(FAST, 100.0))
    assert not found.missed(100.0009, period)
    assert found.missed(100.0011, period)
    assert (found.edges_missed, found.made, found.worst_late_s) == (2, 0, pytest.approx(0.0011))


def test_a_busy_host_that_simulates_gpus_is_given_more_time() -> None:
    period = next(periods_of(FAST, 100.0))
    assert WaveRecord(FAST, 100.0, ON_DEVICE).missed(100.004, period)
    assert not WaveRecord(FAST, 100.0, WITHOUT_DEVICE).missed(100.0089, period)
    assert WaveRecord(FAST, 100.0, WITHOUT_DEVICE).missed(100.0091, period)


class Hands:
    """A clock whose time passes by waiting, and a little by each look at it."""

    def __init__(self) -> None:
        self.now_s = 5.0
        self.pauses: list[float] = []

    def now(self) -> float:
        self.now_s += 1e-5
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now_s += seconds


def test_waiting_for_a_moment_sleeps_most_of_it_and_never_ends_early() -> None:
    hands = Hands()
    Clock(hands.now, hands.pause).until(6.0)
    assert 6.0 <= hands.now_s < 6.0001
    assert sum(hands.pauses) == pytest.approx(0.999, abs=1e-4)


def test_a_moment_that_has_passed_is_not_waited_for() -> None:
    hands = Hands()
    Clock(hands.now, hands.pause).until(4.0)
    assert hands.pauses == []
