"""What the parent keeps of a sampler: thinned samples that lose no extreme, counters, events, sources."""

from __future__ import annotations

import itertools
import random
import sys
from typing import Any

import pytest

from gpu_burnin.telemetry.sampling_record import CONTINUOUS, EVENTS, MAX_BUCKETS, REASONS, SAMPLES, Record, Thinned
from gpu_burnin.types import Gpu

GPU = Gpu(0, "GPU-0", "1650", "0000:1b:00.0", "NVIDIA H100", "h100-sxm5-80gb", 80 << 30, "96.00")


def record(*messages: dict[str, Any], ended_s: float = 3.0) -> Record:
    found = Record(GPU, interval_s=0.1, stall_s=2.0)
    for message in messages:
        found.feed(message)
    found.ended(ended_s)
    return found


READY = {"type": "ready", "t_s": 1.0, "simulated": False, "counters": {"energy_mj": 1}, "limits": {}, "unsupported": {},
         "events": ["xid"], "events_why": ""}  # fmt: skip
FINISHED = {"type": "finished", "t_s": 3.0, "events_why": ""}


def second(t_s: float, **changes: Any) -> dict[str, Any]:
    message = {"type": "sample", "t_s": t_s, "samples": 10, "late": 0, "columns": {"power_w": [1.0, 2.0, 3.0]}}
    return message | {"reasons": 4, "bits": {"4": 10}} | changes


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 127, 128, 129, 1000, 20_000])
def test_thinning_loses_no_extreme_no_bit_and_no_weight(count: int) -> None:
    thinned, chance = Thinned(most=64), random.Random(count)
    values = [[low, low + 1, low + 2] for low in (chance.uniform(0, 500) for _ in range(count))]
    bits = [1 << chance.randrange(9) if chance.random() < 0.01 else 0 for _ in range(count)]
    for number in range(count):
        thinned.add(float(number + 1), 10, bits[number], {"power_w": values[number]})
    times = thinned.t_s()
    assert len(times) <= 64
    assert len(times) > 31 or len(times) == count
    assert sorted(set(times)) == list(times)
    assert times[-1:] == (float(count),)[: min(count, 1)]
    if not count:
        assert thinned.columns(1) == {}
        return
    # Every bucket holds exactly what came since the one before it.
    starts = (0, *(int(t_s) for t_s in times))
    for at, (start, end) in enumerate(itertools.pairwise(starts)):
        group = values[start:end]
        assert thinned.column("power_w", 0)[at] == pytest.approx(min(low for low, _, _ in group), abs=1e-3)
        assert thinned.column("power_w", 2)[at] == pytest.approx(max(high for _, _, high in group), abs=1e-3)
        assert thinned.column("power_w", 1)[at] == pytest.approx(sum(m for _, m, _ in group) / len(group), abs=1e-2)
        together = 0
        for one in bits[start:end]:
            together |= one
        assert thinned.column(REASONS, 1)[at] == together


