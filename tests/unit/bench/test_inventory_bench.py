"""The bench of the controller's part: its fleets pass the check, and its plays do what they are timed for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.inventory import Cost, Row, play, rows, table


def test_the_ratio_is_of_a_hosts_cost_to_that_in_the_smaller_fleet() -> None:
    found = [Row("check", 100, Cost(2, 1, 2**20)), Row("check", 1000, Cost(30, 20, 2**21))]
    first, second = [line.split() for line in table(found).splitlines()[1:]]
    assert first == ["check", "100", "2.0", "1.0", "10.00", "-", "1"]
    assert second == ["check", "1,000", "30.0", "20.0", "20.00", "2.00", "2"]


@pytest.mark.slow
# The hosts are the same however the inventory says them.
@pytest.mark.parametrize("by_formula", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_the_plays_check_and_meet_every_host_of_the_fleet(tmp_path: Path, by_formula: bool) -> None:
    found = list(rows(tmp_path, 30, by_formula=by_formula))
    assert [row.part.partition(" (")[0] for row in found] == [
        "read the inventory",
        "check it",
        "the summary, no results",
        "first contact, none up",
    ]
    assert all(row.hosts == 30 and row.cost.peak_bytes > 2**20 for row in found)
    with pytest.raises(SystemExit, match="did not say"):
        play(tmp_path / f"fleet-30-{by_formula}", [{"ansible.builtin.debug": {"msg": "other"}}], "30 hosts and ")
