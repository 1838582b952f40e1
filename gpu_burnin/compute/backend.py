"""The protocol that a compute backend keeps: buffers, products, digests, raw access, plain memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute.exact import I64, U64, Digest
from gpu_burnin.compute.patterns import MemoryFaults, Pattern
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.types import JSON, Gpu


class BackendError(GpuBurninError):
    """The backend cannot be used on this host; the message says what to do."""


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
    """A row-major matrix on the device; `data` belongs to the backend that made it."""

    storage: StorageType
    rows: int
    cols: int
    data: Any

    @property
    def elements(self) -> int:
        """Number of elements."""
        return self.rows * self.cols

    @property
    def size_bytes(self) -> int:
        """Size in bytes."""
        return self.elements * self.storage.size_bytes


class Backend(Protocol):
    """What the checks need of a device. `simulated` is True where no GPU is exercised."""

    name: str
    simulated: bool
    precisions: tuple[str, ...]
    covers_memory: bool

    def open(self, gpu: Gpu | None) -> None:
        """Take the device. Raises BackendError when it cannot be used."""

    def close(self) -> None:
        """Give back everything."""

    def facts(self) -> Mapping[str, JSON]:
        """Library and device facts for the report."""
        ...

    def allocate(self, storage: str, rows: int, cols: int) -> Buffer:
        """An uninitialised matrix. Raises BackendError when memory does not suffice."""
        ...

    def fill(self, buffer: Buffer, key: int, bound: int, signed: bool, stride: int) -> None:
        """Write the integers of exact.operand_rows in the storage type of the buffer."""

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        """Launch C = A B; counts the launch on the device after the product, in stream order."""

    def synchronize(self) -> None:
        """Wait for the device."""

    def launches(self) -> int:
        """Products launched since open, as counted by the device."""
        ...

    def digest(self, c: Buffer, key: int) -> Digest:
        """exact.digest of the matrix, made on the device."""
        ...

    def bilinear(self, c: Buffer, w: U64, v: U64) -> int:
        """w^T C v modulo exact.PRIME, made on the device; elements that are no integers count as 0."""
        ...

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        """Bits of `count` elements from flat position `start`, as unsigned integers of the element size."""
        ...

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        """The inverse of read_raw."""

    def memory_allocate(self, size_bytes: int) -> Any:
        """Plain memory for the memory test, a multiple of 8 bytes."""

    def memory_write(self, memory: Any, pattern: Pattern) -> None:
        """Write a pattern into all of the memory."""

    def memory_verify(
        self, memory: Any, pattern: Pattern, then: Pattern | None = None, downwards: bool = False
    ) -> MemoryFaults:
        """Compare with a pattern, writing `then` behind the comparison chunk by chunk, upwards or downwards."""
        ...

    def memory_flip(self, memory: Any, offset_bytes: int, mask: int) -> None:
        """Flip bits of the 64-bit word at an offset (fault injection)."""


def read_matrix(backend: Backend, buffer: Buffer) -> NDArray[Any]:
    """All bits of a buffer as a matrix of unsigned integers of the element size."""
    return backend.read_raw(buffer, 0, buffer.elements).reshape(buffer.rows, buffer.cols)


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


def raw_from_integers(values: I64, storage: str) -> NDArray[Any]:
    """Integers as element bits of a storage type, exactly representable by the caller's bounds."""
    if storage in ("int8", "int32"):
        return values.astype(storage).view(f"u{STORAGE[storage].size_bytes}")
    if storage in ("fp32", "fp64", "fp16"):
        return values.astype(f"f{STORAGE[storage].size_bytes}").view(f"u{STORAGE[storage].size_bytes}")
    import ml_dtypes

    small = {"bf16": ml_dtypes.bfloat16, "fp8_e4m3": ml_dtypes.float8_e4m3fn}
    bits: NDArray[Any] = values.astype(np.float32).astype(small[storage])
    return bits.view(f"u{STORAGE[storage].size_bytes}")


def make_backend(name: str) -> Backend:
    """The backend "cpu" or "cuda", not yet opened. Raises BackendError for another name."""
    if name == "cpu":
        from gpu_burnin.compute.cpu import CpuBackend

        return CpuBackend()
    if name == "cuda":
        from gpu_burnin.compute.cuda import CudaBackend

        return CudaBackend()
    raise BackendError(f"unknown backend {name!r}: choose cpu or cuda")
