"""CPU backend on NumPy. It exercises the detectors' logic and host memory only, no GPU: `simulated` is True.

BF16, FP16, TF32 and FP8 operands are held in their own format (ml_dtypes, NumPy) and multiplied as FP32
after an exact conversion; INT8 products are made in FP64, where they are exact, and stored as INT32.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import (
    STORAGE,
    BackendError,
    Buffer,
    raw_from_integers,
    values_from_raw,
)
from gpu_burnin.compute.exact import U64, Digest
from gpu_burnin.compute.patterns import MemoryFaults, Pattern, compare
from gpu_burnin.types import JSON, Gpu

_CHUNK_WORDS = 1 << 15  # 256 KiB: the temporary arrays stay in the cache


class CpuBackend:
    """The Backend protocol on host memory."""

    name = "cpu"
    simulated = True
    precisions: tuple[str, ...] = exact.PRECISIONS
    covers_memory = True

    def __init__(self) -> None:
        self._launches = 0

    def open(self, gpu: Gpu | None) -> None:
        self._launches = 0

    def close(self) -> None:
        self._launches = 0

    def facts(self) -> Mapping[str, JSON]:
        return {"backend": "cpu", "numpy": np.__version__, "machine": platform.machine()}

    def allocate(self, storage: str, rows: int, cols: int) -> Buffer:
        kind = STORAGE[storage]
        try:
            data = np.zeros((rows, cols), dtype=f"u{kind.size_bytes}")
        except MemoryError:
            raise BackendError(f"no memory for a {rows} x {cols} {storage} matrix: use smaller shapes") from None
        return Buffer(kind, rows, cols, data)

    def fill(self, buffer: Buffer, key: int, bound: int, signed: bool, stride: int) -> None:
        values = exact.operand_rows(key, bound, signed, stride, 0, buffer.rows, buffer.cols)
        buffer.data[...] = raw_from_integers(values, buffer.storage.name)

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        left, right = (values_from_raw(x.data, x.storage.name) for x in (a, b))
        if precision == "int8":
            product = (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int32)
        else:
            with np.errstate(all="ignore"):  # a corrupted operand may well be NaN; the detector counts it
                product = left @ right
        c.data[...] = product.view(c.data.dtype)
        self._launches += 1

    def synchronize(self) -> None:
        return None

    def launches(self) -> int:
        return self._launches

    def digest(self, c: Buffer, key: int) -> Digest:
        return exact.digest(values_from_raw(c.data, c.storage.name), key)

    def bilinear(self, c: Buffer, w: U64, v: U64) -> int:
        integers, _, _ = exact.to_integers(values_from_raw(c.data, c.storage.name))
        return exact.bilinear(integers, w, v)

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        bits: NDArray[Any] = buffer.data.reshape(-1)[start : start + count].copy()
        return bits

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        buffer.data.reshape(-1)[start : start + bits.size] = bits

    def memory_allocate(self, size_bytes: int) -> U64:
        try:
            return np.zeros(size_bytes // 8, dtype=np.uint64)
        except MemoryError:
            raise BackendError(f"no memory for a test of {size_bytes} bytes: lower shapes.hbm_bytes") from None

    def memory_write(self, memory: U64, pattern: Pattern) -> None:
        for start in range(0, memory.size, _CHUNK_WORDS):
            part = memory[start : start + _CHUNK_WORDS]
            part[...] = pattern.words(start, part.size)

    def memory_verify(
        self, memory: U64, pattern: Pattern, then: Pattern | None = None, downwards: bool = False
    ) -> MemoryFaults:
        faults = MemoryFaults()
        starts = range(0, memory.size, _CHUNK_WORDS)
        for start in reversed(starts) if downwards else starts:
            part = memory[start : start + _CHUNK_WORDS]
            faults = faults + compare(part, pattern, start)
            if then is not None:
                part[...] = then.words(start, part.size)
        return faults

    def memory_flip(self, memory: U64, offset_bytes: int, mask: int) -> None:
        memory[offset_bytes // 8] ^= np.uint64(mask)
