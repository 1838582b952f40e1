"""What each check says of itself, in the `SPEC` of its folder. Standard library only: every command loads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Scope(StrEnum):
    """How a check goes over the GPUs."""

    NODE = "node"  # once, for the whole node, before the GPUs
    EACH = "each"  # on every GPU as soon as that GPU has reached it
    TOGETHER = "together"  # on all GPUs from one moment on; their workers can exchange data
    AFTER = "after"  # once, for the whole node, when the workers have given back its GPUs

    @property
    def per_gpu(self) -> bool:
        """Whether the check gives a result for each GPU, and not one for the node."""
        return self not in (Scope.NODE, Scope.AFTER)


@dataclass(frozen=True)
class Slot:
    """The time of a check within a level.

    `weight` is its share of the time that is left, against the other checks; 0 means that it takes the time it
    takes. `least_s` are the seconds it gets however little is left.
    """

    weight: float
    least_s: float


@dataclass(frozen=True)
class CheckSpec:
    """What the machinery knows of a check.

    `slots` are its time by level, `faults` those that --inject knows; an `optional` check has to be asked for.
    `in_turns` is the part of its budget in which the GPUs take turns, each in peace while the others wait. With fewer
    than `least_gpus` it has nothing to do. `slower_at_less_power`: its rates are lower under a lower power limit.
    `between_gpus`: it is about how GPUs reach each other, which those in MIG mode do not.
    """

    scope: Scope
    slots: Mapping[str, Slot]
    selftested: bool = False
    faults: tuple[str, ...] = ()
    optional: bool = False
    in_turns: float = 0.0
    least_gpus: int = 1
    slower_at_less_power: bool = False
    between_gpus: bool = False
