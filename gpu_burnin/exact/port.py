"""What exact products need of a device: filling, multiplying, and digests made where the results lie."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from gpu_burnin.device.port import Device, given_back
from gpu_burnin.device.storage import Buffer
from gpu_burnin.exact.operands import U64, Digest, Operand, Scale
from gpu_burnin.types import JSON

# Precision of a product -> (storage of the operands, storage of the result).
STORAGE_OF: dict[str, tuple[str, str]] = {
    "fp64": ("fp64", "fp64"),
    "fp32": ("fp32", "fp32"),
    "tf32": ("fp32", "fp32"),
    "bf16": ("bf16", "fp32"),
    "fp16": ("fp16", "fp32"),
    "int8": ("int8", "int32"),
    "fp8_e4m3": ("fp8_e4m3", "fp32"),
}


@dataclass(frozen=True)
class Observed:
    """One enqueued check: the digest of C at that moment, and the products launched until then, as the device
    counted them since it was opened."""

    digest: Digest
    launches: int


@dataclass(frozen=True)
class Collected:
    """All checks since the last collection, in order.

    `kept` is the index of the one whose C was copied aside (also by an earlier collection: then None).
    `seconds` is device time from the first to the last operation enqueued since the last collection.
    """

    observed: tuple[Observed, ...]
    kept: int | None
    seconds: float


class Products(Protocol):
    """Products of matrices on one `device`, in its stream.

    `precisions` are those that the device computes natively (FP8 only where it is supported). Errors of the device are
    raised as DeviceError.
    """

    device: Device
    precisions: tuple[str, ...]

    def close(self) -> None:
        """Give back everything. Can be called twice."""

    def facts(self) -> Mapping[str, JSON]:
        """Facts of the library that multiplies, for the report."""
        ...

    def fill(self, buffer: Buffer, operand: Operand) -> None:
        """Write the integers of exact.operand_rows times their powers of two in the storage type of the buffer."""

    def fill_random(self, buffer: Buffer, key: int, positive: bool = False) -> None:
        """Write exact.random_bits: element (row, col) has the flat position row * cols + col."""

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        """Enqueue C = A B; counts the launch on the device after the product, in stream order."""

    def enqueue_check(self, c: Buffer, key: int, scale: Scale | None, expected: int | None) -> None:
        """Enqueue the digest of the integers in C without the powers of two of `scale`.

        An element is `nonfinite` when it is NaN or Inf, else `noninteger` when it is not an integer times its
        power of two, of magnitude up to 2^53 (a value that over- or underflows without its power of two is
        none). Both kinds count as 0 in the digest. When `expected` is given and the digest differs from it,
        or not all elements are integers, C is copied aside on the device, unless something is kept already.
        """

    def collect(self) -> Collected:
        """Wait for what was enqueued since the last call, if anything was; the results of all checks of it."""
        ...

    def kept_matrix(self, c: Buffer) -> NDArray[Any]:
        """Bits of the kept copy of this C, rows x cols. Raises DeviceError when nothing is kept."""
        ...

    def forget_kept(self) -> None:
        """Make room for the next copy."""

    def digest_bits(self, c: Buffer, key: int) -> int:
        """digest.digest_raw of the bits of C, made on the device; waits."""
        ...

    def bilinear(self, c: Buffer, w: U64, v: U64, scale: Scale | None) -> int:
        """w^T C v modulo exact.PRIME of the integers as in enqueue_check, made on the device; waits."""
        ...

    def algorithm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> str:
        """The library's algorithm for this product, serialised for the report."""
        ...


@contextlib.contextmanager
def products_on(device: Device) -> Iterator[Products]:
    """The products of an open device, closed behind the block. Raises DeviceError."""
    products: Products = device.port(__package__)
    with given_back(products.close):
        yield products
