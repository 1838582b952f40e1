"""How many nodes of some stand where, and the order in which places are filled and emptied. Pure.

Whole racks at a time: a rack that is begun stays the best one until it is full, since each step speaks for it the more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from gpu_burnin.api.record import Place

# A leaf switch and a rack below it; "" for what nobody says.
Rack = tuple[str, str]


@dataclass(frozen=True)
class FleetNode:
    """A node of the ledger. `team` is the one that it is dedicated to, "" for none; `free`: it may move now."""

    name: str
    model: str
    gpus: int
    place: Place = field(default_factory=Place)
    team: str = ""
    free: bool = False

    @property
    def rack(self) -> Rack:
        """Where it stands."""
        return self.place.leaf, self.place.rack


class Places:
    """How many nodes stand at each leaf and in each rack. Where nobody says where they stand, nothing is near them."""

    def __init__(self, nodes: Iterable[FleetNode]) -> None:
        racks = Counter(node.rack for node in nodes)
        self._racks, self._leaves = racks, Counter[str]()
        for (leaf, _), count in racks.items():
            self._leaves[leaf] += count

    def of(self, rack: Rack) -> tuple[int, int]:
        """At its leaf and in it, the wider first."""
        return self._leaves[rack[0]] if rack[0] else 0, self._racks[rack] if rack[1] else 0

    def add(self, rack: Rack, count: int) -> None:
        """So many more."""
        self._racks[rack] += count
        self._leaves[rack[0]] += count


def fullest_first(own: Iterable[FleetNode], pool: Iterable[FleetNode], gpus: int) -> Iterator[FleetNode]:
    """Nodes of the pool with `gpus` at most: from the places with most of one's own, then with most of the pool."""
    racks = _by_rack(pool)
    held, free = Places(own), Places(node for nodes in racks.values() for node in nodes)
    while fitting := [rack for rack, nodes in racks.items() if nodes and nodes[-1].gpus <= gpus]:
        rack = min(fitting, key=lambda one: (*_most(held.of(one)), *_most(free.of(one)), one))
        taken = []
        for node in racks.pop(rack):
            if node.gpus <= gpus:
                gpus -= node.gpus
                taken.append(node)
        yield from taken
        held.add(rack, len(taken))
        free.add(rack, -len(taken))


def emptiest_first(own: Iterable[FleetNode], free: Iterable[FleetNode], gpus: int) -> Iterator[FleetNode]:
    """Free nodes of one's own with `gpus` together at least, if there are: from the places with fewest of one's own.

    What has more GPUs than are left to give comes last, and the smallest of it alone.
    """
    racks = _by_rack(free)
    held = Places(own)
    while fitting := [rack for rack, nodes in racks.items() if nodes and nodes[-1].gpus <= gpus]:
        rack = min(fitting, key=lambda one: (*held.of(one), one))
        given = []
        for node in racks[rack]:
            if node.gpus <= gpus:
                gpus -= node.gpus
                given.append(node)
        yield from given
        racks[rack] = [node for node in racks[rack] if node not in given]
        held.add(rack, -len(given))
    if gpus > 0 and (left := [node for nodes in racks.values() for node in nodes]):
        yield min(left, key=lambda node: (node.gpus, *held.of(node.rack), node.name))


def _by_rack(nodes: Iterable[FleetNode]) -> dict[Rack, list[FleetNode]]:
    """The nodes of each rack, the largest first; nodes without GPUs are none."""
    racks: dict[Rack, list[FleetNode]] = {}
    for node in sorted(nodes, key=lambda node: (-node.gpus, node.name)):
        if node.gpus > 0:
            racks.setdefault(node.rack, []).append(node)
    return racks


def _most(counts: tuple[int, int]) -> tuple[int, int]:
    return -counts[0], -counts[1]
