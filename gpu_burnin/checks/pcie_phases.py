"""The phases of the pcie check: each GPU alone in its turn, then all at once; every batch is verified when it is over.

Time goes into rounds of at most ROUND_S, each with new data. Budget 0 is one round of one timed batch of each kind.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field

from gpu_burnin.checks import ROWS, CheckContext, done_share
from gpu_burnin.checks.together import Group
from gpu_burnin.compute.exact import mix
from gpu_burnin.compute.host_link import FAULTS, Direction, Geometry, HostLink, Moved, Verified, WrongCopy
from gpu_burnin.telemetry.pci import current_link
from gpu_burnin.types import JSON, Measurement, Series

ROUND_S = 30.0
# Shares of a round: the turns of all GPUs together, and both directions of all GPUs at once. The rest is for filling
# and verifying, which the host does.
_TURNS_SHARE, _ALL_SHARE = ROWS["pcie"].in_turns, 0.25
# Without less than this, the GPUs' batches would hardly overlap; simulated ones need not.
_LEAST_ALL_S = 0.25
# A batch of all at once is one of many copies, so that nothing but copies happens in it.
_MOST_COPIES = 4096
SMALL_BYTES = 4096
_SMALL_COPIES = 256
MAX_ERRORS = 16

ALONE: tuple[Direction, ...] = ("h2d", "d2h", "duplex")
# An idle link may be trained down and takes a while to come up: it is read in the last batches of a turn only.
_LINK_READ_IN = "duplex"
AT_ONCE: tuple[Direction, ...] = ("h2d", "d2h")


@dataclass
class Rate:
    """Bytes and device seconds of the timed batches of one kind, and one rate for each batch."""

    bytes: int = 0
    seconds: float = 0.0
    times_s: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)

    def add(self, moved: Moved, at_s: float) -> None:
        """Count a batch that ended at `at_s` (CLOCK_MONOTONIC)."""
        self.bytes, self.seconds = self.bytes + moved.bytes, self.seconds + moved.seconds
        self.times_s.append(at_s)
        self.rates.append(moved.bytes_per_s)

    @property
    def bytes_per_s(self) -> float:
        """Over all batches."""
        return Moved(self.bytes, self.seconds).bytes_per_s


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
    generation: int | None = None
    width: int | None = None

    def saw(self, found: Verified) -> None:
        """Count a verification."""
        self.verified = Verified(self.verified.copies + found.copies, self.verified.bytes + found.bytes)
        for wrong in found.wrong:
            self.kinds[str(wrong.kind)] += 1
            self.wrong_by_direction[wrong.direction] += 1
        self.errors = (self.errors + list(found.wrong))[:MAX_ERRORS]

    @property
    def wrong(self) -> int:
        """Copies that were wrong."""
        return sum(self.kinds.values())

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
            Series(f"pcie {name}", "B/s", tuple(rate.times_s), tuple(rate.rates)) for name, rate in self.rates.items()
        )


class Session:
    """One GPU's part in the check. `link` and `small` are open and are closed by the caller."""

    def __init__(self, ctx: CheckContext, group: Group, link: HostLink, small: HostLink) -> None:
        self._ctx, self._group, self._link, self._small = ctx, group, link, small
        self._started = time.monotonic()
        self.tally = Tally()

    def run(self, geometry: Geometry) -> None:
        """All rounds. Every member makes as many: their number follows from the shortest budget of all."""
        rounds = max(1, int(self._group.budget_s / ROUND_S))
        for number in range(rounds):
            round_s = self._group.budget_s / rounds
            self._link.fill(mix(self._ctx.seed + number))
            for uuid in self._group.turns():
                if uuid == self._group.uuid:
                    self._turn(geometry, round_s * _TURNS_SHARE / len(self._group.members), first=number == 0)
            for direction in AT_ONCE:
                self._all_at_once(geometry, direction, round_s * _ALL_SHARE / len(AT_ONCE))
            self.tally.rounds += 1

    def _strike(self) -> None:
        """Injected faults hit the first timed copies, below the verification."""
        for fault in FAULTS:
            if fault in self._ctx.inject:
                self._link.strike(fault, self._ctx.seed)

    def _turn(self, geometry: Geometry, turn_s: float, first: bool) -> None:
        """This GPU copies, the others wait."""
        if first:
            self._small_copies()
            for direction in AT_ONCE:
                self._batch(direction, 1, None)  # warms up: verified, not timed
            self._strike()
        for direction in ALONE:
            ends = time.monotonic() + turn_s / len(ALONE)
            self._batch(direction, geometry.slots, direction)
            while time.monotonic() < ends:
                self._batch(direction, geometry.slots, direction)

    def _all_at_once(self, geometry: Geometry, direction: Direction, wanted_s: float) -> None:
        """One long batch on every GPU; who has finished waits before verifying, so as not to disturb the others."""
        least_s = 0.0 if self._link.simulated else _LEAST_ALL_S
        alone = self.tally.rates[direction]
        copies = round(max(wanted_s, least_s) * alone.bytes_per_s / geometry.size_bytes)
        copies = max(geometry.slots, min(copies, _MOST_COPIES))
        self._group.barrier()
        self.tally.gpus_at_once = len(self._group.members)
        self._move(self._link, direction, copies, f"{direction}_all")
        self._group.barrier()
        self.tally.saw(self._link.verify())

    def _small_copies(self) -> None:
        """The time of one copy of SMALL_BYTES among many, each enqueued by itself."""
        self._small.fill(mix(~self._ctx.seed))
        for direction in AT_ONCE:
            for _ in range(2):  # the first batch warms up
                self._small.begin(direction, _SMALL_COPIES)
                moved = self._small.finish()
                self.tally.copies += _SMALL_COPIES
                self.tally.bytes += moved.bytes
                self.tally.saw(self._small.verify())
            self.tally.small_s[direction] = moved.seconds / _SMALL_COPIES

    def _batch(self, direction: Direction, copies: int, timed: str | None) -> None:
        self._move(self._link, direction, copies, timed)
        self.tally.saw(self._link.verify())

    def _move(self, link: HostLink, direction: Direction, copies: int, timed: str | None) -> None:
        link.begin(direction, copies)
        under_load = self._read_link() if timed == _LINK_READ_IN and not link.simulated else (None, None)
        moved = link.finish()
        tally = self.tally
        tally.copies += copies * (2 if direction == "duplex" else 1)
        tally.bytes += moved.bytes
        tally.link(*under_load)
        if timed is not None:
            tally.rates.setdefault(timed, Rate()).add(moved, time.monotonic())
            self._show(timed, moved.bytes_per_s)

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
