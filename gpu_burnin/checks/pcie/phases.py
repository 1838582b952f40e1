"""The phases of the pcie check: each GPU alone in its turn, then all at once; every batch is verified when it is over.

No batch is longer than the ring of slots, so every copy still lies where it came when it is looked at, and nothing but
copies happens while they are timed: the seconds of the batches are the verified time of each direction. Time goes into
rounds of at most ROUND_S, each with new data. Budget 0 is one round with the fewest batches of each kind.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from gpu_burnin.checks import CheckContext, done_share
from gpu_burnin.checks.pcie import SPEC
from gpu_burnin.checks.pcie.port import (
    FAULTS,
    MOST_LOCATED,
    WAYS,
    Direction,
    Geometry,
    Moved,
    PciePort,
    Verified,
    WrongCopy,
)
from gpu_burnin.checks.together import Clock, Group
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.exact.operands import mix
from gpu_burnin.telemetry.pci import current_link
from gpu_burnin.types import JSON, Measurement, Series

ROUND_S = 30.0
# Shares of a round: the turns of all GPUs together, and both directions of all GPUs at once. The rest is for filling.
_TURNS_SHARE, _ALL_SHARE = SPEC.in_turns, 0.4
# Batches of all at once each way, and from the last GPU's word that it is ready to their common start. A batch takes
# milliseconds: only a start at one moment makes them overlap. Simulated ones need not.
_LEAST_ALL, _LEAD_S = 4, 0.01
# Points of a series that go into the report; beyond, neighbours are joined.
_MOST_POINTS = 2000
SMALL_BYTES = 4096
_SMALL_COPIES = 256
MAX_ERRORS = 16

ALONE: tuple[Direction, ...] = ("h2d", "d2h", "duplex")
# An idle link may be trained down and takes a while to come up: it is read in the last batches of a turn only.
_LINK_READ_IN = "duplex"
AT_ONCE: tuple[Direction, ...] = ("h2d", "d2h")


@dataclass
class Rate:
    """Timed batches of one kind: when each ended (CLOCK_MONOTONIC, s), and what it moved."""

    points: list[tuple[float, Moved]] = field(default_factory=list)

    def add(self, moved: Moved, at_s: float) -> None:
        """Count a batch that ended at `at_s`."""
        self.points.append((at_s, moved))
        if len(self.points) > _MOST_POINTS:
            pairs = zip(self.points[0::2], self.points[1::2], strict=False)
            joined = [(at, _both(one, two)) for (_, one), (at, two) in pairs]
            self.points = joined + self.points[len(joined) * 2 :]

    @property
    def bytes_per_s(self) -> float:
        """Over all batches."""
        moved = [moved for _, moved in self.points]
        return Moved(sum(one.bytes for one in moved), sum(one.seconds for one in moved)).bytes_per_s


def _both(one: Moved, two: Moved) -> Moved:
    return Moved(one.bytes + two.bytes, one.seconds + two.seconds)


@dataclass
class Tally:
    """What was moved, verified and found so far."""

    rates: dict[str, Rate] = field(default_factory=dict)
    small_s: dict[str, float] = field(default_factory=dict)
    verified: Verified = field(default_factory=Verified)
    kinds: Counter[str] = field(default_factory=Counter)
    wrong_by_direction: Counter[str] = field(default_factory=Counter)
    errors: list[WrongCopy] = field(default_factory=list)
    copies: int = 0
    bytes: int = 0
    rounds: int = 0
    gpus_at_once: int = 0
    time: VerifiedTime = field(default_factory=lambda: VerifiedTime.of(WAYS["duplex"]))
    generation: int | None = None
    width: int | None = None

    def moved(self, direction: Direction, copies: int, moved: Moved, found: Verified) -> None:
        """Count a batch of `copies` copies each way and its verification."""
        made = copies * len(WAYS[direction])
        self.copies, self.bytes = self.copies + made, self.bytes + moved.bytes
        self.time.add(moved.seconds, *WAYS[direction], share=found.copies / made)
        self.saw(found)

    def saw(self, found: Verified) -> None:
        """Count a verification."""
        self.verified = Verified(self.verified.copies + found.copies, self.verified.bytes + found.bytes)
        for wrong in found.wrong:
            self.wrong_by_direction[wrong.direction] += 1
            if wrong.kind is not None:
                self.kinds[str(wrong.kind)] += 1
        self.errors = (self.errors + [wrong for wrong in found.wrong if wrong.kind is not None])[:MAX_ERRORS]

    @property
    def wrong(self) -> int:
        """Copies that were wrong, looked into or only counted."""
        return self.wrong_by_direction.total()

    @property
    def enough(self) -> bool:
        """Whether so many wrong copies were looked into that more time would tell nothing more."""
        return len(self.errors) >= MOST_LOCATED

    def link(self, generation: int | None, width: int | None) -> None:
        """Keep the worst that was read while copies were under way."""
        self.generation = min((g for g in (generation, self.generation) if g is not None), default=None)
        self.width = min((w for w in (width, self.width) if w is not None), default=None)

    def measurements(self) -> tuple[Measurement, ...]:
        """The rates, and the seconds of one small copy."""
        small = (Measurement(f"{way}_4k_copy", seconds, "s") for way, seconds in self.small_s.items())
        return (*(Measurement(name, rate.bytes_per_s, "B/s") for name, rate in self.rates.items()), *small)

    def series(self) -> tuple[Series, ...]:
        """The rates over time."""
        return tuple(
            Series(
                f"pcie {name}",
                "B/s",
                tuple(at_s for at_s, _ in rate.points),
                tuple(moved.bytes_per_s for _, moved in rate.points),
            )
            for name, rate in self.rates.items()
        )


class Session:
    """One GPU's part in the check. `link` and `small` are open and are closed by the caller."""

    def __init__(self, ctx: CheckContext, group: Group, link: PciePort, small: PciePort) -> None:
        self._ctx, self._group, self._link, self._small = ctx, group, link, small
        self._started = time.monotonic()
        self.tally = Tally()

    def run(self, geometry: Geometry) -> None:
        """All rounds, or until every member has found enough. Every member makes as many: their number follows from
        the shortest budget of all."""
        rounds = max(1, int(self._group.budget_s / ROUND_S))
        for number in range(rounds):
            if number and all(self._group.gather(self.tally.enough).values()):
                return
            round_s = self._group.budget_s / rounds
            self._link.fill(mix(self._ctx.seed + number))
            for uuid in self._group.turns():
                if uuid == self._group.uuid:
                    self._turn(geometry, round_s * _TURNS_SHARE / len(self._group.members), first=number == 0)
            for direction in AT_ONCE:
                self._all_at_once(geometry, direction, round_s * _ALL_SHARE / len(AT_ONCE))
            self.tally.rounds += 1

    def _inject(self) -> None:
        """Injected faults hit the first timed copies, below the verification."""
        for fault in FAULTS:
            if fault in self._ctx.inject:
                self._link.inject(fault, self._ctx.seed)

    def _turn(self, geometry: Geometry, turn_s: float, first: bool) -> None:
        """This GPU copies, the others wait."""
        if first:
            self._small_copies()
            for direction in AT_ONCE:
                self._batch(direction, 1, None)  # warms up: verified, not timed
            self._inject()
        for direction in ALONE:
            ends = time.monotonic() + turn_s / len(ALONE)
            self._batch(direction, geometry.slots, direction)
            while time.monotonic() < ends and not self.tally.enough:
                self._batch(direction, geometry.slots, direction)

    def _all_at_once(self, geometry: Geometry, direction: Direction, seconds: float) -> None:
        """Batches on every GPU from one moment on; what came is verified before the next moment."""
        ends_s = time.monotonic() + (0.0 if self.tally.enough else seconds)
        clock, until_s, batches = Clock(), self._group.latest_s(ends_s), 0
        while (start_s := self._group.start_s(_LEAD_S)) < until_s or batches < _LEAST_ALL:
            if not self._link.simulated:
                clock.until(start_s)
            self.tally.gpus_at_once = len(self._group.members)
            self._batch(direction, geometry.slots, f"{direction}_all")
            batches += 1

    def _small_copies(self) -> None:
        """The time of one copy of SMALL_BYTES among many, each enqueued by itself."""
        self._small.fill(mix(~self._ctx.seed))
        for direction in AT_ONCE:
            for _ in range(2):  # the first batch warms up
                moved = self._moved(self._small, direction, _SMALL_COPIES)
            self.tally.small_s[direction] = moved.seconds / _SMALL_COPIES

    def _batch(self, direction: Direction, copies: int, timed: str | None) -> None:
        moved = self._moved(self._link, direction, copies, reads_link=timed == _LINK_READ_IN)
        if timed is not None:
            self.tally.rates.setdefault(timed, Rate()).add(moved, time.monotonic())
            self._show(timed, moved.bytes_per_s)

    def _moved(self, link: PciePort, direction: Direction, copies: int, reads_link: bool = False) -> Moved:
        """Make a batch, verify all of it, and count both."""
        link.begin(direction, copies)
        under_load = self._read_link() if reads_link and not link.simulated else (None, None)
        moved = link.finish()
        self.tally.link(*under_load)
        self.tally.moved(direction, copies, moved, link.verify())
        return moved

    def _read_link(self) -> tuple[int | None, int | None]:
        gpu = self._ctx.gpu
        return (None, None) if gpu is None else current_link(gpu.pci_bus_id)

    def _show(self, what: str, rate: float) -> None:
        """For the live display."""
        shown: dict[str, JSON] = {
            "phase": f"PCIe {what.replace('_', ' ')}",
            "rate": rate / 1e9,
            "rate_unit": "GB/s",
            "errors": self.tally.wrong,
            "done": done_share(time.monotonic() - self._started, self._group.budget_s),
        }
        self._ctx.progress(shown)
