"""What the comparison of the disk's probe with fio prints, and what it calls missed."""

from __future__ import annotations

import pytest

from tests.bench.disk import Row, Turn, table


def turns(*p99s_ms: float) -> list[Turn]:
    return [Turn(p99_ms, 3.0, 2.0, 11.0) for p99_ms in p99s_ms]


@pytest.mark.parametrize(("probe_ms", "met"), [(1.0, True), (1.14, True), (0.86, True), (1.16, False), (0.84, False)])
def test_within_15_percent_of_fio(probe_ms: float, met: bool) -> None:
    assert Row(0, 8192, turns(probe_ms), turns(1.0)).met is met


def test_one_bad_turn_does_not_decide() -> None:
    assert Row(0, 8192, turns(1.0, 1.0, 90.0), turns(1.0, 1.0, 1.0)).ratio == 1.0


def test_the_table_says_what_was_missed_and_what_reached_the_disk() -> None:
    lines = table([Row(0, 2300, turns(2.0), turns(1.0)), Row(500, 8192, turns(99.0), turns(99.0))]).splitlines()
    assert "| as it is | 2300 bytes |" in lines[2] and "2.00 **missed**" in lines[2]
    assert "| 500 writes a second | 8192 bytes |" in lines[3] and "| 1.00 |" in lines[3]
    assert "3.00 / 3.00, 2.00 / 2.00, 11.00 / 11.00" in lines[3]
