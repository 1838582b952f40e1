"""Measurements on one GPU: rates beside plain cuBLAS, cost of verification, digest kernel, time to detection.

All times are CUDA events' unless said otherwise. Figures of one run on one machine: printed, never asserted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.storage import STORAGE, Buffer
from gpu_burnin.engine.plan import CUDA_SHAPES
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.exact import operands
from gpu_burnin.exact.cublaslt import COMPUTE_TYPE, CUDA_TYPE, SCALE_TYPE
from gpu_burnin.exact.golden import DIGEST_KEY
from gpu_burnin.exact.operands import Scale
from gpu_burnin.exact.port import STORAGE_OF, Products
from gpu_burnin.exact.product import ROUND, Pair, ProductUnit, Shape, Stream

RATE_SHAPE = Shape(CUDA_SHAPES["gemm_m"], CUDA_SHAPES["gemm_n"], CUDA_SHAPES["gemm_k"])
_LEAST_S = 0.5
_BATCH_S = 0.2
_READ_BYTES = 4 << 30
_DIGEST_BYTES = 2 << 30
_SEEDS = (21, 22)
_PLANTS = 5

_READ = r"""
extern "C" __global__ void __launch_bounds__(256) read_all(const uint4* data, unsigned long long loads, unsigned* out) {
    unsigned long long step = (unsigned long long)gridDim.x * 256, i = (unsigned long long)blockIdx.x * 256;
    unsigned sum = 0;
    for (i += threadIdx.x; i + 7 * step < loads; i += 8 * step) {
        uint4 w[8];
        #pragma unroll
        for (int j = 0; j < 8; j++) w[j] = data[i + j * step];
        #pragma unroll
        for (int j = 0; j < 8; j++) sum ^= w[j].x ^ w[j].y ^ w[j].z ^ w[j].w;
    }
    if (sum == 0x9E3779B9u) *out = sum;  // the loads must not be optimised away
}
"""


@dataclass(frozen=True)
class Rate:
    """One precision. Rates in TFLOP/s (INT8: TOP/s); `bound` is 1 / (1 + 2 P / (K x BW)) with P = `plain`.

    `cublas` is cublasGemmEx, None where it has no such product (FP8); `plain` is cublasLt without verification.
    """

    precision: str
    cublas: float | None
    plain: float
    verified: float
    bound: float

    @property
    def ratio(self) -> float:
        """Verified to unverified rate."""
        return self.verified / self.plain


@dataclass(frozen=True)
class Detection:
    """Seconds of the host's clock from planting a fault in device memory until the device's caller knew of it."""

    precision: str
    worst_s: float
    plants: int


def seconds_each(cupy: Any, launch: Callable[[int], None], least_s: float = _LEAST_S) -> float:
    """Device time of one call of `launch(number)`, over at least `least_s` after warming up."""

    def timed(count: int) -> float:
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        for number in range(count):
            launch(number)
        end.record()
        end.synchronize()
        return float(cupy.cuda.get_elapsed_time(start, end)) / 1000.0

    timed(3)
    count = max(4, math.ceil(least_s / max(timed(4) / 4, 1e-6)))
    return timed(count) / count


def read_bandwidth(cupy: Any, device: CudaDevice) -> float:
    """Bytes per second of a kernel that does nothing but read: the best of five."""
    data = cupy.zeros(_READ_BYTES // 8, dtype=np.uint64)
    out = cupy.zeros(1, dtype=np.uint32)
    kernel = device.loader.load(_READ, ("read_all",))["read_all"]
    arguments = (data, np.uint64(_READ_BYTES // 16), out)
    grid = (device.multiprocessors() * 8,)
    best = min(seconds_each(cupy, lambda _: kernel(grid, (256,), arguments), 0.2) for _ in range(5))
    return _READ_BYTES / best


def digest_shares(products: Products, cupy: Any, bandwidth: float) -> dict[str, float]:
    """Read rate of the digest kernel over the read bandwidth, for each type of result."""
    shares = {}
    for storage, scaled in (("fp32", False), ("fp32", True), ("fp64", False), ("int32", False)):
        cols = 16384
        rows = _DIGEST_BYTES // cols // STORAGE[storage].size_bytes
        c = products.device.allocate(storage, rows, cols)
        c.data.data.memset_async(0, c.size_bytes)
        zero = Scale(np.zeros(rows, np.int16), np.zeros(cols, np.int16)) if scaled else None
        each = seconds_each(cupy, _checker(products, c, zero), 0.5)
        products.collect()
        shares[storage + (" scaled" if scaled else "")] = c.size_bytes / each / bandwidth
    return shares


def _checker(products: Products, c: Buffer, scale: Scale | None) -> Callable[[int], None]:
    return lambda _: products.enqueue_check(c, DIGEST_KEY, scale, None)


def _loaded(products: Products, precision: str, shape: Shape) -> ProductUnit:
    unit = ProductUnit(Stream(products), precision, shape)
    unit.load(operands.ranges_for(precision)[0], _SEEDS, _SEEDS)
    return unit


def _digests(unit: ProductUnit) -> dict[Pair, int]:
    """What the four products give, on this GPU: the measurement needs a value to compare with, not a proof."""
    for i, j in ROUND:
        unit.products.gemm(unit.precision, unit.a[i], unit.b[j], unit.c)
        unit.products.enqueue_check(unit.c, DIGEST_KEY, None, None)
    return {pair: seen.digest.value for pair, seen in zip(ROUND, unit.products.collect().observed, strict=True)}


def rate(products: Products, cupy: Any, precision: str, bandwidth: float, shape: Shape = RATE_SHAPE) -> Rate:
    """Plain and verified rate of one precision, one after the other on the same operands."""
    unit = _loaded(products, precision, shape)
    expected = _digests(unit)

    def plain(number: int) -> None:
        i, j = ROUND[number % 4]
        products.gemm(precision, unit.a[i], unit.b[j], unit.c)

    def verified(number: int) -> None:
        plain(number)
        products.enqueue_check(unit.c, DIGEST_KEY, None, expected[ROUND[number % 4]])

    def teraflops(seconds: float) -> float:
        return shape.operations / seconds / 1e12

    cublas = None if precision == "fp8_e4m3" else teraflops(_gemm_ex(cupy, unit))
    unverified = teraflops(seconds_each(cupy, plain))
    checked = teraflops(seconds_each(cupy, verified))
    collected = products.collect()
    wrong = sum(1 for seen in collected.observed if seen.digest.value not in expected.values())
    if wrong:
        raise GpuBurninError(f"{precision}: {wrong} of {len(collected.observed)} products were wrong: run the burn-in")
    bound = 1 / (1 + 2 * unverified * 1e12 / (shape.k * bandwidth))
    return Rate(precision, cublas, unverified, checked, bound)


def _gemm_ex(cupy: Any, unit: ProductUnit) -> float:
    """Seconds of one product by cublasGemmEx, the same problem as ours."""
    cublas, shape = cupy.cuda.cublas, unit.shape
    operand, result = (CUDA_TYPE[name] for name in STORAGE_OF[unit.precision])
    kind = {1: np.float64, 10: np.int32, 0: np.float32}[SCALE_TYPE[unit.precision]]
    one, zero = np.ones(1, kind), np.zeros(1, kind)
    handle = cublas.create()

    def launch(number: int) -> None:
        i, j = ROUND[number % 4]
        cublas.gemmEx(
            handle, 1, 0, shape.n, shape.m, shape.k,
            one.ctypes.data,
            unit.b[j].data.data.ptr, operand, shape.k,
            unit.a[i].data.data.ptr, operand, shape.k,
            zero.ctypes.data,
            unit.c.data.data.ptr, result, shape.n,
            COMPUTE_TYPE[unit.precision], -1,
        )  # fmt: skip

    try:
        return seconds_each(cupy, launch)
    finally:
        cublas.destroy(handle)


def detection(products: Products, cupy: Any, precision: str) -> Detection:
    """Plant a flipped sign in an operand while verified products run in batches, as in the check, and wait.

    The fault is put in at another place of the batch each time, and taken out after it.
    """
    unit = _loaded(products, precision, RATE_SHAPE)
    expected = _digests(unit)
    each = seconds_each(cupy, lambda _: products.gemm(precision, unit.a[0], unit.b[0], unit.c), 0.1)
    batch = max(8, math.ceil(_BATCH_S / each))
    place, good, bad = _sign_flip(products, unit.a[0])
    worst = 0.0
    for plant in range(_PLANTS):
        at, started = batch * plant // _PLANTS, 0.0
        for number in range(batch):
            i, j = ROUND[number % 4]
            if number == at:
                started = time.perf_counter()
                products.device.write_raw(unit.a[0], place, bad)
            products.gemm(precision, unit.a[i], unit.b[j], unit.c)
            products.enqueue_check(unit.c, DIGEST_KEY, None, expected[i, j])
        seen = products.collect().observed
        worst = max(worst, time.perf_counter() - started)
        wrong = [k for k, o in enumerate(seen) if o.digest.value != expected[ROUND[k % 4]]]
        if not wrong or wrong[0] < at:
            raise GpuBurninError(
                f"{precision}: the planted fault was not seen where it was planted ({wrong[:3]}, {at})"
            )
        products.device.write_raw(unit.a[0], place, good)
        products.forget_kept()
    return Detection(precision, worst, _PLANTS)


def _sign_flip(products: Products, buffer: Buffer) -> tuple[int, Any, Any]:
    """Place of the first element that is not zero, its bits, and those with another sign (INT8: all bits flipped)."""
    bits = products.device.read_raw(buffer, 0, min(buffer.elements, 1 << 16))
    place = int(np.flatnonzero(bits)[0])
    size = 8 * buffer.storage.size_bytes
    mask = (1 << size) - 1 if buffer.storage.integer else 1 << (size - 1)
    good = bits[place : place + 1]
    return place, good, good ^ good.dtype.type(mask)
