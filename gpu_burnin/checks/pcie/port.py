"""Copies between the host's memory and a device, verified word by word: what a check asks of a device's link.

A batch is no longer than the ring of slots, so that each copy of it can be looked at where it came: what is moved is
verified. Only copies that are nothing but load (`load`) may overwrite each other.

Each end holds a source, filled with the words of exact.random_words, and a ring of slots that copies land in. Copy
number n moves size_bytes from window n % windows of the source, whose first word is STRIDE_BYTES / 8 further on than
that of the window before, into slot n % slots at the other end. So every copy has its own data, in every word, without
filling anything anew: a copy that did not come, came twice, came into another's place or arrived wrong is told apart
(ledger.py). Nothing of the filling and verifying is in the time of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol, TypeAlias

from gpu_burnin.checks.pcie.result import PinnedMemory
from gpu_burnin.device.port import Device
from gpu_burnin.types import JSON, word_text

WORD_BYTES = 8
# Windows of the source lie a page apart, so that every copy starts as well aligned as the first.
STRIDE_BYTES = 4096
# The longest copy of the pcie check, whatever transfer_bytes says: it takes 1.2 ms at PCIe 5.0 x16, longer ones are not
# faster, and the host compares all that came back while the other GPUs wait for their turn.
MOST_COPY_BYTES = 64 << 20
# Wrong copies of one way that are looked into after each filling: kind and place of these tell what there is to tell,
# and all further ones are counted.
MOST_LOCATED = 3
# Name of the stream of random words that both sources are filled with.
STREAM = "host link"
# What slots hold before the first copy: each byte of it.
POISON_BYTE = 0xA5
POISON_WORD = int.from_bytes(bytes([POISON_BYTE]) * WORD_BYTES, "little")
# Bytes of one end's ring of slots, and slots at least: two copies can change places, and a batch of the longest copies
# takes 5 ms at PCIe 5.0 x16, for 256 MiB of pinned memory.
_RING_BYTES = 1 << 20
_LEAST_SLOTS, _MOST_SLOTS = 4, 256

Direction: TypeAlias = Literal["h2d", "d2h", "duplex"]
WAYS: Mapping[Direction, tuple[Literal["h2d", "d2h"], ...]] = {
    "h2d": ("h2d",),
    "d2h": ("d2h",),
    "duplex": ("h2d", "d2h"),
}


class Kind(StrEnum):
    """How a copy went wrong."""

    CORRUPTED = "corrupted"  # other words than any copy had
    STALE = "stale"  # a part of it never came: what was there before is there still
    DROPPED = "dropped"  # nothing of it came
    DUPLICATED = "duplicated"  # another copy came into its slot, and into its own too
    REORDERED = "reordered"  # another copy came into its slot, and not into its own


# Faults that can be injected below the verification, by the kind that has to be seen.
FAULTS: tuple[Kind, ...] = tuple(Kind)


@dataclass(frozen=True)
class Moved:
    """A finished batch of copies: all bytes moved (both ways of a duplex together) and the device's seconds."""

    bytes: int
    seconds: float

    @property
    def bytes_per_s(self) -> float:
        """The rate; 0 where no time passed."""
        return self.bytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True)
class WrongCopy:
    """A copy that did not arrive as it was sent. `offset_bytes`, `expected` and `got` are of its first wrong word.

    `kind` is None for one that was only counted, since enough others had been looked into: nothing else is known of it.
    """

    direction: str
    copy: int
    kind: Kind | None
    offset_bytes: int = 0
    expected: int = 0
    got: int = 0
    wrong_words: int = 0
    came_from: int | None = None  # the copy whose data lies there instead

    def to_json(self) -> dict[str, JSON]:
        """Entry of a report's list of errors, of a copy that was looked into."""
        entry: dict[str, JSON] = {
            "direction": self.direction,
            "copy": self.copy,
            "kind": str(self.kind),
            "offset_bytes": self.offset_bytes,
            "expected": word_text(self.expected),
            "got": word_text(self.got),
            "wrong_words": self.wrong_words,
        }
        return entry if self.came_from is None else {**entry, "came_from": self.came_from}


@dataclass(frozen=True)
class Verified:
    """What a verification looked at: whole copies, their bytes, and those that were wrong."""

    copies: int = 0
    bytes: int = 0
    wrong: tuple[WrongCopy, ...] = ()

    def __add__(self, other: Verified) -> Verified:
        return Verified(self.copies + other.copies, self.bytes + other.bytes, self.wrong + other.wrong)


