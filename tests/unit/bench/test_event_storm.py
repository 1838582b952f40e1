"""What the benchmark of an event storm computes and prints."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from tests.bench.admission.measure import samples
from tests.bench.event_storm.__main__ import Turn, bucket_quantile, limits, room, scenarios, table

NAME = "flushes_bucket"


def turn(
    p99_ms: float, events_per_s: float = 0.0, cores: Sequence[float] = (0.5, 0.5), own: Sequence[float] = (0.4, 0.4)
) -> Turn:
    return Turn([1.0] * 90 + [p99_ms] * 10, 2.0, events_per_s, 700.0, cores, own)


def histogram(*counts: int) -> str:
    limits = ("0.001", "0.002", "0.004", "+Inf")
    return "\n".join(f'{NAME}{{le="{limit}"}} {count}' for limit, count in zip(limits, counts, strict=True))


def test_a_quantile_is_that_of_the_time_in_between() -> None:
    before, after = samples(histogram(100, 100, 100, 100)), samples(histogram(150, 200, 200, 200))
    assert bucket_quantile(before, after, NAME, 0.5) == pytest.approx(0.001)
    assert bucket_quantile(before, after, NAME, 0.75) == pytest.approx(0.0015)
    assert bucket_quantile(before, samples(histogram(100, 100, 100, 110)), NAME, 0.99) == 0.004
    assert math.isnan(bucket_quantile(before, before, NAME, 0.99))


def test_a_storm_that_slows_the_main_etcd_by_more_than_a_fifth_is_missed() -> None:
    quiet, own, main, *_ = scenarios(5000)
    good = table({quiet: [turn(10)], own: [turn(11.9, 5000)], main: [turn(30, 5000)]}).splitlines()
    assert "| 1.19 |" in good[3] and "| 3.00 |" in good[4]
    assert "1.21 **missed**" in table({quiet: [turn(10)], own: [turn(12.1, 5000)]})


def test_what_the_machine_did_not_carry_is_said() -> None:
    own = scenarios(5000)[1]
    assert limits(own, [turn(1, 4900)]) == ""
    assert limits(own, [turn(1, 4000)]) == "only 4,000 of 5,000 events a second were carried"
    assert limits(own, [turn(1, 5000, (0.99, 0.5), (0.97, 0.4))]) == "the first core was full"
    assert limits(own, [turn(1, 5000, (0.5, 0.97))]) == "the second core was full, by others too"


def test_how_long_the_quota_lasts() -> None:
    assert room(1024, 8 * 2**30, 5000).endswith(
        "at 2,330 a second; at 5,000 a second it is full after 28 minutes (computed)."
    )
