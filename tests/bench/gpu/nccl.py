"""Measurements of the collectives: one GPU alone, and all GPUs of the machine where there are several.

Of one GPU there is no bus bandwidth: the rates say how fast it copies to itself and compares. All times are CUDA
events'. Figures of one run on one machine: printed, never asserted.
"""

from __future__ import annotations

import time
from typing import Any

from gpu_burnin.checks.nccl.operations import COLLECTIVES, KINDS, operation
from gpu_burnin.checks.nccl.port import nccl_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.errors import GpuBurninError
from tests.bench.gpu.burnin import burn_in

_BYTES = 1 << 30
_TIMES, _LIMIT_S = 20, 120.0


def measure_one_rank(device: CudaDevice) -> dict[str, Any]:
    """Version; bytes per second of each collective of one rank; seconds to make a communicator; share of compares."""
    port = nccl_port(device)
    try:
        port.open(_BYTES)
        started = time.perf_counter()
        port.join([port.offer(0, 1)], 0, "default", _LIMIT_S)
        result: dict[str, Any] = {"version": port.version(), "join_seconds": time.perf_counter() - started}
        for collective in COLLECTIVES:
            op = operation(collective, "fp32", _BYTES, 1, 0, 1)
            port.fill(op)
            port.begin(op, 1, _LIMIT_S)
            port.finish(_LIMIT_S)
            port.verify(op)
            port.fill(op)
            began_s = time.perf_counter()
            port.begin(op, _TIMES, _LIMIT_S)
            seconds = port.finish(_LIMIT_S)
            port.verify(op)
            result[f"{collective}_bytes_per_s"] = _TIMES * op.size_bytes / seconds
            # The rest is what comparing each result costs.
            result[f"{collective}_operating_share"] = seconds / (time.perf_counter() - began_s)
        for kind in KINDS:  # eight ranks' data are made to compare one result
            op = operation("all_reduce", kind, _BYTES, 8, 0, 1)
            port.fill(op)
            port.verify(op)
            started = time.perf_counter()
            port.verify(op)
            result[f"compare_{kind}_bytes_per_s"] = op.size_bytes / (time.perf_counter() - started)
        port.leave(_LIMIT_S)
    finally:
        port.close()
    return result


def measure_all_gpus() -> dict[str, Any]:
    """The nccl check of the level standard on all GPUs: verdict, seconds, curves. Raises GpuBurninError without any."""
    ran = burn_in("--level", "standard", "--checks", "nccl")
    if ran.report is None:
        raise GpuBurninError(f"the burn-in left no report: {ran.errors.strip()[-500:]}")
    checks = [check for check in ran.report["checks"] if check["name"] == "nccl"]
    return {
        "exit_code": ran.exit_code,
        "verdicts": [check["verdict"] for check in checks],
        "seconds": max(check["seconds"] for check in checks),
        "version": checks[0]["coverage"].get("version"),
        "curves": checks[0]["coverage"].get("curves"),
    }
