"""Measurements of the power check on one GPU: power reached beside the limit, and how well waves keep their edges.

Power is the rise of the GPU's energy counter by the time it took, as the burn-in judges it. Figures of one run on one
machine: printed, never asserted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.power.check import Check
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.engine.plan import CUDA_SHAPES
from gpu_burnin.judge.measured import measured
from gpu_burnin.judge.power import judge_power
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry.discover import discover
from gpu_burnin.telemetry.sampling import Sampling
from tests.support.observed import observed

_BUDGET_S = 30.0
_SEED = 21


def measure_power(device: CudaDevice, cupy: Any) -> dict[str, Any]:
    """The check of the level standard, with the sampler beside it: its coverage, and what the GPU drew.

    The sampler is that of the GPU which CUDA calls 0 here, found by its UUID.
    """
    gpus = discover().gpus
    uuid = bytes(cupy.cuda.runtime.getDeviceProperties(0)["uuid"]).hex()
    gpu = next((one for one in gpus if one.uuid.removeprefix("GPU-").replace("-", "") == uuid), gpus[0])
    ctx = CheckContext(
        seed=_SEED, level="standard", budget_s=_BUDGET_S, gpus=(gpu,), gpu=gpu, device=device,
        shapes={key: value for key, value in CUDA_SHAPES.items() if value}, options={"power_waves": "always"},
        exchange=lambda data: {gpu.uuid: data},
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder, Sampling((gpu,), Path(folder), lambda _: None) as sampling:
        result = Check().run(ctx)
        sampling.stop()
        seen = measured(observed([result], (gpu,), telemetry=sampling.findings()))
        notices = judge_power(seen).notices
    (found,) = seen.results
    covered: dict[str, Any] = to_json(found.coverage)
    return {
        "verdict": str(found.verdict),
        "reasons": [reason.message for reason in found.reasons],
        "notices": [notice.message for notice in notices],
        "waves": covered.get("waves"),
        "mixed": covered.get("mixed"),
        "power": covered.get("power"),
        "power_limit_w": covered.get("power_limit_w"),
        "shape": covered.get("shape"),
        "precision": covered.get("precision"),
    }
