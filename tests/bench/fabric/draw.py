"""Faults that are drawn for a fabric: of one kind, or as many of each as a fleet may have at once."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from gpu_burnin.fabric.claim import Cause, Part
from gpu_burnin.fabric.model import Fabric, Outcome
from tests.bench.fabric.simulate import Fault

# OK: it is slow.
SHOWS = (Outcome.WRONG, Outcome.OK, Outcome.UNREACHABLE, Outcome.STALLED, Outcome.MTU)
OF_A_NODE = (Part.NODE, Part.NIC, Part.CABLE)
OF_A_LEAF = (Part.LEAF, Part.UPLINK, Part.SPINE, Part.RULE)


def cause(rng: random.Random, fabric: Fabric, part: Part) -> Cause:
    """A part of this fabric."""
    node, leaves = rng.choice(fabric.nodes), sorted(fabric.leaves)
    if part in (Part.NIC, Part.CABLE):
        return Cause(part, node.name, rng.choice(node.rails))
    if part is Part.SPINE:
        return Cause(part, node.spine)
    if part is Part.RULE:
        return Cause(part, f"between {' and '.join(sorted(rng.sample(leaves, 2)))}")
    return Cause(part, node.name if part is Part.NODE else node.leaf)


def fault(rng: random.Random, fabric: Fabric, part: Part, share: float = 1.0) -> Fault:
    """A fault of one kind."""
    shows = Outcome.UNREACHABLE if part is Part.RULE else rng.choice(SHOWS)
    return Fault(cause(rng, fabric, part), shows, share)


def many(rng: random.Random, fabric: Fabric, parts: Sequence[Part], count: int, share: float = 1.0) -> Iterator[Fault]:
    """Faults of so many different places."""
    places: set[str] = set()
    while len(places) < count:
        made = fault(rng, fabric, rng.choice(parts), share)
        if made.cause.name not in places:
            places.add(made.cause.name)
            yield made
