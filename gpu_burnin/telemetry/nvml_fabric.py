"""Reading of nvmlGpuFabricInfo through nvidia-ml-py, in the newest version that the driver knows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pynvml

from gpu_burnin.telemetry.nvml_reader import Reader
from gpu_burnin.telemetry.state import Unsupported, Whole

_MISSING = Unsupported("not_supported")
_TOO_OLD = Unsupported("driver_too_old")


def _versioned(structure: Callable[[], Any]) -> Callable[[Any], Any]:
    def read(handle: Any) -> Any:
        info = structure()
        pynvml.nvmlDeviceGetGpuFabricInfoV(handle, ctypes.byref(info))
        return info

    return read


def _first(handle: Any) -> Any:
    info = pynvml.c_nvmlGpuFabricInfo_t()
    pynvml.nvmlDeviceGetGpuFabricInfo(handle, ctypes.byref(info))
    return info


# Newest first, with the driver that brought it (NVML change log). Version 4 (615) tells nothing more that is judged.
_VERSIONS: tuple[tuple[int, Callable[[Any], Any]], ...] = (
    (3, _versioned(pynvml.c_nvmlGpuFabricInfo_v3_t)),  # 580: health summary
    (2, _versioned(pynvml.c_nvmlGpuFabricInfo_v2_t)),  # 550: health mask
    (1, _first),
)


def read_fabric(reader: Reader) -> dict[str, Whole]:
    """The fabric fields of GpuState; what the version that answered does not carry is driver_too_old."""
    version, info = _newest(reader)
    if isinstance(info, Unsupported):
        names = ("fabric_version", "fabric_state", "fabric_status", "fabric_health_summary", "fabric_health_mask")
        return dict.fromkeys(names, info)
    return {
        "fabric_version": version,
        # One byte in nvml.h with padding behind it; nvidia-ml-py takes all four for the state.
        "fabric_state": int(info.state) & 0xFF,
        "fabric_status": int(info.status),
        "fabric_health_summary": int(info.healthSummary) if version >= 3 else _TOO_OLD,
        "fabric_health_mask": int(info.healthMask) if version >= 2 else _TOO_OLD,
    }


def _newest(reader: Reader) -> tuple[int, Any | Unsupported]:
    """The newest version that is answered; an error that is no matter of versions ends the search."""
    errors = []
    for version, read in _VERSIONS:
        info = reader.get(read)
        if not isinstance(info, Unsupported):
            return version, info
        errors.append(info)
        if not info.by_design and info.why != "invalid_argument":
            return 0, info
    # A driver that knows one of the versions says of a GPU without fabric that it is not supported.
    return 0, _MISSING if _MISSING in errors else errors[-1]
