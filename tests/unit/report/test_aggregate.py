"""Many lines as one: the median, the shade, and the one that stands apart."""

from __future__ import annotations

from gpu_burnin.report.aggregate import Strand, furthest, pooled, stretches


def strand(values: list[float | None], start: float = 0.0) -> Strand:
    return Strand([start + step for step in range(len(values))], values, values, values)


def test_pooled_is_the_median_of_each_stretch_from_the_lowest_to_the_highest() -> None:
    found = pooled([strand([1, 1]), strand([2, 2]), strand([9, 3])], (0.0, 2.0), 2)
    assert (found.t_s, found.values, found.low, found.high) == ([0.5, 1.5], [2, 2], [1, 1], [9, 3])


def test_what_was_joined_into_a_value_counts_for_the_shade() -> None:
    found = pooled([Strand([0.0], [5.0], [2.0], [None])], (0.0, 1.0), 4)
    assert (found.values, found.low, found.high) == ([5.0], [2.0], [5.0])


def test_strands_that_are_read_at_slightly_different_times_leave_no_gaps() -> None:
    """Eight samples of each GPU over eight seconds once became dashes in 240 stretches."""
    strands = [strand([1.0] * 8, shift) for shift in (0.0, 0.1, 0.3)]
    assert (stretches(strands, 240), stretches(strands, 5), stretches([], 5)) == (8, 5, 1)
    assert len(pooled(strands, (0.0, 8.0), stretches(strands, 240)).t_s) == 8


def test_a_missing_value_is_left_out_and_no_strand_is_no_value() -> None:
    assert list(pooled([strand([None, 4.0])], (0.0, 2.0), 2).values) == [4.0]
    assert list(pooled([], (0.0, 1.0), 5).values) == []


def test_the_one_that_stands_apart_is_found_unless_it_is_near() -> None:
    strands = [strand([10.0] * 5), strand([11.0] * 5), strand([30.0, None, 30.0, 30.0, 30.0]), strand([10.5] * 5)]
    assert furthest(strands, (0.0, 5.0), 5, least=3.0) == 2
    assert furthest(strands, (0.0, 5.0), 5, least=25.0) is None
    assert furthest([], (0.0, 5.0), 5, least=1.0) is None
