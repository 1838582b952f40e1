"""The protocol that a compute device keeps: buffers, products, digests, raw access, plain memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.exact.operands import I64, U64, Digest, Operand, Scale
from gpu_burnin.types import JSON, Gpu

if TYPE_CHECKING:
    from gpu_burnin.checks.hbm.port import HbmPort
    from gpu_burnin.checks.nccl.port import NcclPort
    from gpu_burnin.checks.nvlink.port import NvlinkPort
    from gpu_burnin.checks.pcie.port import PciePort
    from gpu_burnin.checks.sm.kernels import SmFault, SmRun


class DeviceError(GpuBurninError):
    """The device cannot be used on this host; the message says what to do."""


class DeviceFault(DeviceError):
    """The device itself reports damage, which is a fault found and not a check that could not be carried out."""

    def __init__(self, message: str, reason_code: str) -> None:
        super().__init__(message)
        self.reason_code = reason_code


@dataclass(frozen=True)
class StorageType:
    """How elements lie in memory: element size in bytes and whether they are integers."""

    name: str
    size_bytes: int
    integer: bool = False


STORAGE: dict[str, StorageType] = {
    s.name: s
    for s in (
        StorageType("fp64", 8),
        StorageType("fp32", 4),
        StorageType("bf16", 2),
        StorageType("fp16", 2),
        StorageType("fp8_e4m3", 1),
        StorageType("int8", 1, integer=True),
        StorageType("int32", 4, integer=True),
    )
}
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
class Buffer:
    """A matrix on the device; `data` belongs to the device that made it.

    Stored row by row, or column by column when `transposed` (B is: cublasLt wants both operands of FP8 and
    INT8 products contiguous along K). `rows` and `cols` are logical in both cases.
    """

    storage: StorageType
    rows: int
    cols: int
    data: Any
    transposed: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.cols

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.storage.size_bytes


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


class Device(Protocol):
    """What the checks need of a device. `simulated` is True where no GPU is exercised.

    `precisions` is final after open (FP8 only where it is supported). Work goes in one stream: whatever is
    called later sees what was called earlier. Errors of the device are raised as DeviceError.
    """

    name: str
    simulated: bool
    precisions: tuple[str, ...]

    def open(self, gpu: Gpu | None) -> None:
        """Take the device. Raises DeviceError when it cannot be used."""

    def close(self) -> None:
        """Give back everything."""

    def facts(self) -> Mapping[str, JSON]:
        """Library and device facts for the report."""
        ...

    def multiprocessors(self) -> int:
        """Number of SMs of the device."""
        ...

    def allocate(self, storage: str, rows: int, cols: int, transposed: bool = False) -> Buffer:
        """An uninitialised matrix. Raises DeviceError when memory does not suffice."""
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
        """Wait, and return the results of all checks enqueued since the last call."""
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

    def synchronize(self) -> None:
        """Wait for the device."""

    def algorithm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> str:
        """The library's algorithm for this product, serialised for the report."""
        ...

    def run_on_sms(self, kernel: str, seed: int, rounds: int, fault: SmFault | None = None) -> SmRun:
        """Run one kernel of the sm check on every SM; `fault` is for the self-test and --inject."""
        ...

    def host_link(self) -> PciePort:
        """Copies between host memory and the device, not yet open."""
        ...

    def peers(self) -> NvlinkPort:
        """Copies between this GPU and the others of the node, nothing exported yet."""
        ...

    def collectives(self) -> NcclPort:
        """Operations of all GPUs together, not yet opened or joined."""
        ...

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        """Bits of `count` elements from position `start` in storage order, as unsigned integers of their size."""
        ...

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        """The inverse of read_raw."""

    def memory(self) -> HbmPort:
        """The device's memory as the hbm check tests it; what products have left behind is given back before."""
        ...


def to_logical(buffer: Buffer, flat: NDArray[Any]) -> NDArray[Any]:
    """All elements in storage order as the logical matrix (rows x cols)."""
    if buffer.transposed:
        return flat.reshape(buffer.cols, buffer.rows).T
    return flat.reshape(buffer.rows, buffer.cols)


def read_matrix(device: Device, buffer: Buffer) -> NDArray[Any]:
    """All bits of a buffer as its logical matrix, in unsigned integers of the element size."""
    return to_logical(buffer, device.read_raw(buffer, 0, buffer.elements))


def write_matrix(device: Device, buffer: Buffer, bits: NDArray[Any]) -> None:
    """The inverse of read_matrix."""
    stored = bits.T if buffer.transposed else bits
    device.write_raw(buffer, 0, np.ascontiguousarray(stored).reshape(-1))


def values_from_raw(bits: NDArray[Any], storage: str) -> NDArray[Any]:
    """Element bits as numbers of a type NumPy computes with (float32, float64, int32, int8 or float32 for the rest)."""
    if storage in ("fp32", "fp64", "int32", "int8"):
        kinds = {"fp32": np.float32, "fp64": np.float64, "int32": np.int32, "int8": np.int8}
        return bits.view(kinds[storage])
    if storage == "fp16":
        return bits.view(np.float16).astype(np.float32)
    import ml_dtypes  # only where BF16 or FP8 is in use

    small = {"bf16": ml_dtypes.bfloat16, "fp8_e4m3": ml_dtypes.float8_e4m3fn}
    values: NDArray[Any] = bits.view(small[storage]).astype(np.float32)
    return values


def raw_from_integers(values: I64, storage: str, exponents: NDArray[np.int16] | None = None) -> NDArray[Any]:
    """Integers times 2^exponents (broadcast) as element bits, exactly representable by the caller's bounds."""
    if storage in ("int8", "int32"):
        return values.astype(storage).view(f"u{STORAGE[storage].size_bytes}")
    numbers: NDArray[Any] = values
    if exponents is not None:
        numbers = np.ldexp(values.astype(np.float64), exponents.astype(np.int32))
    if storage in ("fp32", "fp64", "fp16"):
        return numbers.astype(f"f{STORAGE[storage].size_bytes}").view(f"u{STORAGE[storage].size_bytes}")
    import ml_dtypes

    small = {"bf16": ml_dtypes.bfloat16, "fp8_e4m3": ml_dtypes.float8_e4m3fn}
    bits: NDArray[Any] = numbers.astype(np.float32).astype(small[storage])
    return bits.view(f"u{STORAGE[storage].size_bytes}")
