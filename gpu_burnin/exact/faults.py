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

from gpu_burnin.device.port import Device, read_matrix, write_matrix
from gpu_burnin.device.storage import Buffer, raw_from_integers, values_from_raw
from gpu_burnin.exact.digest import to_integers
from gpu_burnin.exact.operands import random_words

_TILE = 32
_WARP = 32
_THREE_BITS = 0b1101 << 5


@dataclass
class Target:
    """What a fault may touch: the buffers of one product. `old` is C as it was before the product.

    `changed_bits` counts the bits that differ after each change.
    """

    device: Device
    a: Buffer
    b: Buffer
    c: Buffer
    seed: int
    old: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.uint8))
    changed_bits: int = 0

    def place(self, elements: int, salt: int = 0) -> int:
        """A position that depends on the seed and the salt only."""
        return int(random_words(self.seed & ((1 << 64) - 1), (1 << 40) + salt, 1)[0]) % elements

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """All bits of a buffer as a matrix."""
        return read_matrix(self.device, buffer)

    def write(self, buffer: Buffer, bits: NDArray[Any]) -> None:
        """Overwrite a whole buffer with as many elements."""
        bits = np.ascontiguousarray(bits).reshape(buffer.rows, buffer.cols)
        self.changed_bits += int(np.bitwise_count(self.read(buffer) ^ bits).sum(dtype=np.int64))
        write_matrix(self.device, buffer, bits)

    def poke(self, buffer: Buffer, row: int, col: int, change: Callable[[int], int]) -> None:
        """Replace the bits of one element."""
        position = col * buffer.rows + row if buffer.transposed else row * buffer.cols + col
        bits = self.device.read_raw(buffer, position, 1)
        before = int(bits[0])
        after = change(before) & ((1 << 8 * bits.itemsize) - 1)
        bits[0] = after
        self.changed_bits += (before ^ after).bit_count()
        self.device.write_raw(buffer, position, bits)

    def poke_result(self, position: int, change: Callable[[int], int]) -> None:
        """Replace the bits of the element of C at a flat position."""
        self.poke(self.c, *divmod(position, self.c.cols), change)


Step = Callable[[Target], None]


def _nothing(_: Target) -> None:
    return None


@dataclass(frozen=True)
class Fault:
    """One way in which a product goes wrong, and where on its way it does."""

    name: str
    on_operands: Step = _nothing
    on_result: Step = _nothing
    skips_launch: bool = False
    keeps_old: bool = False

    @property
    def touches_operands(self) -> bool:
        """The operands stay corrupted until they are filled again."""
        return self.on_operands is not _nothing

    def prepare(self, target: Target) -> None:
        """Keep the old content of C where the fault brings it back."""
        if self.keeps_old:
            target.old = target.read(target.c)


def flip_bit(bit: int) -> Fault:
    """One flipped bit of one element; the sign of a zero is no error, so there the lowest bit flips instead."""

    def step(t: Target) -> None:
        sign = 8 * t.c.storage.size_bytes - 1

        def change(bits: int) -> int:
            harmless = bits == 0 and bit == sign and not t.c.storage.integer
            return bits ^ (1 if harmless else 1 << bit)

        t.poke_result(t.place(t.c.elements), change)

    return Fault("bitflip", on_result=step)


def _any_bit(t: Target) -> None:
    flip_bit(t.place(8 * t.c.storage.size_bytes, salt=1)).on_result(t)


def _flip(mask: int) -> Step:
    return lambda t: t.poke_result(t.place(t.c.elements), lambda bits: bits ^ mask)


def _wrong_value(t: Target) -> None:
    """Flip bits of the integer, not of its float: the element is another integer, wrong by its value alone.

    Bits flipped in a float make no integer most of the time, which counts as 0 in Freivalds' value: in an
    element that was 0 the value is then right and only the counter of non-integers sees the fault. Where the
    float cannot hold the difference, its own bits flip.
    """
    storage = t.c.storage.name

    def change(bits: int) -> int:
        raw = np.array([bits], dtype=f"u{t.c.storage.size_bytes}")
        integers, _, _ = to_integers(values_from_raw(raw, storage))
        changed = int(raw_from_integers(integers ^ _THREE_BITS, storage)[0])
        return changed if changed != bits else bits ^ _THREE_BITS

    t.poke_result(t.place(t.c.elements), change)


