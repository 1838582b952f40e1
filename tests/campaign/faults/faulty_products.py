"""CPU devices that are faulty: they change products, operands or memory as broken hardware would, below the checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_burnin.device.port import read_matrix, write_matrix
from gpu_burnin.device.storage import Buffer
from gpu_burnin.exact.faults import Fault, Target
from gpu_burnin.exact.operands import Operand
from tests.support.devices import ComputingDevice

# When a product is changed: its number since the device was opened, and whether its operands are random.
When = Callable[[int, bool], bool]


def always(_: int, __: bool) -> bool:
    """Every product: a deterministic fault, such as a stuck bit on the way of every result."""
    return True


def each(period: int) -> When:
    """Every product whose number is a multiple: an intermittent fault."""
    return lambda number, _: number % period == 0


def only_first(number: int, _: bool) -> bool:
    """The first product of all."""
    return number == 1


def random_only(number: int, random: bool) -> bool:
    """Every third product of random operands: a fault that shows under high power only."""
    return random and number % 3 == 0


def every_random(_: int, random: bool) -> bool:
    """Every product of random operands: a unit that always rounds wrong, which exact products cannot show."""
    return random


class FaultyProductsDevice(ComputingDevice):
    """Puts a fault of gpu_burnin.exact.faults into the products that `when` names, at a place the seed says."""

    def __init__(self, fault: Fault, when: When, seed: int) -> None:
        super().__init__()
        self._fault, self._when, self._seed = fault, when, seed
        self._number = 0
        self._random: set[int] = set()

    def fill(self, buffer: Buffer, operand: Operand) -> None:
        super().fill(buffer, operand)
        self._random.discard(id(buffer.data))

    def fill_random(self, buffer: Buffer, key: int, positive: bool = False) -> None:
        super().fill_random(buffer, key, positive)
        self._random.add(id(buffer.data))

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        """The product, wrong where it is its turn; operands change on their way and stay right in memory."""
        self._number += 1
        if not self._when(self._number, id(a.data) in self._random):
            super().gemm(precision, a, b, c)
            return
        fault, target = self._fault, Target(self, a, b, c, self._seed)
        fault.prepare(target)
        saved = read_matrix(self, a), read_matrix(self, b)
        fault.on_operands(target)
        if not fault.skips_launch:
            super().gemm(precision, a, b, c)
        for buffer, bits in zip((a, b), saved, strict=True):
            write_matrix(self, buffer, bits)
        fault.on_result(target)


class AliasingDevice(ComputingDevice):
    """The second of two operand buffers of one shape lies at the first one's address: a broken address line."""

    def __init__(self) -> None:
        super().__init__()
        self._first: dict[tuple[Any, ...], Buffer] = {}

    def allocate(self, storage: str, rows: int, cols: int, transposed: bool = False) -> Buffer:
        """Gives the memory of the buffer before to every second one of a kind."""
        key = (storage, rows, cols, transposed)
        known = self._first.pop(key, None)
        if known is not None and storage != "int32":
            return Buffer(known.storage, rows, cols, known.data, transposed)
        made = super().allocate(storage, rows, cols, transposed)
        self._first[key] = made
        return made
