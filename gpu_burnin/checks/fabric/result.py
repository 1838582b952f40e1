"""What a member has found itself: of the whole, of each rail alone, and of each other member."""

from __future__ import annotations

from dataclasses import dataclass

# What may be found: the words of gpu_burnin.fabric.model.Outcome. MTU: small messages come through, large do not.
OK, WRONG, UNREACHABLE, MTU, STALLED = "ok", "wrong", "unreachable", "mtu", "stalled"
# The gravest first.
OUTCOMES: tuple[str, ...] = (WRONG, MTU, UNREACHABLE, STALLED, OK)


@dataclass(frozen=True)
class WrongElement:
    """The first wrong element: its position in the result, the right bits and those that were there.

    `kind` is what they show: unwritten, stale (of the operation before), missing or doubled (a part of a sum), or
    corrupted.
    """

    position: int
    expected: str
    got: str
    kind: str = "corrupted"


@dataclass(frozen=True)
class PeerFinding:
    """What was found of another member. `bytes_per_s`: what came from it directly, without what this member waited
    for it to begin."""

    rank: int
    name: str
    outcome: str = OK
    wrong_elements: int = 0
    first_wrong: WrongElement | None = None
    bytes_per_s: float | None = None
    detail: str = ""


@dataclass(frozen=True)
class RailFinding:
    """One rail alone; loopback is not tried."""

    rail: int
    outcome: str
    bytes_per_s: float | None = None
    loopback: bool | None = None


@dataclass(frozen=True)
class Finding:
    """What a member found. `bytes_per_s` is the bus bandwidth of ring collectives over all rails together.

    `peers` are those of which anything was found. `operations` and `elements` were compared, every one.
    """

    outcome: str
    bytes_per_s: float | None = None
    rails: tuple[RailFinding, ...] = ()
    peers: tuple[PeerFinding, ...] = ()
    detail: str = ""
    operations: int = 0
    elements: int = 0
    wrong_elements: int = 0


def gravest(outcomes: list[str]) -> str:
    """Of several, OK of none."""
    return min(outcomes, key=OUTCOMES.index, default=OK)
