"""A whole quick burn-in of a real node: every check of a GPU passes, proves its detector and keeps to the time."""

from __future__ import annotations

from tests.bench.gpu.burnin import burn_in, shortfalls


def test_every_check_of_a_quick_run_passes_in_time() -> None:
    assert shortfalls(burn_in("--level", "quick")) == []
