"""The inventory's rules for how many nodes may swing their power at a feed (`fleet_feed_limits`). Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import levels_of
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED, Inventory
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

from gpu_burnin.fleet.feeds.limits import LIMITS, limit_mistakes

_SHOWN = 5


def feed_limits(inventory: Inventory) -> Iterator[Problem]:
    """Limits that are none, and those of feeds at which no GPU node stands: their nodes would count elsewhere."""
    limits = inventory.fleet.get(LIMITS)
    if limits is None:
        return  # It cannot be resolved, which is told where variables are checked.
    for message, fix in limit_mistakes(limits):
        yield Problem(message, fix, variable=LIMITS)
    if not limits or not isinstance(limits, Mapping):
        return
    nodes = inventory.groups.get("gpu_nodes", ())
    places = [place for host in nodes if (place := inventory.places.get(host)) and place is not UNRESOLVED]
    feeds = sorted({feed for place in places if (feed := _feed(place))})
    shown = ", ".join([*feeds[:_SHOWN], *([f"{len(feeds) - _SHOWN} more"] if len(feeds) > _SHOWN else [])])
    for name in map(str, limits):
        if name not in feeds:
            yield Problem(
                f"{LIMITS} has the feed {name!r}, at which no GPU node stands; those that there are: {shown or 'none'}",
                "correct the name, there or in feed of fleet_place, or remove it",
                variable=LIMITS,
            )


def _feed(place: object) -> str:
    """Where a place cannot be read, that is told by the rule of places."""
    try:
        return levels_of("", place).get("feed", "")
    except FleetError:
        return ""
