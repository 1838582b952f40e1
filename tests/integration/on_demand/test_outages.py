"""Parts of the running control plane die while clients write: nothing that was acknowledged is lost.

On demand, by `make lab-operations`. `make bench-control-plane` does the same and more, and tells how long clients
waited.

Only here: outages of a fleet on hosts, under clients that write through the balancer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from tests.bench.control_plane import operations, outages
from tests.bench.control_plane.clients import Clients, under_clients
from tests.integration.fleet import Fleet

pytestmark = pytest.mark.soak

OUTAGES: dict[str, Callable[[Clients], str]] = {
    "the leader of etcd killed": outages.leader_killed,
    "the events etcd away": partial(outages.events_stopped, away_s=20),
    "an API server killed": outages.server_killed,
    "a member of etcd killed, wiped, replaced": operations.member_replaced,
}


@pytest.mark.parametrize("what", OUTAGES)
def test_nothing_that_was_acknowledged_is_lost(fleet: Fleet, what: str) -> None:
    cost, seen = under_clients(fleet, OUTAGES[what])
    print(f"{what}: {seen}: {cost}")
    assert cost.acknowledged > 0
    assert cost.lost == 0