def test_a_long_run_fits() -> None:
    # A hundredth of seven days at one a second, in a hundredth of the room.
    thinned = Thinned(most=MAX_BUCKETS // 100)
    for number in range(7 * 24 * 36):
        thinned.add(float(number), 10, 0, {})
    assert len(thinned.t_s()) == 12
    # A bucket is 32 numbers of 8 bytes with a little around them: 2000 buckets of 8 GPUs take some 6 MB.
    assert sys.getsizeof(thinned._rows[0]) < 400


def test_values_that_were_not_read_stay_unread() -> None:
    thinned = Thinned(most=2)
    thinned.add(1.0, 10, None, {})
    thinned.add(2.0, 10, 4, {"power_w": [5, 6, 7]})
    thinned.add(3.0, 10, None, {})
    thinned.add(4.0, 10, None, {})
    assert thinned.t_s() == (2.0, 4.0)
    assert thinned.columns(1) == {"power_w": (6.0, None), REASONS: (4.0, None)}
    assert thinned.columns(0) == {"power_w": (5.0, None)}


def test_a_run_as_a_record() -> None:
    found = record(READY, second(2.0), second(3.0, bits={"4": 8, "64": 2}, late=3), FINISHED)
    series = found.series()
    assert (series.samples, series.reason_samples, series.t_s) == (20, {4: 18, 64: 2}, (2.0, 3.0))
    samples, events = found.sources()
    assert (samples.name, samples.alive, samples.detail) == (SAMPLES, True, "20 samples, one each 0.1 s; 3 missed")
    assert (events.name, events.alive, events.detail) == (EVENTS, True, "xid")


def test_a_sample_is_shown_with_means() -> None:
    found = Record(GPU, 0.1, 2.0)
    found.feed(READY)
    assert found.feed(second(2.0)) == {"event": "sample", "gpu": "GPU-0", "power_w": 2.0, REASONS: 4}
    assert found.feed({"type": "counters", "counters": {}}) is None


@pytest.mark.parametrize(
    ("messages", "ended_s", "detail"),
    [
        ((READY, second(2.0), FINISHED), 4.5, "no sample for 2.5 s"),
        ((READY, second(2.0), second(4.5), FINISHED), 4.5, "no sample for 2.5 s"),
        ((READY, second(2.0)), 3.0, "the sampler ended before the run did"),
        (({"type": "dead", "why": "driver_not_loaded"},), 3.0, "NVML says driver_not_loaded"),
        ((READY, {"type": "lost", "why": "gpu_is_lost", "t_s": 2.0}, second(3.0), FINISHED), 3.0, "gpu_is_lost"),
    ],
)
def test_a_source_that_failed_says_how(messages: tuple[dict[str, Any], ...], ended_s: float, detail: str) -> None:
    found = record(*messages, ended_s=ended_s)
    samples, events = found.sources()
    assert (samples.alive, samples.detail) == (False, detail)
    assert not events.alive
    assert found.series().lost == ("gpu_is_lost" if detail == "gpu_is_lost" else "")


def test_events_that_nvml_does_not_give_are_a_dead_source_of_events_only() -> None:
    found = record(READY | {"events": [], "events_why": "NVML events failed with not_supported"}, second(2.0), FINISHED
                   | {"events_why": "NVML events failed with not_supported"})  # fmt: skip
    samples, events = found.sources()
    assert samples.alive
    assert (events.alive, events.detail) == (False, "NVML events failed with not_supported")


def test_events_are_counted_by_kind_and_data() -> None:
    event = {"type": "event", "kind": "xid", "data": 79, "count": 1, "t_s": 1.5}
    found = record(READY, event, event | {"t_s": 1.7, "count": 4}, event | {"data": 48, "t_s": 1.2}, FINISHED)
    assert [(one.data, one.count, one.t_s) for one in found.events()] == [(48, 1, 1.2), (79, 5, 1.5)]
    assert [(one.xid, one.monotonic_us) for one in found.xids()] == [(48, 1_200_000), (79, 1_500_000)]


@pytest.mark.parametrize("message", [{}, {"type": "sung"}, {"type": "ready"}, {"type": "sample", "t_s": "x"}])
def test_messages_that_make_no_sense_are_refused(message: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError, TypeError)):
        Record(GPU, 0.1, 2.0).feed(message)


def test_the_parent_keeps_every_column_that_the_sampler_sends() -> None:
    from gpu_burnin.telemetry.sampler_columns import COLUMNS

    assert {*CONTINUOUS, REASONS} == set(COLUMNS)


def test_a_sampler_without_counters_is_none() -> None:
    with pytest.raises(ValueError, match="no counters"):
        record(READY | {"counters": {}})


def test_holes_between_samples_are_time_that_nobody_watched() -> None:
    found = Record(GPU, interval_s=0.1, stall_s=10.0)
    for message in (READY, second(2.0), second(6.0), second(7.0), second(9.5), FINISHED):
        found.feed(message)
    found.ended(11.0)
    assert found.series().watched_share == pytest.approx(0.6), "4 of 10 s; 2.5 s are a busy host's"
    assert found.sources()[0].alive, "no single hole is a stall"
    assert record(READY, second(2.0), FINISHED).series().watched_share == 1.0
