"""What can be faulty, and a claim of it: the likeliest cause, what speaks for it, and what else remains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_burnin.fabric.model import ALL, Found, Standing
from gpu_burnin.system.prose import listed

# What a firewall, a route or a setting of switches can do as well as a fault.
OF_RULES = frozenset({Found.UNREACHABLE, Found.MTU})
_GRAVITY = list(Found)


class Part(StrEnum):
    """What can be faulty."""

    NODE = "node"
    NIC = "NIC"
    CABLE = "cable"
    PORT = "leaf port"
    LEAF = "leaf switch"
    UPLINK = "uplinks"
    SPINE = "spine"
    PATH = "path"
    RULE = "firewall or route"


@dataclass(frozen=True)
class Cause:
    """One thing that may be faulty. `name` is a node's or a switch's, "a and b" of a path's ends; `rail` None: all."""

    part: Part
    name: str
    rail: int | None = None

    def __str__(self) -> str:
        rail = "" if self.rail is None else f" on rail {self.rail}"
        return f"{self.part} of {self.name}{rail}" if self.part in _OF else f"{self.part} {self.name}{rail}"


_OF = (Part.NIC, Part.CABLE, Part.PORT, Part.UPLINK)


@dataclass(frozen=True)
class Claim:
    """`causes`: the likeliest first; the others remain. `sure`: whether it is one thing, and the rest its parts.

    `nodes` are those that it keeps from work; `tests` the ids of those that failed.
    """

    found: Found
    causes: tuple[Cause, ...]
    evidence: tuple[str, ...]
    nodes: tuple[str, ...]
    sure: bool = True
    tests: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """It in one sentence."""
        first, *others = self.causes
        if not self.sure:
            return f"one of these, not told apart: {listed([str(cause) for cause in self.causes])}: {self.found}"
        return f"{first}: {self.found}" + (f"; or {listed([str(cause) for cause in others])}" if others else "")


def gravest(standings: Iterable[Standing], scopes: Iterable[int]) -> Found:
    """What failed most often in these scopes; the gravest of equals."""
    chosen, counted = set(scopes), dict.fromkeys(Found, 0)
    for standing in standings:
        for (scope, found), times in standing.causes.items():
            counted[found] += times * (scope in chosen)
    return max(counted, key=lambda found: (counted[found], -_GRAVITY.index(found)))


def link(name: str, rail: int, loopback: bool | None) -> tuple[Cause, ...]:
    """Cable, NIC and port, which a test through all three does not tell apart; the NIC's loopback does."""
    nic, cable, port = (Cause(part, name, rail) for part in (Part.NIC, Part.CABLE, Part.PORT))
    if loopback is None:
        return cable, nic, port
    # One that passed now may have failed then.
    return (cable, port, nic) if loopback else (nic,)


def one_rail(scopes: Sequence[int]) -> int | None:
    """The rail that is named alone; None where several are, or all together."""
    rails = [scope for scope in scopes if scope != ALL]
    return rails[0] if len(rails) == 1 else None


def tests_of(standings: Iterable[Standing]) -> tuple[int, ...]:
    """The ids of what failed."""
    return tuple(dict.fromkeys(test for standing in standings for test in standing.tests))


def texts(lines: Iterable[str]) -> tuple[str, ...]:
    """The lines that say something."""
    return tuple(line for line in lines if line)
