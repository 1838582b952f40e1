"""The phases of the NVLink check on one GPU: in peace, disjoint pairs at once, all at once.

Each phase makes one copy from GPU to GPU, with data of its own, and has it verified where it came before the next one
goes there: no copy is timed that nobody looked at. Who made a copy hears whether it was looked at, and counts its time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.nvlink.port import DIRECTIONS, Direction, NvlinkPort, PieceFault, transfer_key
from gpu_burnin.checks.nvlink.result import Pair
from gpu_burnin.checks.together import Group
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.types import JSON

# The best of a few is taken: whatever else runs can only make a copy slower, and a first copy pays for what it sets up.
_LEAST_IN_PEACE = 4
MOST_ERRORS = 64


class Phases:
    """Makes the copies of all phases and keeps what came of them. All members call the same methods in step.

    `attached` has for each GPU those whose memory it has mapped: who can write here and be read from. `size_bytes` is
    that of one transfer.
    """

    def __init__(
        self,
        ctx: CheckContext,
        group: Group,
        port: NvlinkPort,
        pairs: Mapping[str, Pair],
        attached: Mapping[str, Sequence[str]],
        size_bytes: int,
    ) -> None:
        self._ctx, self._group, self._port, self._attached = ctx, group, port, attached
        self.pairs = dict(pairs)
        self.moved_bytes = dict.fromkeys(pairs, 0)
        self.rounds = 0
        self.errors: list[dict[str, JSON]] = []
        self.verified_bytes = 0
        self.disjoint_rate: float | None = None
        self.all_rate: float | None = None
        self.copies_moved = self.copies_verified = 0
        reached = [uuid for uuid, pair in pairs.items() if not pair.why]
        self.time = VerifiedTime.of(_part(direction, uuid) for uuid in reached for direction in DIRECTIONS)
        self._to_verify: list[tuple[float, tuple[str, ...]]] = []
        self._round = 0
        self._size_bytes = size_bytes

    def in_peace(self, seconds: float) -> None:
        """For some seconds, one pair at a time, this GPU writing to and then reading from each other one."""
        until_s, rounds = self._group.start_s(seconds), 0
        while rounds < _LEAST_IN_PEACE or self._group.least(until_s - time.monotonic()) > 0:
            for direction in DIRECTIONS:
                self._prepare()
                for turn in self._group.turns():
                    if turn == self._group.uuid:
                        self._copy_to_each(direction)
                self._verify(direction, "peace")
            rounds += 1

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
            rate = self._copy("write", uuid)
            self.disjoint_rate = rate if self.disjoint_rate is None else min(rate, self.disjoint_rate)
        self._group.barrier()
        self._verify("write", "disjoint pairs")

    def all_at_once(self) -> None:
        """Every GPU writes to all others at the same time, and then reads from all."""
        for direction in DIRECTIONS:
            self._prepare()
            self._group.barrier()
            reachable = self._reachable()
            if reachable:
                rate = self._copy(direction, *reachable)
                self._report_phase("all at once", rate)
                self.all_rate = rate if self.all_rate is None else min(rate, self.all_rate)
            self._group.barrier()
            self._verify(direction, "all at once")

    def _reachable(self) -> tuple[str, ...]:
        """GPUs whose memory is mapped here and whose worker is alive."""
        return tuple(uuid for uuid, pair in self.pairs.items() if not pair.why and uuid in self._group.members)

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
        for uuid, pair in self.pairs.items():
            # Also for a GPU that cannot be reached from here but reaches this one: it will read.
            if uuid in self._group.members and (not pair.why or self._reaches(uuid)):
                self._port.fill(uuid, transfer_key(self._ctx.seed, self._group.uuid, uuid, self._round))
                self._port.clear(uuid)

    def _verify(self, direction: Direction, phase: str) -> None:
        """Look at all that came here, and hear what the others looked at."""
        looked: list[str] = []
        for uuid in self._sources(direction):
            if self.pairs[uuid].why:
                continue
            faults = self._port.verify(uuid, transfer_key(self._ctx.seed, uuid, self._group.uuid, self._round))
            looked.append(uuid)
            self.pairs[uuid] = self.pairs[uuid].with_verified(direction, wrong=bool(faults))
            self.verified_bytes += self._size_bytes
            room = MOST_ERRORS - len(self.errors)
            self.errors += [_error_entry(uuid, direction, phase, fault) for fault in faults[:room]]
        everybody = [gpu.uuid for gpu in self._ctx.gpus]
        numbers: list[JSON] = [everybody.index(uuid) for uuid in looked]
        own = everybody.index(self._group.uuid)
        answers = self._group.gather(numbers)
        wrote_to = {uuid for uuid, found in answers.items() if isinstance(found, list | tuple) and own in found}
        self._count(direction, wrote_to if direction == "write" else set(looked))

    def _count(self, direction: Direction, seen: set[str]) -> None:
        """Count the time of those copies of this GPU, since the last call, that were looked at (`seen`)."""
        for seconds, uuids in self._to_verify:
            verified = [uuid for uuid in uuids if uuid in seen]
            self.copies_moved += len(uuids)
            self.copies_verified += len(verified)
            self.time.add(seconds, *(_part(direction, uuid) for uuid in verified), share=len(verified) / len(uuids))
        self._to_verify = []

    def _copy_to_each(self, direction: Direction) -> None:
        for uuid in self._reachable():
            rate = self._copy(direction, uuid)
            self.pairs[uuid] = self.pairs[uuid].timed(direction, rate)
            self._report_phase("one pair at a time", rate)

    def _copy(self, direction: Direction, *uuids: str) -> float:
        """One copy with each of these GPUs at the same time: bytes per second."""
        for uuid in uuids:
            self._port.begin(uuid, direction)
            self.moved_bytes[uuid] += self._size_bytes
        moved = self._port.finish()
        self._to_verify.append((moved.seconds, uuids))
        return moved.bytes_per_s

    def _report_phase(self, phase: str, rate: float) -> None:
        self._ctx.progress(
            {"phase": f"copies, {phase}", "rate": rate / 1e9, "rate_unit": "GB/s", "errors": len(self.errors)}
        )


def _error_entry(peer: str, direction: Direction, phase: str, fault: PieceFault) -> dict[str, JSON]:
    """An entry of a result's errors: data that came from `peer` and is not what it should be."""
    return {"peer": peer, "direction": direction, "phase": phase, **fault.to_json()}


def _part(direction: Direction, uuid: str) -> str:
    """The copies with one GPU in one direction: a part of the verified time."""
    return f"{direction} {uuid}"


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