@dataclass(frozen=True)
class Planted:
    """An injected fault in a batch of one way: the copies (numbers) that it hits; of a corrupted one the place of the
    word and the bits that it flips there."""

    way: str
    kind: Kind
    copies: frozenset[int]
    offset_bytes: int = 0
    mask: int = 0

    def is_cause_of(self, wrong: WrongCopy) -> bool:
        """Whether this fault and nothing beside it did this. A copy that it hit and that is taken for another kind is
        a matter of the detector."""
        if wrong.direction != self.way or wrong.copy not in self.copies:
            return False
        if self.kind is not Kind.CORRUPTED or wrong.kind is not Kind.CORRUPTED:
            return True
        flipped = (wrong.offset_bytes, wrong.expected ^ wrong.got, wrong.wrong_words)
        return flipped == (self.offset_bytes, self.mask, 1)


def not_planted(planted: Iterable[Planted], found: Verified) -> tuple[WrongCopy, ...]:
    """Wrong copies that none of the injected faults explains: faults of the hardware."""
    causes = tuple(planted)
    return tuple(wrong for wrong in found.wrong if not any(one.is_cause_of(wrong) for one in causes))


@dataclass(frozen=True)
class Geometry:
    """Sizes of one end: bytes of a copy, slots of the ring, windows of the source."""

    size_bytes: int
    slots: int
    windows: int

    @property
    def source_bytes(self) -> int:
        """Bytes of a source with all its windows."""
        return self.size_bytes + (self.windows - 1) * STRIDE_BYTES

    @property
    def ring_bytes(self) -> int:
        """Bytes of all slots."""
        return self.size_bytes * self.slots

    def offset_bytes(self, copy: int) -> int:
        """Where the window of a copy begins in the source."""
        return copy % self.windows * STRIDE_BYTES

    def slot(self, copy: int) -> int:
        """The slot a copy lands in."""
        return copy % self.slots


def geometry(size_bytes: int) -> Geometry:
    """Slots and windows for copies of a size, which is a multiple of 8 bytes.

    Windows are four times as many as slots: what lies in a slot and what comes next are never the same.
    """
    slots = max(_LEAST_SLOTS, min(_MOST_SLOTS, _RING_BYTES // size_bytes))
    return Geometry(size_bytes, slots, 4 * slots)


class PciePort(Protocol):
    """Copies between host memory and one device. Device errors are raised as DeviceError.

    open, fill, then any number of (begin, finish, verify), then close. At most one batch is under way.
    """

    simulated: bool

    def open(self, size_bytes: int) -> Geometry:
        """Take pinned host memory, on the GPU's own NUMA node where it is known, and device memory, for copies of
        `size_bytes` (a multiple of 8). Raises DeviceError, for pinned memory that is refused with the fix."""
        ...

    def close(self) -> None:
        """Give back everything; waits for a batch under way. May be called twice."""

    def pinned(self) -> PinnedMemory:
        """The host's memory of this link."""
        ...

    def fill(self, seed: int) -> None:
        """Fill both sources with the words of a seed, the host's by the host and the device's by the device, and the
        slots with what is no copy's data. The numbers of copies start again from 0."""

    def begin(self, direction: Direction, copies: int, *, load: bool = False) -> None:
        """Start a batch of `copies` copies each way, asynchronously, in streams of its own, timed on the device.

        Raises DeviceError where a copy would come over one that was not verified. `load`: copies that only keep the
        link busy may do so; they need no verify, which then sees the last of them only."""

    def finish(self) -> Moved:
        """Wait for the batch. Raises DeviceError when none is under way."""
        ...

    def verify(self) -> Verified:
        """Compare the copies each way that came since the last call, and are there: in device memory by a kernel that
        makes the words again, in host memory with the host's source."""
        ...

    def inject(self, fault: Kind, seed: int) -> None:
        """Let a fault hit one copy (each way) of the next batch, below the verification; self-test and --inject.

        Several faults hit one batch after the other.
        """

    def planted(self) -> tuple[Planted, ...]:
        """The injected faults of the last batch, one for each way that has one."""
        ...


def pcie_port(device: Device) -> PciePort:
    """Copies between host memory and this device, not yet open."""
    port: PciePort = device.port(__package__)
    return port
