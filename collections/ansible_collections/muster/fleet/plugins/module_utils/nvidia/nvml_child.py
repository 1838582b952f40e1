"""A program of its own: what NVML says, as one line of JSON. A call into the driver can hang for ever or crash.

Run as `python -c SOURCE LIBRARY MAY_START`; needs the standard library alone. Structures and numbers are those of
NVIDIA's nvml.h.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED = 12, 9
_NOT_SUPPORTED = 3
_FUNCTION_NOT_FOUND = 13
# The project's own library of made-up GPUs says so by this symbol (tests/lab/fake_nvml).
_FAKE_SYMBOL = "muster_fake_nvml"
_TEXT_BYTES = 96
_FABRIC_STATES = ("not_supported", "not_started", "in_progress", "completed")


class NvmlError(Exception):
    """A call that NVML refused; `code` is its number."""

    def __init__(self, code: int, function: str) -> None:
        super().__init__(f"{function} failed with NVML error {code}")
        self.code = code


class _PciInfo(ctypes.Structure):
    _fields_ = (
        ("bus_id_legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _FabricInfo(ctypes.Structure):
    _fields_ = (
        ("cluster_uuid", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique_id", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class _FabricInfoV2(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), *_FabricInfo._fields_, ("health_mask", ctypes.c_uint))


class Nvml:
    """The library's functions that are asked."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function. Raises NvmlError."""
        try:
            code = getattr(self._library, function)(*arguments)
        except AttributeError as error:
            raise NvmlError(_FUNCTION_NOT_FOUND, function) from error
        if code != 0:
            raise NvmlError(code, function)

    def text(self, function: str, *before: Any) -> str:
        """A text that the function writes into a buffer. Raises NvmlError."""
        buffer = ctypes.create_string_buffer(_TEXT_BYTES)
        self.call(function, *before, buffer, ctypes.c_uint(_TEXT_BYTES))
        return buffer.value.decode(errors="replace")

    def number(self, function: str, *before: Any) -> int:
        """A number that the function writes. Raises NvmlError."""
        value = ctypes.c_uint()
        self.call(function, *before, ctypes.byref(value))
        return value.value

    def mode(self, function: str, handle: Any) -> tuple[str, str]:
        """A mode now and after the next reset: on, off or unsupported. Raises NvmlError."""
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self.call(function, handle, ctypes.byref(now), ctypes.byref(pending))
        except NvmlError as error:
            if error.code != _NOT_SUPPORTED:
                raise
            return "unsupported", "unsupported"
        return ("on" if now.value else "off"), ("on" if pending.value else "off")

    def pci(self, handle: Any) -> str:
        """A GPU's PCI address, as the kernel writes it. Raises NvmlError."""
        info = _PciInfo()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(info))
        return f"{info.domain:04x}:{info.bus:02x}:{info.device:02x}.0"

    def power_limit_w(self, handle: Any) -> float | None:
        """The power limit that was set, in watts; None for a GPU that has none. Raises NvmlError."""
        try:
            return self.number("nvmlDeviceGetPowerManagementLimit", handle) / 1000
        except NvmlError as error:
            if error.code != _NOT_SUPPORTED:
                raise
            return None

    def fabric(self, handle: Any) -> tuple[str, int | None]:
        """How far the GPU has joined the fabric of its NVSwitches, and NVML's code of that. Raises NvmlError."""
        newer = _FabricInfoV2(version=ctypes.sizeof(_FabricInfoV2) | 2 << 24)
        older = _FabricInfo()
        asked: tuple[tuple[str, Any], ...] = (
            ("nvmlDeviceGetGpuFabricInfoV", newer),
            ("nvmlDeviceGetGpuFabricInfo", older),
        )
        for function, info in asked:
            try:
                self.call(function, handle, ctypes.byref(info))
            except NvmlError as error:
                if error.code not in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND):
                    raise
                continue
            known = info.state < len(_FABRIC_STATES)
            return (_FABRIC_STATES[info.state] if known else f"state {info.state}"), info.status
        return "not_supported", None


def _gpu(nvml: Nvml, index: int) -> dict[str, Any]:
    handle = ctypes.c_void_p()
    errors: dict[str, str] = {}

    def value(name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except NvmlError as error:
            errors[name] = str(error)
            return None

    def mode(name: str, function: str) -> tuple[str | None, str | None]:
        return value(name, lambda: nvml.mode(function, handle)) or (None, None)

    nvml.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
    mig, mig_pending = mode("mig", "nvmlDeviceGetMigMode")
    ecc, ecc_pending = mode("ecc", "nvmlDeviceGetEccMode")
    fabric_state, fabric_status = value("fabric_state", lambda: nvml.fabric(handle)) or (None, None)
    persistence = value("persistence", lambda: nvml.number("nvmlDeviceGetPersistenceMode", handle))
    return {
        "uuid": value("uuid", lambda: nvml.text("nvmlDeviceGetUUID", handle)),
        "pci": value("pci", lambda: nvml.pci(handle)),
        "mig": mig,
        "mig_pending": mig_pending,
        "ecc": ecc,
        "ecc_pending": ecc_pending,
        "persistence": None if persistence is None else bool(persistence),
        "power_limit_w": value("power_limit_w", lambda: nvml.power_limit_w(handle)),
        "fabric_state": fabric_state,
        "fabric_status": fabric_status,
        "errors": errors,
    }


def _lost(index: int, error: NvmlError) -> dict[str, Any]:
    names = (
        "uuid", "pci", "mig", "mig_pending", "ecc", "ecc_pending", "persistence", "power_limit_w", "fabric_state",
        "fabric_status",
    )  # fmt: skip
    return {**dict.fromkeys(names), "errors": {"gpu": f"GPU {index}: {error}"}}


def _gpus(nvml: Nvml) -> list[dict[str, Any]]:
    found = []
    for index in range(nvml.number("nvmlDeviceGetCount_v2")):
        try:
            found.append(_gpu(nvml, index))
        except NvmlError as error:
            found.append(_lost(index, error))
    return found


def read(library: str, may_start: bool) -> dict[str, Any]:
    """All answers; `code` and `error` tell why there are none.

    `may_start`: whether nvmlInit may be called. With no module loaded it would load one, where there is a helper to.
    """
    answer: dict[str, Any] = {"code": 0, "error": "", "driver_version": None, "library_version": None, "gpus": None}
    try:
        opened = ctypes.CDLL(library)
    except OSError as error:
        return answer | {"code": LIBRARY_NOT_FOUND, "error": str(error), "simulated": False}
    answer["simulated"] = hasattr(opened, _FAKE_SYMBOL)
    nvml = Nvml(opened)
    try:
        # It needs no nvmlInit: the library knows its own version.
        answer["library_version"] = nvml.text("nvmlSystemGetNVMLVersion").partition(".")[2]
    except NvmlError:
        answer["library_version"] = None
    try:
        if not (may_start or answer["simulated"]):
            raise NvmlError(DRIVER_NOT_LOADED, "nvmlInit_v2")
        nvml.call("nvmlInit_v2")
        answer["driver_version"] = nvml.text("nvmlSystemGetDriverVersion")
        answer["gpus"] = _gpus(nvml)
    except NvmlError as error:
        answer |= {"code": error.code, "error": str(error)}
    return answer


if __name__ == "__main__":
    print("\n" + json.dumps(read(sys.argv[1], sys.argv[2] == "1")))
