"""The inventory's rules for places and teams: they compare hosts, so each is asked once for the whole inventory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ansible_collections.muster.fleet.plugins.module_utils.jobs.fleet import (
    TEAMS,
    USERS,
    Mistake,
    place_mistakes,
    read_fleet,
)
from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import read_teams, read_users
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED, Inventory
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem


def host_places(inventory: Inventory) -> Iterable[Problem]:
    """Places of GPU nodes that cannot become labels."""
    nodes = inventory.groups.get("gpu_nodes", ())
    said = {host: place for host in nodes if (place := inventory.places.get(host)) and place is not UNRESOLVED}
    return _problems(place_mistakes(said))


def teams(inventory: Inventory) -> Iterator[Problem]:
    """Teams that cannot be, by themselves or on the GPU nodes that there are."""
    users, document = inventory.fleet.get(USERS) or (), inventory.fleet.get(TEAMS) or {}
    if not document:
        yield from _problems(read_users(users)[1])
        return
    nodes = inventory.groups.get("gpu_nodes", ())
    if not nodes:
        yield Problem(f"{TEAMS} is set, and no host is a GPU node", "list hosts under gpu_nodes", variable=TEAMS)
        return
    expects = {host: inventory.expects.get(host) for host in nodes}
    if UNRESOLVED in expects.values():
        return  # Told where variables are checked.
    places = {host: place for host in nodes if (place := inventory.places.get(host)) is not UNRESOLVED}
    fleet, mistakes = read_fleet(expects, places)
    yield from _problems([*mistakes, *read_teams(document, users, fleet)[1]])


def _problems(mistakes: Iterable[Mistake]) -> Iterator[Problem]:
    return (Problem(one.message, one.fix, one.hosts, one.variable) for one in mistakes)
