"""Times, sizes and rates as people read them."""

from __future__ import annotations

import pytest

from gpu_burnin.system import quantities


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9.2e-05, "92 µs"),
        (0.0021, "2.1 ms"),
        (0.000996, "1 ms"),
        (0.0, "0 s"),
        (0.123, "0.12 s"),
        (9.96, "10 s"),
        (45.2, "45 s"),
        (60, "1 min"),
        (200, "3 min 20 s"),
        (7200, "2 h"),
        (7500, "2 h 5 min"),
        (273600, "3 d 4 h"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert quantities.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), (0, "0"), (0.023412, "0.02341"), (812.43, "812.4"), (1482.4, "1,482"), (12345678.0, "12,345,678")],
)
def test_numbers(value: float | None, text: str) -> None:
    assert quantities.number(value) == text


def test_rates_and_sizes() -> None:
    assert quantities.rate(4.1e12, "B/s") == "4,100 GB/s"
    assert quantities.rate(812.4, "TFLOP/s") == "812.4 TFLOP/s"
    assert quantities.rate(3, "1") == "3"
    assert quantities.rate(1.3684e-06, "s") == "1.368 µs"
    assert quantities.rate(0.5, "s") == "0.5 s"
    assert quantities.size(141 * 2**30) == "141 GiB"
    assert quantities.size(512) == "512 B"


def test_counts() -> None:
    assert quantities.count(1, "copy", "copies") == "1 copy"
    assert quantities.count(1482, "copy", "copies") == "1,482 copies"
    assert quantities.count(0, "GPU") == "0 GPUs"
