"""Alerts of GPUs, by the numbers of DCGM's exporter."""

from __future__ import annotations

from .case import GPU, Case

_ONE = {**GPU, "gpu": "3"}


def _of(field: str, values: str, gpu: str = "3") -> dict[str, str]:
    return {f'{field}{{instance="gpu-1",gpu="{gpu}"}}': values}


def _reasons(bits: int) -> dict[str, str]:
    return _of("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", f"{bits}x60")


def _seen(dcgm: int, burnin: int) -> dict[str, str]:
    seen = {key: "40x60" for gpu in range(dcgm) for key in _of("DCGM_FI_DEV_GPU_TEMP", "", str(gpu))}
    verdicts = {"PASS": 1, "FAIL": 0, "INCONCLUSIVE": 0}
    return seen | {
        f'gpu_burnin_gpu_verdict{{instance="gpu-1",gpu="GPU-{gpu}",verdict="{verdict}"}}': f"{value}x60"
        for gpu in range(burnin)
        for verdict, value in verdicts.items()
    }


_BROKEN = _of("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "0x20 1x40")

CASES = (
    Case(
        "MusterXidFatal",
        _of("DCGM_FI_DEV_XID_ERRORS", "79x60"),
        # Of a program that reads beyond its memory.
        _of("DCGM_FI_DEV_XID_ERRORS", "31x60"),
        "1m",
        "The newest XID of GPU 3 of gpu-1 is 79, which takes the node from work.",
        _ONE,
    ),
    Case(
        "MusterEccUncorrected",
        _of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "2x60"),
        _of("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "0x60"),
        "1m",
        "GPU 3 of gpu-1 has had 2 uncorrected memory errors since its driver was loaded.",
        _ONE,
    ),
    Case(
        "MusterRemapPending",
        _of("DCGM_FI_DEV_ROW_REMAP_PENDING", "1x60"),
        _of("DCGM_FI_DEV_ROW_REMAP_PENDING", "0x60"),
        "1m",
        "GPU 3 of gpu-1 has a row of memory to remap, and does so at its next reset.",
        _ONE,
    ),
    Case(
        "MusterRemapFailed",
        _of("DCGM_FI_DEV_ROW_REMAP_FAILURE", "1x60"),
        _of("DCGM_FI_DEV_ROW_REMAP_FAILURE", "0x60"),
        "1m",
        "GPU 3 of gpu-1 could not remap a row of its memory: replace it.",
        _ONE,
    ),
    Case(
        "MusterGpuHot",
        _reasons(0x20 + 0x4),
        # At the power limit and by the power brake, which is no heat.
        _reasons(0x80 + 0x4),
        "6m",
        "GPU 3 of gpu-1 has been slowed down by heat for 5 minutes.",
        _ONE,
    ),
    Case(
        "MusterPowerBrake",
        _reasons(0x80 + 0x4),
        _reasons(0x40 + 0x4),
        "6m",
        "GPU 3 of gpu-1 has been slowed down by the machine's power brake for 5 minutes.",
        _ONE,
    ),
    Case(
        "MusterNvlinkDown",
        _BROKEN,
        # Long ago.
        _of("DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "1x60"),
        "15m",
        "An NVLink of GPU 3 of gpu-1 went down in the last hour.",
        _ONE,
    ),
    Case(
        "MusterFabricNotCompleted",
        _of("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "4x60"),
        _of("DCGM_FI_DEV_FABRIC_MANAGER_STATUS", "3x60"),
        "11m",
        "GPU 3 of gpu-1 is not on its NVLink fabric.",
        _ONE,
    ),
    Case(
        "MusterGpusMissing",
        _seen(dcgm=7, burnin=8),
        _seen(dcgm=8, burnin=8),
        "3m",
        "DCGM sees 7 GPUs on gpu-1, fewer than its newest burn-in did.",
        GPU,
    ),
)
