"""The budgets of `make test`: they fit into its time, together with what is held back for what comes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.budgets import CACHES, CORES, TOLERATED, Budgets, compared, read_budgets

# What `make test` may take on two cores, with warm caches and without any (docs/reference/proof.md).
WARM_S, COLD_S = 50 * 60, 65 * 60


def test_all_that_is_given_away_and_held_back_fits_into_the_time_of_two_cores() -> None:
    budgets = read_budgets()
    assert budgets.all_s == WARM_S * CORES
    assert budgets.all_s / CORES + budgets.cold_build_s <= COLD_S
    assert budgets.given_s <= budgets.all_s, (
        f"{budgets.given_s - budgets.all_s:.0f} CPU s too many: free them in another stage, or in make soak"
    )


def test_parts_that_are_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "budgets.yaml"
    path.write_text("stages: {check: 5}\nall: 9\n")
    with pytest.raises(KeyError, match="reserved"):
        read_budgets(path)
    path.write_text("stages: {check: much}\nreserved: {}\nall: 9\ncold_build_minutes: 1\npiece_s: 0.2\n")
    with pytest.raises(ValueError, match="much"):
        read_budgets(path)
    path.write_text("stages: {check: 5}\nreserved: {scale: 3}\nall: 9\ncold_build_minutes: 2\npiece_s: 0.2\n")
    assert read_budgets(path) == Budgets({"check": 5.0}, {"scale": 3.0}, 9.0, 120.0, 0.2)
    assert read_budgets(path).given_s == 8


def test_a_budget_is_exceeded_from_its_tolerance_on() -> None:
    budgets = Budgets({"lab": 100.0}, {}, 100.0)
    assert compared("lab", 100.0, budgets) == ("100 of 100 CPU s", False)
    assert compared("lab", 100.0 * TOLERATED, budgets)[1] is False
    assert compared("lab", 100.0 * TOLERATED + 0.1, budgets)[1] is True


def test_filling_the_caches_may_take_its_minutes_of_both_cores() -> None:
    budgets = Budgets({"lab": 100.0}, {}, 100.0, cold_build_s=600.0)
    assert (budgets.of(CACHES), budgets.of("lab"), budgets.of("other")) == (1200.0, 100.0, None)
    assert compared(CACHES, 600.0 * CORES, budgets) == ("1200 of 1200 CPU s", False)
    assert compared(CACHES, 600.0 * CORES * TOLERATED + 1, budgets)[1] is True
