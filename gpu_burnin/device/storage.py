"""Matrices in the memory of a device: element types, and numbers as the bits that lie there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def to_logical(buffer: Buffer, flat: NDArray[Any]) -> NDArray[Any]:
    """All elements in storage order as the logical matrix (rows x cols)."""
    if buffer.transposed:
        return flat.reshape(buffer.cols, buffer.rows).T
    return flat.reshape(buffer.rows, buffer.cols)


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


def raw_from_integers(
    values: NDArray[np.int64], storage: str, exponents: NDArray[np.int16] | None = None
) -> NDArray[Any]:
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
