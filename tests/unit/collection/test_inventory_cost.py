"""What checking the inventory costs a host does not grow with the fleet: one walk of all hosts for each makes it do so.

Only here: the cost of the whole check of site.yml. Which expressions walk: test_fleet_walks.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.inventory import Row, rows

FEW, MANY = 300, 1200
# With four times the hosts a host may cost so many times as much. A check without walks is below, since a part of it is
# the same for any fleet; one with a walk for each host was at 1.5.
MOST = 1.0


def checked(folder: Path, hosts: int) -> Row:
    """The check alone: first contact, which comes after it, is not asked for."""
    return next(row for row in rows(folder, hosts) if row.part.startswith("check it"))


@pytest.mark.slow
def test_a_host_costs_no_more_in_a_larger_fleet(tmp_path: Path) -> None:
    few, many = (checked(tmp_path, hosts).ms_a_host for hosts in (FEW, MANY))
    assert many / few < MOST, f"{few:.2f} ms of processor time a host of {FEW}, {many:.2f} ms of {MANY:,}"
