"""The phases of the NVLink check on one GPU: in peace, disjoint pairs at once, all at once. Each verifies its data."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.nvlink_rows import MOST_ERRORS, Row, error_entry
from gpu_burnin.checks.together import Group
from gpu_burnin.compute.peer import DIRECTIONS, Direction, PeerPort, transfer_key
from gpu_burnin.types import JSON

# The best of a few is taken: whatever else runs can only make a copy slower.
_TIMED = 3
_MOST_COPIES = 32
# 112 copies of 8 GPUs with each other still take less than a second.
_LEAST_SLOT_S = 2e-3


class Phases:
    """Makes the copies of all phases and keeps what came of them. All members call the same methods in step.

    `attached` has for each GPU those whose memory it has mapped: who can write here and be read from. `size_bytes` is
    that of one transfer.
    """

    def __init__(
        self,
        ctx: CheckContext,
        group: Group,
        port: PeerPort,
        rows: Mapping[str, Row],
        attached: Mapping[str, Sequence[str]],
        size_bytes: int,
    ) -> None:
        self._ctx, self._group, self._port, self._attached = ctx, group, port, attached
        self.rows = rows
        self.rounds = 0
        self.errors: list[dict[str, JSON]] = []
        self.verified_bytes = 0
        self.disjoint_rate: float | None = None
        self.all_rate: float | None = None
        self._round = 0
        self._size_bytes = size_bytes

    def in_peace(self, until_s: float) -> None:
        """One pair at a time, this GPU writing to and then reading from each other one: rates and data."""
        count = max(1, len(self._group.members))
        slot_s = max(0.0, until_s - time.monotonic()) / (len(DIRECTIONS) * count * count)
        for direction in DIRECTIONS:
            self._prepare()
            for turn in self._group.turns():
                if turn != self._group.uuid:
                    continue
                for uuid in self._reachable():
                    self.rows[uuid].rates[direction] = self._timed(uuid, direction, slot_s)
                    self._tell("one pair at a time", self.rows[uuid].rates[direction])
            self._verify(direction, "peace")

    def continues(self, end_s: float) -> bool:
        """Whether there is another round: all members find the same answer. There is a first one in any case."""
        left_s = self._group.least(end_s - time.monotonic())
        if self.rounds and left_s <= 0:
            return False
        self.rounds += 1
        return True

    def disjoint_pairs(self) -> None:
        """Every two GPUs once, as many pairs at a time as share no GPU, both writing to each other."""
        self._prepare()
        for partners in pairings(self._group.members):
            self._group.barrier()
            uuid = partners.get(self._group.uuid)
            if uuid is None or uuid not in self._reachable():
                continue
            self._begin(uuid, "write", 1)
            rate = self._finish()
            self.disjoint_rate = rate if self.disjoint_rate is None else min(rate, self.disjoint_rate)
        self._group.barrier()
        self._verify("write", "disjoint pairs")

    def all_at_once(self) -> None:
        """Every GPU writes to all others at the same time, and then reads from all."""
        for direction in DIRECTIONS:
            self._prepare()
            self._group.barrier()
            for uuid in self._reachable():
                self._begin(uuid, direction, 1)
            rate = self._finish()
            self._tell("all at once", rate)
            if self._reachable():
                self.all_rate = rate if self.all_rate is None else min(rate, self.all_rate)
            self._group.barrier()
            self._verify(direction, "all at once")

    def _reachable(self) -> tuple[str, ...]:
        """GPUs whose memory is mapped here and whose worker is alive."""
        return tuple(uuid for uuid, row in self.rows.items() if not row.why and uuid in self._group.members)

    def _sources(self, direction: Direction) -> tuple[str, ...]:
        """GPUs whose data has come here: those that could write, or those that could be read."""
        if direction == "read":
            return self._reachable()
        return tuple(uuid for uuid in self._group.members if uuid != self._group.uuid and self._reaches(uuid))

    def _reaches(self, uuid: str) -> bool:
        """Whether that GPU has mapped the memory of this one."""
        return self._group.uuid in self._attached.get(uuid, ())

    def _prepare(self) -> None:
        """New data for everybody, and nothing of the old left where it arrives."""
        self._round += 1
        for uuid in self.rows:
            # Also for a GPU that cannot be reached from here but reaches this one: it will read.
            if uuid in self._group.members and (not self.rows[uuid].why or self._reaches(uuid)):
                self._port.fill(uuid, transfer_key(self._ctx.seed, self._group.uuid, uuid, self._round))
                self._port.clear(uuid)

    def _verify(self, direction: Direction, phase: str) -> None:
        for uuid in self._sources(direction):
            row = self.rows[uuid]
            if row.why:
                continue
            faults = self._port.verify(uuid, transfer_key(self._ctx.seed, uuid, self._group.uuid, self._round))
            row.checked[direction] += 1
            row.wrong[direction] += bool(faults)
            self.verified_bytes += self._size_bytes
            room = MOST_ERRORS - len(self.errors)
            self.errors += [error_entry(uuid, direction, phase, fault) for fault in faults[:room]]

    def _timed(self, uuid: str, direction: Direction, slot_s: float) -> float:
        """Bytes per second of copies with one GPU in about `slot_s` seconds.

        The first copy tells how many fit in. It also pays for what a first copy has to set up, so there is one more
        even when it took longer than there is time for.
        """
        self._begin(uuid, direction, 1)
        first = self._port.finish()
        slot_s = max(slot_s, _LEAST_SLOT_S)
        fit = slot_s / (_TIMED + 1) / first.seconds if first.seconds > 0 else _MOST_COPIES
        copies = min(_MOST_COPIES, max(1, math.ceil(fit)))
        best = first.bytes_per_s
        for _ in range(1 if first.seconds > slot_s else _TIMED):
            self._begin(uuid, direction, copies)
            best = max(best, self._finish())
        return best

    def _begin(self, uuid: str, direction: Direction, copies: int) -> None:
        self._port.begin(uuid, direction, copies)
        self.rows[uuid].moved_bytes += copies * self._size_bytes

    def _finish(self) -> float:
        return self._port.finish().bytes_per_s

    def _tell(self, phase: str, rate: float) -> None:
        self._ctx.progress(
            {"phase": f"copies, {phase}", "rate": rate / 1e9, "rate_unit": "GB/s", "errors": len(self.errors)}
        )


def pairings(members: Sequence[str]) -> list[dict[str, str]]:
    """Steps in which every member meets every other exactly once, each at most one at a time (the circle method)."""
    ring: list[str | None] = [*members] if len(members) % 2 == 0 else [*members, None]
    steps = []
    for _ in range(len(ring) - 1):
        partners: dict[str, str] = {}
        for one, two in zip(ring[: len(ring) // 2], reversed(ring[len(ring) // 2 :]), strict=True):
            if one is not None and two is not None:
                partners |= {one: two, two: one}
        steps.append(partners)
        ring = [ring[0], ring[-1], *ring[1:-1]]
    return steps
