"""The tests of the hbm check, each a few passes over all of the memory, and the order of a round."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

from gpu_burnin.checks.hbm.patterns import LANES, MODULO, Pattern
from gpu_burnin.checks.hbm.port import HbmPort
from gpu_burnin.checks.hbm.shape import Damage
from gpu_burnin.exact.operands import mix
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import Reason

# Bit positions and rare positions visited in one round, by level: a quick run samples, an extended one has all.
_WALKING_STEPS = {"quick": 4, "standard": 16, "extended": 64}
_MODULO_STEPS = {"quick": 2, "standard": 5, "extended": 20}
# Every level has these; retention comes with extended. Each inversion is a test of its own: other patterns find others.
CORE: tuple[str, ...] = (
    "address", "inversions random", "inversions solid", "inversions checker", "walking", "modulo",
)  # fmt: skip
# Retention comes in each eighth round only: a GPU that waits is not under load.
_RETENTION_EVERY = 8
# A wait is cut in pieces of this length, so that it can be seen going on.
_HOLD_S = 0.5


@dataclass
class Scan:
    """A memory test under way: what was wrong and what was moved. `reached` counts by test how often it has gone over
    all of the memory; `rates` are (CLOCK_MONOTONIC in s, B/s), one for each step."""

    memory: HbmPort
    size_bytes: int
    damage: Damage = field(default_factory=Damage)
    written_bytes: int = 0
    read_bytes: int = 0
    held_s: float = 0.0
    reached: dict[str, int] = field(default_factory=dict)
    rates: list[tuple[float, float]] = field(default_factory=list)
    test: str = ""

    @property
    def moved_bytes(self) -> int:
        """Written and read back."""
        return self.written_bytes + self.read_bytes

    def write(self, pattern: Pattern) -> None:
        """Write a pattern everywhere."""
        self.memory.write(pattern)
        self.written_bytes += self.size_bytes

    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> None:
        """Compare everywhere, and with `invert` write the complement behind the comparison."""
        faults = self.memory.verify(pattern, invert, downwards)
        self.damage.add(self.test, pattern, faults)
        self.read_bytes += self.size_bytes
        self.written_bytes += self.size_bytes if invert else 0

    def do(self, step: Step) -> None:
        """One step, over all of the memory."""
        self.test = step.test
        moved, seconds = self.moved_bytes, self.memory.seconds
        step.run(self)
        self.reached[step.test] = self.reached.get(step.test, 0) + 1
        rate = (self.moved_bytes - moved) / max(self.memory.seconds - seconds, 1e-9)
        self.rates.append((time.monotonic(), rate))


@dataclass(frozen=True)
class Step:
    """A part of a round that goes over all of the memory: the test it belongs to, and what it does."""

    test: str
    run: Callable[[Scan], None]


def address_in_cell(scan: Scan) -> None:
    """Each cell holds its own address, then the complement: finds address lines that are stuck or joined."""
    pattern = Pattern("address")
    scan.write(pattern)
    scan.verify(pattern, invert=True)
    scan.verify(pattern.complement())


def moving_inversions(scan: Scan, pattern: Pattern) -> None:
    """Words inverted upwards and back downwards: finds cells that do not change, and coupling in both directions."""
    scan.write(pattern)
    scan.verify(pattern, invert=True)
    scan.verify(pattern.complement(), invert=True, downwards=True)
    scan.verify(pattern)


def walking_bit(scan: Scan, position: int) -> None:
    """One bit set in 64, then one clear: finds data lines that are stuck or joined."""
    pattern = Pattern("walking", position)
    scan.write(pattern)
    scan.verify(pattern, invert=True)
    scan.verify(pattern.complement())


def modulo_20(scan: Scan, position: int) -> None:
    """Rare cells among complements, with a stride that no row or burst length divides: finds neighbour disturb."""
    pattern = Pattern("modulo", position)
    scan.write(pattern)
    scan.write(pattern)
    scan.verify(pattern, invert=True)
    scan.verify(pattern.complement())


def retention(scan: Scan, pattern: Pattern, wait_s: float, waiting: Callable[[], None]) -> None:
    """Random words and their complement, each left alone for `wait_s`: finds cells that lose what they hold between
    two refreshes. `waiting` is called now and then."""
    for held in (pattern, pattern.complement()):
        scan.write(held)
        until = time.monotonic() + wait_s
        while (left_s := until - time.monotonic()) > 0:
            scan.memory.hold(min(left_s, _HOLD_S))
            waiting()
        scan.held_s = wait_s
        scan.verify(held)


def tests_of(level: str) -> tuple[str, ...]:
    """Names of the tests that a round of a level has."""
    return (*CORE, "retention") if level == "extended" else CORE


def steps(seed: int, level: str, index: int, wait_s: float, waiting: Callable[[], None]) -> Iterator[Step]:
    """Round number `index`; positions and keys move on from round to round."""
    key = mix(seed + index)
    inverted: Mapping[str, Pattern] = {
        "random": Pattern("random", key), "solid": Pattern("solid"), "checker": Pattern("checker"),
    }  # fmt: skip
    yield Step("address", address_in_cell)
    for name, pattern in inverted.items():
        yield Step(f"inversions {name}", partial(moving_inversions, pattern=pattern))
    walking, modulo = _WALKING_STEPS[level], _MODULO_STEPS[level]
    for i in range(walking):
        yield Step("walking", partial(walking_bit, position=(i * (LANES // walking) + index) % LANES))
    for i in range(modulo):
        yield Step("modulo", partial(modulo_20, position=(i * (MODULO // modulo) + index) % MODULO))
    if "retention" in tests_of(level) and index % _RETENTION_EVERY == 0:
        kept = Pattern("random", mix(key))
        yield Step("retention", partial(retention, pattern=kept, wait_s=wait_s, waiting=waiting))


def wrong_words(gpu: str | None, scan: Scan) -> tuple[Reason, ...]:
    """One reason for all wrong words, however many tests saw them."""
    damage = scan.damage
    if not damage.words:
        return ()
    first = damage.errors()[0]
    seen_by = ", ".join(damage.reads)
    message = (
        f"memory returned other bits than were written: {damage.shape()}; first at offset {first['offset_bytes']} "
        f"under {first['pattern']}: expected {first['expected']}, got {first['got']}; seen by {seen_by}"
    )
    details = {
        **first,
        "wrong_words": damage.words,
        "wrong_reads": damage.total_reads,
        "shape_words": damage.shape(),
        "seen_by": list(damage.reads),
    }
    return (make_reason("HBM_BIT_ERROR", "hbm", message, gpu=gpu, details=details),)