def _special(negative: bool, nan: bool) -> Step:
    """An IEEE special value in float results; in INT32 results its most negative number stands for it."""

    def step(t: Target) -> None:
        exponent = {"fp32": 0x7F800000, "fp64": 0x7FF0000000000000, "int32": 0x80000000}[t.c.storage.name]
        sign = 1 << (8 * t.c.storage.size_bytes - 1) if negative else 0
        t.poke_result(t.place(t.c.elements), lambda _: exponent | sign | int(nan))

    return step


def _warp_run(t: Target) -> None:
    """32 elements next to each other, as one warp writes them, each wrong in its lowest bit and two more."""
    flat = t.read(t.c).reshape(-1)
    start = t.place(flat.size // _WARP) * _WARP
    flat[start : start + _WARP] ^= flat.dtype.type(0b1101)
    t.write(t.c, flat)


def _sign_pair(t: Target) -> None:
    """Change the sign of two elements, v and -v where there are such: all sums over both stay right."""
    storage = t.c.storage.name
    flat = t.read(t.c).reshape(-1)
    values = values_from_raw(flat, storage)
    nonzero = np.flatnonzero(values)
    first = nonzero[t.place(nonzero.size)]
    opposite = np.flatnonzero(values == -values[first])
    second = opposite[0] if opposite.size else nonzero[0] if nonzero[0] != first else nonzero[1]
    for position in (first, second):
        if t.c.storage.integer:
            flat[position] = (-values[position : position + 1]).view(flat.dtype)[0]
        else:
            flat[position] ^= flat.dtype.type(1 << (8 * t.c.storage.size_bytes - 1))
    t.write(t.c, flat)


def _skipped_tile(t: Target) -> None:
    bits = t.read(t.c)
    row = t.place(max(1, t.c.rows // _TILE)) * _TILE
    bits[row : row + _TILE, :_TILE] = t.old[row : row + _TILE, :_TILE]
    t.write(t.c, bits)


def _corrupt_operand(side: str) -> Step:
    """Flip the top bit (the sign) of a nonzero element that meets a nonzero one, so that the result changes."""

    def step(t: Target) -> None:
        left, right = t.read(t.a), t.read(t.b)
        used = np.flatnonzero(left.any(axis=0) & right.any(axis=1))
        middle = int(used[t.place(used.size)])
        row, col = int(np.flatnonzero(left[:, middle])[0]), int(np.flatnonzero(right[middle])[0])
        buffer, place = (t.a, (row, middle)) if side == "a" else (t.b, (middle, col))
        t.poke(buffer, *place, lambda old: old ^ (1 << (8 * buffer.storage.size_bytes - 1)))

    return step


FAULTS: dict[str, Fault] = {
    f.name: f
    for f in (
        Fault("bitflip", on_result=_any_bit),
        Fault("low_mantissa", on_result=_flip(1)),
        Fault("multibit", on_result=_flip(_THREE_BITS)),
        Fault("wrong_value", on_result=_wrong_value),
        Fault("warp_run", on_result=_warp_run),
        Fault("nan", on_result=_special(negative=False, nan=True)),
        Fault("inf", on_result=_special(negative=True, nan=False)),
        Fault("zero", on_result=lambda t: t.write(t.c, np.zeros_like(t.read(t.c)))),
        Fault("transposed", on_result=lambda t: t.write(t.c, t.read(t.c).T)),
        Fault("permuted", on_result=lambda t: t.write(t.c, np.roll(t.read(t.c), 1, axis=0))),
        Fault("shifted", on_result=lambda t: t.write(t.c, np.roll(t.read(t.c).reshape(-1), 1))),
        Fault("sign_pair", on_result=_sign_pair),
        Fault("stale", on_result=lambda t: t.write(t.c, t.old), keeps_old=True),
        Fault("skipped_tile", on_result=_skipped_tile, keeps_old=True),
        Fault("skipped_launch", skips_launch=True),
        Fault("operand_a", on_operands=_corrupt_operand("a")),
        Fault("operand_b", on_operands=_corrupt_operand("b")),
    )
}
# The faults that every run injects into every precision on every GPU; `gpu-burnin selftest` injects all.
SELFTEST_FAULTS: tuple[str, ...] = (
    "bitflip", "low_mantissa", "multibit", "warp_run", "nan", "stale", "skipped_tile", "skipped_launch", "operand_b",
)  # fmt: skip
