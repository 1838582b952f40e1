"""How many hosts change at a time, and when no further batch begins."""

from __future__ import annotations

import pytest

from gpu_burnin.fleet.roll.batches import batches, stop


@pytest.mark.parametrize(
    ("begun", "rest", "most", "canary", "sizes"),
    [
        (0, 0, 8, 1, ()),
        (0, 1, 8, 1, (1,)),
        (0, 20, 8, 1, (1, 2, 4, 8, 5)),
        (0, 9, 3, 1, (1, 2, 3, 3)),
        (0, 3, 1, 1, (1, 1, 1)),
        (0, 2, 0, 1, (1, 1)),
        (3, 4, 8, 1, (3, 1, 2, 1)),
        (5, 1, 2, 1, (2, 2, 1, 1)),
        # No canary: as many as may be from the first batch on.
        (0, 45, 20, 20, (20, 20, 5)),
        (0, 5, 2, 20, (2, 2, 1)),
        (0, 2, 0, 0, (1, 1)),
    ],
)
def test_batches_double_from_the_canary_to_the_most(
    begun: int, rest: int, most: int, canary: int, sizes: tuple[int, ...]
) -> None:
    assert batches(begun, rest, most, canary) == sizes
    assert sum(sizes) == begun + rest and max(sizes, default=0) <= max(most, 1)


def test_no_batch_begins_when_as_many_have_failed_as_may() -> None:
    assert stop(["gpu-1"], 2, "driver_upgrade_max_failures") == stop([], 1, "x") == ""
    said = stop(["gpu-1", "gpu-2"], 2, "driver_upgrade_max_failures")
    assert said.startswith("2 failed (gpu-1, gpu-2) and driver_upgrade_max_failures is 2: no further batch begins")
