"""What a build of thousands takes, and that the page has these figures."""

from __future__ import annotations

import pytest

from gpu_burnin.fleet.waves.build import build
from tests.lab.paths import REPOSITORY

PAGE = (REPOSITORY / "docs/operations/thousands-of-nodes.md").read_text()


@pytest.mark.parametrize("cores", [2, 16, 64])
@pytest.mark.parametrize("canary", [1, 16])
def test_the_page_has_the_computed_build(cores: int, canary: int) -> None:
    made = build(7500, cores, canary)
    row = (
        f"| {cores} | {canary} | {made.waves} | {made.cpu_h:.1f} h | {made.waves_h:.1f} h | {made.joins_h:.1f} h | "
        f"{made.total_h:.1f} h |"
    )
    assert row in PAGE


def test_more_of_anything_takes_no_less() -> None:
    assert build(7500, 16, 16).total_h < build(7500, 2, 16).total_h
    assert build(7500, 16, 16).total_h < build(15000, 16, 16).total_h
    assert build(7500, 16, 16).total_h < build(7500, 16, 1).total_h
    assert build(7500, 2, 16, cpu_s=4.0).total_h < build(7500, 2, 16).total_h
    slow_joins = build(100_000, 4096, 1024)
    assert slow_joins.total_h == slow_joins.joins_h, "the admitter's pace is the bound where all else is fast"
