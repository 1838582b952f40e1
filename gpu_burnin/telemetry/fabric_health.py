"""What the fabric says of a GPU in nvmlGpuFabricInfo (nvml.h), in words. Standard library only."""

from __future__ import annotations

# nvmlGpuFabricState_t: the GPU has joined.
COMPLETED = 3
# NVML_GPU_FABRIC_HEALTH_SUMMARY_*: what is no complaint and what is. Many boards do not support the summary at all.
_SUMMARY_GOOD = frozenset({0, 1})  # not supported, healthy
_SUMMARY_BAD = {2: "unhealthy", 3: "of limited capacity"}
# NVML_GPU_FABRIC_HEALTH_MASK_*: shift of a field, mask of its width, values that are a complaint and what they mean.
_MASK: tuple[tuple[int, int, frozenset[int], str], ...] = (
    (0, 0x3, frozenset({1}), "its bandwidth is degraded"),
    (2, 0x3, frozenset({1}), "a route is being recovered"),
    (4, 0x3, frozenset({1}), "a route is unhealthy"),
    (6, 0x3, frozenset({1}), "an access timeout is being recovered"),
    (8, 0xF, frozenset(range(2, 16)), "its configuration is incorrect"),
    (14, 0x3, frozenset({2}), "the fabric manager is not connected"),
)


def of_summary(summary: int | None) -> str:
    """What the health summary calls the GPU, "" for no complaint; None is a summary that could not be read."""
    if summary is None or summary in _SUMMARY_GOOD:
        return ""
    return _SUMMARY_BAD.get(summary, f"something unknown (value {summary})")


def of_mask(mask: int) -> list[str]:
    """What the health mask complains about."""
    return [text for shift, width, bad, text in _MASK if mask >> shift & width in bad]
