"""Measurements of the memory test on one GPU: its kernels beside a plain copy, and a whole sweep.

All times are CUDA events'. Figures of one run on one machine: printed, never asserted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.hbm.check import Check
from gpu_burnin.checks.hbm.patterns import KINDS, Pattern
from gpu_burnin.checks.hbm.port import HbmPort, hbm_port
from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.engine.plan import CUDA_SHAPES

_COPY_BYTES = 4 << 30
_ON_DEVICE = 3  # cudaMemcpyDeviceToDevice (driver_types.h)
_TIMES = 5
_SEED = 21


def measure_hbm(device: CudaDevice, cupy: Any, save: Callable[..., None]) -> None:
    """Tell of copy bandwidth in B/s, read plus written; the kernels' shares of it; seconds and coverage of a sweep."""
    copy = _copy_bandwidth(cupy)
    save(copy_bandwidth=copy)
    cupy.get_default_memory_pool().free_all_blocks()
    save(**_sweep(device))
    save(shares=_shares(device, copy))


def _copy_bandwidth(cupy: Any) -> float:
    """The best of five copies from one half of a buffer to the other, by cudaMemcpyAsync."""
    data = cupy.empty(2 * _COPY_BYTES, dtype="u1")
    source, target = data.data.ptr, data.data.ptr + _COPY_BYTES
    stream = cupy.cuda.get_current_stream()
    best = 0.0
    for _ in range(_TIMES):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record()
        cupy.cuda.runtime.memcpyAsync(target, source, _COPY_BYTES, _ON_DEVICE, stream.ptr)
        end.record()
        end.synchronize()
        best = max(best, 2 * _COPY_BYTES / (float(cupy.cuda.get_elapsed_time(start, end)) / 1000.0))
    return best


def _shares(device: CudaDevice, copy: float) -> dict[str, float]:
    """Rate of each kernel over all of the memory, as a share of the copy bandwidth: the best of five."""
    memory = hbm_port(device)
    try:
        size = memory.take(0).size_bytes
        shares = {}
        for kind in KINDS:
            pattern = Pattern(kind, 5)
            shares[f"write {kind}"] = size / _best(memory, [partial(memory.write, pattern)]) / copy
            shares[f"read {kind}"] = size / _best(memory, [partial(memory.verify, pattern)]) / copy
            # There and back again, so that each finds what it expects.
            back = pattern.complement()
            both = [
                partial(memory.verify, pattern, invert=True),
                partial(memory.verify, back, invert=True),
            ]
            shares[f"read and rewrite {kind}"] = 4 * size / _best(memory, both) / copy
    finally:
        memory.give_back()
    return shares


def _best(memory: HbmPort, acts: Sequence[Callable[[], object]]) -> float:
    """Seconds of all acts one after the other, the fastest of five."""
    spent = []
    for _ in range(_TIMES):
        before = memory.seconds
        for act in acts:
            act()
        spent.append(memory.seconds - before)
    return min(spent)


def _sweep(device: CudaDevice) -> dict[str, Any]:
    """One round of the level standard over all of the memory."""
    ctx = CheckContext(seed=_SEED, level="standard", budget_s=0.0, gpus=(), device=device, shapes=CUDA_SHAPES)
    memory = hbm_port(device)
    try:
        total = memory.take(0).total_bytes
    finally:
        memory.give_back()
    result = Check().run(ctx)
    assert isinstance(result.coverage, HbmCoverage)
    covered = result.coverage.covered_bytes
    return {
        "sweep_seconds": result.coverage.sweep_seconds,
        "sweep_wall_seconds": result.seconds,
        "sweep_verdict": result.verdict.value,
        "covered_bytes": covered,
        "total_bytes": total,
    }
