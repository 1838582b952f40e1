"""Products on one NVIDIA GPU: multiplied by cublasLt, filled and verified by own kernels.

Without a GPU, tests drive it against a recording fake of the CuPy and ctypes surfaces (order and
arguments of calls), and its kernels, compiled for the host, are compared with the host's own functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_device import few_blocks
from gpu_burnin.device.cuda_source import THREADS, cuda_source
from gpu_burnin.device.port import DeviceError
from gpu_burnin.device.storage import Buffer, to_logical
from gpu_burnin.exact import cublaslt
from gpu_burnin.exact.operands import EXACT_LIMIT, FORMATS, I16, PRIME, U64, Digest, Operand, Scale
from gpu_burnin.exact.port import Collected, Observed
from gpu_burnin.types import JSON

# Lowest compute capability with a tensor core (or plain unit) for the precision: CUDA C++ Programming Guide, table
# "Feature support per compute capability"; FP8 in cublasLt from 8.9 (cuBLAS documentation of cublasLtMatmul).
NEEDED_CAPABILITY: dict[str, tuple[int, int]] = {
    "fp64": (6, 0),
    "fp32": (6, 0),
    "tf32": (8, 0),
    "bf16": (8, 0),
    "fp16": (7, 0),
    "int8": (7, 2),
    "fp8_e4m3": (8, 9),
}


# Loads of 16 bytes that a thread of the digest has in flight.
UNROLL = 4
SOURCE = cuda_source(
    __package__,
    "fill.cu",
    "digest.cu",
    UNROLL=UNROLL,
    PRIME=f"{PRIME}ULL",
    FOLD=f"{(1 << 32) - PRIME}ULL",
    EXACT_LIMIT=float(EXACT_LIMIT),
)
# Storage codes shared by host and device.
STORAGE_CODE = {"fp64": 0, "fp32": 1, "bf16": 2, "fp16": 3, "int8": 4, "int32": 5, "fp8_e4m3": 6}
# Checks between two looks at their results; more make the port look earlier by itself.
RING_SLOTS = 1024
_LOAD_BYTES = 16
_KERNELS = (
    "fill", "fill_random", "count_launch", "digest_fp32", "digest_fp32_scaled", "digest_fp64",
    "digest_fp64_scaled", "digest_int32", "digest_raw64", "bilinear_fp32", "bilinear_fp64", "bilinear_int32",
)  # fmt: skip
_NULL = np.uint64(0)
# Word of the device's state (see settle in digest.cu) that says which result was kept.
_KEPT = 1
_SCALES_ON_DEVICE = 16
_FACTOR_LIMIT = 64


def make_port(device: CudaDevice) -> CudaProducts:
    """See Device.port."""
    return CudaProducts(device)


def inverse_factors(exponents: I16) -> NDArray[np.float32]:
    """2^-e for each exponent e; NaN where |e| > 64, which sends all but zeros to the general way.

    The bound is part of the proof in digest.cu (Fp32), and no exponent_span of an FP32 result goes beyond it.
    """
    inside = np.abs(exponents.astype(np.int32)) <= _FACTOR_LIMIT
    factors = np.ldexp(np.float32(1), np.where(inside, -exponents.astype(np.int32), 0))
    return np.where(inside, factors, np.float32(np.nan))


def _loads(size_bytes: int) -> int:
    """16-byte loads that cover this many bytes; CuPy's allocations are multiples of 512 bytes."""
    return -(-size_bytes // _LOAD_BYTES)


class CudaProducts:
    """The Products protocol on an open CudaDevice."""

    def __init__(self, device: CudaDevice) -> None:
        self.device: CudaDevice = device
        self._cupy, self._errors = device.cupy, device.errors
        capability = device.properties.capability
        self.precisions = tuple(name for name, needed in NEEDED_CAPABILITY.items() if capability >= needed)
        self._scales: dict[int, tuple[Scale, tuple[Any, ...], tuple[Any, ...]]] = {}
        self._kept: Any = None
        self._started: Any = None
        self._observed: list[Observed] = []
        self._first = 0  # number of the first check of this batch
        self._pending = 0  # results on the device
        with self._errors("taking the GPU"):
            self._state = self._cupy.zeros(4, dtype=np.uint64)
            self._ring = self._cupy.zeros((RING_SLOTS, 4), dtype=np.uint64)
            self._workspace = self._cupy.empty(cublaslt.WORKSPACE_BYTES, dtype=np.uint8)
            self._one = self._cupy.asarray(np.ones(1, dtype=np.float32))
            self._kernels: dict[str, Any] = device.loader.load(SOURCE, _KERNELS)
        self._library: cublaslt.CublasLt | None = cublaslt.CublasLt(
            cublaslt.load_library(), self._workspace.data.ptr, self._one.data.ptr
        )

    def close(self) -> None:
        if self._library is None:
            return
        self._library.close()
        self._library = None
        self._scales.clear()
        self._kept = self._started = None
        del self._state, self._ring, self._workspace, self._one
        self._kernels = {}
        with self._errors("giving back memory"):
            self._cupy.get_default_memory_pool().free_all_blocks()

    def facts(self) -> Mapping[str, JSON]:
        return {"cublaslt": self._lt().version()}

    def fill(self, buffer: Buffer, operand: Operand) -> None:
        if operand.exponents is None:
            exponents: Any = _NULL
        else:
            with self._errors("uploading exponents"):
                exponents = self._cupy.asarray(operand.exponents.astype(np.int16))
        self._launch(
            "fill",
            buffer.data,
            np.int32(STORAGE_CODE[buffer.storage.name]),
            np.uint64(buffer.rows),
            np.uint64(buffer.cols),
            np.int32(buffer.transposed),
            np.uint64(operand.key),
            np.int64(operand.bound),
            np.int64(operand.low),
            np.int32(operand.signed),
            np.uint64(min(operand.stride, buffer.cols)),
            exponents,
            np.int32(operand.axis == "cols"),
        )

    def fill_random(self, buffer: Buffer, key: int, positive: bool = False) -> None:
        size_bytes = buffer.storage.size_bytes
        if buffer.storage.integer:
            exponent_bits, fraction_bits, varying, sign = 0, 8 * size_bytes - int(positive), 0, 0
        else:
            exponent_bits, fraction_bits, varying = FORMATS[buffer.storage.name]
            sign = 0 if positive else 1 << (exponent_bits + fraction_bits)
        self._launch(
            "fill_random",
            buffer.data,
            np.int32(size_bytes),
            np.uint64(buffer.rows),
            np.uint64(buffer.cols),
            np.int32(buffer.transposed),
            np.uint64(key),
            np.int32(exponent_bits),
            np.int32(fraction_bits),
            np.int32(varying),
            np.int32(buffer.storage.name == "fp8_e4m3"),
            np.uint64(sign),
        )

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        self._begin()
        stream = self._cupy.cuda.get_current_stream().ptr
        problem = self._problem(precision, a, b, c)
        try:
            self._lt().matmul(problem, a.data.data.ptr, b.data.data.ptr, c.data.data.ptr, stream)
        except DeviceError:
            self.device.synchronize()  # cublasLt says that it failed, the device itself may say why
            raise
        with self._errors("counting a product"):
            self._kernels["count_launch"]((1,), (1,), (self._state,))

    def enqueue_check(self, c: Buffer, key: int, scale: Scale | None, expected: int | None) -> None:
        self._begin()
        if self._pending == RING_SLOTS:
            self._drain()
        number = self._first + len(self._observed) + self._pending
        kernel = f"digest_{c.storage.name}" + ("_scaled" if scale is not None else "")
        self._digest(kernel, c, scale, key, self._ring[self._pending], number, expected)
        self._pending += 1

    def collect(self) -> Collected:
        if self._started is None:
            # Reading the state would wait for copies to the host that others have under way.
            return Collected((), None, 0.0)
        with self._errors("waiting for products"):
            end = self._cupy.cuda.Event()
            end.record()
            end.synchronize()
            seconds = float(self._cupy.cuda.get_elapsed_time(self._started, end)) / 1000.0
        self._drain()
        kept = int(self._state_words()[_KEPT]) - 1 - self._first
        observed = tuple(self._observed)
        self._first += len(observed)
        self._observed.clear()
        self._started = None
        return Collected(observed, kept if kept >= 0 else None, seconds)

    def kept_matrix(self, c: Buffer) -> NDArray[Any]:
        if self._kept is None or int(self._state_words()[_KEPT]) == 0:
            raise DeviceError("no result is kept: ask after a collection that names one")
        with self._errors("reading a kept result"):
            words = self._kept[: _loads(c.size_bytes) * 2].get()
        return to_logical(c, words.view(np.dtype(f"u{c.storage.size_bytes}"))[: c.elements])

    def forget_kept(self) -> None:
        with self._errors("forgetting a kept result"):
            self._state[_KEPT : _KEPT + 1].data.memset_async(0, 8)

    def digest_bits(self, c: Buffer, key: int) -> int:
        with self._errors("making a digest"):
            slot = self._cupy.zeros(4, dtype=np.uint64)
        kernel = {4: "digest_int32", 8: "digest_raw64"}[c.storage.size_bytes]
        self._digest(kernel, c, None, key, slot, 0, None)
        with self._errors("reading a digest"):
            return int(slot.get()[0])

    def bilinear(self, c: Buffer, w: U64, v: U64, scale: Scale | None) -> int:
        with self._errors("uploading vectors"):
            out = self._cupy.zeros(1, dtype=np.uint64)
            left, right = (self._cupy.asarray(vector.astype(np.uint32)) for vector in (w, v))
        exponents, _ = self._powers(scale)
        shape = (np.uint64(c.elements), np.uint64(c.cols))
        self._launch(f"bilinear_{c.storage.name}", c.data, *shape, *exponents, left, right, out)
        with self._errors("reading Freivalds' value"):
            return int(out.get()[0]) % PRIME

    def algorithm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> str:
        return self._lt().algorithm(self._problem(precision, a, b, c))

    def _lt(self) -> cublaslt.CublasLt:
        if self._library is None:
            raise DeviceError("these products are closed: open them again")
        return self._library

    def _problem(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> cublaslt.Problem:
        if precision not in self.precisions:
            major, minor = NEEDED_CAPABILITY[precision]
            raise DeviceError(
                f"{self.device.properties.name} does not compute {precision} "
                f"(needs compute capability {major}.{minor}): leave the precision out"
            )
        if not b.transposed or a.transposed or c.transposed:
            raise DeviceError("a product needs A and C stored row by row and B column by column: allocate them so")
        return cublaslt.Problem(precision, c.rows, c.cols, a.cols)

    def _digest(
        self, kernel: str, c: Buffer, scale: Scale | None, key: int, slot: Any, number: int, expected: int | None
    ) -> None:
        per_load = _LOAD_BYTES // c.storage.size_bytes
        if scale is not None and c.cols % per_load != 0:
            raise DeviceError(f"a scaled result needs a multiple of {per_load} columns, not {c.cols}: use such shapes")
        blocks = min(self.device.blocks, few_blocks(-(-c.elements // per_load), THREADS, UNROLL))
        exponents, factors = self._powers(scale)
        if expected is not None:
            self._make_room(c.size_bytes)
        self._launch(
            kernel,
            c.data,
            np.uint64(c.elements),
            np.uint64(c.cols),
            *exponents,
            *factors,
            np.uint32(key & 0xFFFFFFFF),
            slot,
            self._state,
            np.uint64(number),
            np.uint64(expected or 0),
            _NULL if expected is None else self._kept,
            blocks=blocks,
        )

    def _powers(self, scale: Scale | None) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """Exponents of rows and columns on the device, and the factors that take them away; made once for each scale
        object that is in use."""
        if scale is None:
            return (_NULL, _NULL), (_NULL, _NULL)
        if id(scale) not in self._scales:
            if len(self._scales) == _SCALES_ON_DEVICE:
                self._scales.clear()
            parts = (scale.rows, scale.cols)
            with self._errors("uploading exponents"):
                exponents = tuple(self._cupy.asarray(part.astype(np.int16)) for part in parts)
                factors = tuple(self._cupy.asarray(inverse_factors(part)) for part in parts)
            self._scales[id(scale)] = (scale, exponents, factors)
        return self._scales[id(scale)][1:]

    def _make_room(self, size_bytes: int) -> None:
        """A buffer for a kept result of this size; what an earlier, smaller one holds is taken along."""
        words = _loads(size_bytes) * 2
        if self._kept is not None and self._kept.size >= words:
            return
        with self._errors("making room for a kept result"):
            larger = self._cupy.empty(words, dtype=np.uint64)
            if self._kept is not None:
                larger.data.copy_from_device_async(self._kept.data, self._kept.nbytes)
        self._kept = larger

    def _begin(self) -> None:
        """Device time counts from here, if nothing was enqueued since the last collection."""
        if self._started is None:
            with self._errors("starting a batch"):
                self._started = self._cupy.cuda.Event()
                self._started.record()

    def _drain(self) -> None:
        """Take the results that are due from the device and clear their slots."""
        if self._pending == 0:
            return
        with self._errors("reading results"):
            used = self._ring[: self._pending]
            rows = used.get()
            used.data.memset_async(0, rows.nbytes)
        for value, nonfinite, noninteger, launches in rows.tolist():
            self._observed.append(Observed(Digest(value, nonfinite, noninteger), launches))
        self._pending = 0

    def _state_words(self) -> NDArray[Any]:
        with self._errors("reading the state"):
            words: NDArray[Any] = self._state.get()
        return words

    def _launch(self, kernel: str, *arguments: Any, blocks: int | None = None) -> None:
        with self._errors(f"launching {kernel}"):
            self._kernels[kernel]((blocks or self.device.blocks,), (THREADS,), arguments)
