"""Faults for the self-test and for --inject, put into the real buffers below the detector.

Each one is a change of the data whatever the data are: a fault that happens to change nothing would make a
healthy detector look blind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute.backend import Backend, Buffer, raw_from_integers, read_matrix, values_from_raw
from gpu_burnin.compute.exact import random_words, to_integers

_TILE = 32
_THREE_BITS = 0b1101 << 5


@dataclass
class Target:
    """What a fault may touch: the buffers of one product. `old` is C as it was before the product."""

    backend: Backend
    a: Buffer
    b: Buffer
    c: Buffer
    seed: int
    old: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))

    def place(self, elements: int) -> int:
        """A position that depends on the seed only."""
        return int(random_words(self.seed, 1 << 40, 1)[0]) % elements

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """All bits of a buffer as a matrix."""
        return read_matrix(self.backend, buffer)

    def write(self, buffer: Buffer, bits: NDArray[Any]) -> None:
        """Overwrite a whole buffer."""
        self.backend.write_raw(buffer, 0, np.ascontiguousarray(bits).reshape(-1))

    def poke(self, buffer: Buffer, position: int, change: Callable[[int], int]) -> None:
        """Replace the bits of one element."""
        bits = self.backend.read_raw(buffer, position, 1)
        bits[0] = change(int(bits[0])) & ((1 << 8 * bits.itemsize) - 1)
        self.backend.write_raw(buffer, position, bits)


Step = Callable[[Target], None]


def _nothing(_: Target) -> None:
    return None


@dataclass(frozen=True)
class Fault:
    """One way in which a product goes wrong, and where on its way it strikes."""

    name: str
    on_operands: Step = _nothing
    on_result: Step = _nothing
    skips_launch: bool = False
    keeps_old: bool = False

    def prepare(self, target: Target) -> None:
        """Keep the old content of C where the fault brings it back."""
        if self.keeps_old:
            target.old = target.read(target.c)


def _flip(mask: int) -> Step:
    return lambda t: t.poke(t.c, t.place(t.c.elements), lambda bits: bits ^ mask)


def _wrong_value(t: Target) -> None:
    """Flip bits of the integer, not of its float: the element is another integer, wrong by its value alone.

    Bits flipped in a float make no integer most of the time, which counts as 0 in Freivalds' value: in an
    element that was 0 the value is then right and only the counter of non-integers sees the fault.
    """
    position, storage = t.place(t.c.elements), t.c.storage.name
    integers, _, _ = to_integers(values_from_raw(t.backend.read_raw(t.c, position, 1), storage))
    t.backend.write_raw(t.c, position, raw_from_integers(integers ^ _THREE_BITS, storage))


def _special(negative: bool, nan: bool) -> Step:
    """An IEEE special value in float results; in INT32 results its most negative number stands for it."""

    def step(t: Target) -> None:
        exponent = {"fp32": 0x7F800000, "fp64": 0x7FF0000000000000, "int32": 0x80000000}[t.c.storage.name]
        sign = 1 << (8 * t.c.storage.size_bytes - 1) if negative else 0
        t.poke(t.c, t.place(t.c.elements), lambda _: exponent | sign | int(nan))

    return step


def _permuted(t: Target) -> None:
    bits = t.read(t.c)
    t.write(t.c, np.roll(bits, 1, axis=0))


def _skipped_tile(t: Target) -> None:
    bits = t.read(t.c)
    row = t.place(max(1, t.c.rows // _TILE)) * _TILE
    bits[row : row + _TILE, :_TILE] = t.old[row : row + _TILE, :_TILE]
    t.write(t.c, bits)


def _corrupt_operand(t: Target) -> None:
    """Flip the top bit (the sign) of a nonzero element of A, so that the products with it change."""
    count = min(t.a.elements, 1 << 16)
    bits = t.backend.read_raw(t.a, 0, count)
    position = int(np.flatnonzero(bits)[0])
    t.poke(t.a, position, lambda old: old ^ (1 << (8 * t.a.storage.size_bytes - 1)))


FAULTS: dict[str, Fault] = {
    f.name: f
    for f in (
        Fault("bitflip", on_result=_flip(1)),
        Fault("multibit", on_result=_flip(_THREE_BITS)),
        Fault("wrong_value", on_result=_wrong_value),
        Fault("nan", on_result=_special(negative=False, nan=True)),
        Fault("inf", on_result=_special(negative=True, nan=False)),
        Fault("zero", on_result=lambda t: t.write(t.c, np.zeros_like(t.read(t.c)))),
        Fault("transposed", on_result=lambda t: t.write(t.c, t.read(t.c).T)),
        Fault("permuted", on_result=_permuted),
        Fault("stale", on_result=lambda t: t.write(t.c, t.old), keeps_old=True),
        Fault("skipped_launch", skips_launch=True),
        Fault("skipped_tile", on_result=_skipped_tile, keeps_old=True),
        Fault("operand", on_operands=_corrupt_operand),
    )
}
# The faults that every run injects into every precision on every GPU; the rest are proved by the unit tests.
SELFTEST_FAULTS: tuple[str, ...] = (
    "bitflip", "multibit", "nan", "stale", "skipped_launch", "skipped_tile", "operand",
)  # fmt: skip
