"""Products on the CPU, by NumPy. They exercise the detectors' logic and host memory only, no GPU.

BF16, FP16, TF32 and FP8 operands are held in their own format (ml_dtypes, NumPy) and multiplied as FP32
after an exact conversion; INT8 products are made in FP64, where they are exact, and stored as INT32. "On
the device" means in host memory here; work is done when it is asked for, so there is nothing to wait for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.device.storage import Buffer, raw_from_integers, to_logical, values_from_raw
from gpu_burnin.exact import freivalds, operands
from gpu_burnin.exact.digest import digest, digest_raw, integers_of, low_keys
from gpu_burnin.exact.operands import U64, Operand, Scale
from gpu_burnin.exact.port import Collected, Observed
from gpu_burnin.types import JSON

_CHUNK_WORDS = 1 << 15  # 256 KiB: the temporary arrays stay in the cache
# Digest keys are remembered for results of up to this many elements (32 MiB of keys).
_REMEMBERED_KEYS = 1 << 22


def make_port(device: Device) -> CpuProducts:
    """See Device.port."""
    return CpuProducts(device)


class CpuProducts:
    """The Products protocol on host memory."""

    precisions: tuple[str, ...] = operands.PRECISIONS

    def __init__(self, device: Device) -> None:
        self.device = device
        self._reset()

    def _reset(self) -> None:
        self._launches = 0
        self._observed: list[Observed] = []
        self._kept: NDArray[Any] | None = None
        self._kept_index: int | None = None
        self._started: float | None = None
        self._ended = 0.0
        self._keys: tuple[int, U64] = (0, np.empty(0, dtype=np.uint64))

    def close(self) -> None:
        self._reset()

    def facts(self) -> Mapping[str, JSON]:
        return {}

    def fill(self, buffer: Buffer, operand: Operand) -> None:
        out, exponents = _logical(buffer), operand.exponents
        for part, values in operands.operand_blocks(operand, buffer.rows, buffer.cols):
            powers = None
            if exponents is not None:
                powers = exponents[part, None] if operand.axis == "rows" else exponents[None, :]
            out[part] = raw_from_integers(values, buffer.storage.name, powers)

    def fill_random(self, buffer: Buffer, key: int, positive: bool = False) -> None:
        out = _logical(buffer)
        step = max(1, _CHUNK_WORDS // buffer.cols)
        for row in range(0, buffer.rows, step):
            count = min(step, buffer.rows - row)
            bits = operands.random_bits(buffer.storage.name, key, row * buffer.cols, count * buffer.cols, positive)
            out[row : row + count] = bits.reshape(count, buffer.cols)

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        self._begin()
        left, right = (values_from_raw(_logical(x), x.storage.name) for x in (a, b))
        with np.errstate(all="ignore"):  # a corrupted operand may well be NaN; the detector counts it
            if precision == "int8":
                c.data[...] = (left.astype(np.float64) @ right.astype(np.float64)).astype(np.int32).view(np.uint32)
            else:
                np.matmul(left, right, out=c.data.view(left.dtype))
        self._launches += 1
        self._ended = time.perf_counter()

    def enqueue_check(self, c: Buffer, key: int, scale: Scale | None, expected: int | None) -> None:
        self._begin()
        seen = digest(values_from_raw(c.data, c.storage.name), key, scale, self._low_keys(key, c.elements))
        self._observed.append(Observed(seen, self._launches))
        wrong = expected is not None and (seen.value != expected or not seen.clean)
        if wrong and self._kept is None:
            self._kept, self._kept_index = c.data.copy(), len(self._observed) - 1
        self._ended = time.perf_counter()

    def collect(self) -> Collected:
        seconds = 0.0 if self._started is None else self._ended - self._started
        collected = Collected(tuple(self._observed), self._kept_index, seconds)
        self._observed, self._kept_index, self._started = [], None, None
        return collected

    def kept_matrix(self, c: Buffer) -> NDArray[Any]:
        if self._kept is None:
            raise DeviceError("no result was kept: this is a fault of the caller")
        return self._kept.reshape(c.rows, c.cols).copy()

    def forget_kept(self) -> None:
        self._kept = None

    def digest_bits(self, c: Buffer, key: int) -> int:
        return digest_raw(c.data, key)

    def bilinear(self, c: Buffer, w: U64, v: U64, scale: Scale | None) -> int:
        return freivalds.bilinear(integers_of(values_from_raw(c.data, c.storage.name), scale), w, v)

    def algorithm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> str:
        return "numpy"

    def _begin(self) -> None:
        if self._started is None:
            self._started = time.perf_counter()

    def _low_keys(self, key: int, elements: int) -> U64 | None:
        """The digest keys of a result; the longest one so far serves all shorter ones."""
        if elements > _REMEMBERED_KEYS:
            return None
        known, keys = self._keys
        if known != key or keys.size < elements:
            keys = low_keys(key, 0, elements).astype(np.uint64)
            self._keys = (key, keys)
        return keys[:elements]


def _logical(buffer: Buffer) -> NDArray[Any]:
    """A view of the buffer as its logical matrix."""
    return to_logical(buffer, buffer.data.reshape(-1))
