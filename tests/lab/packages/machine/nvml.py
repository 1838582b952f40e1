"""What the stand-in tools ask NVML: the library that the loader finds, as the real tools do."""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
INVALID_ARGUMENT, NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, MISMATCH = 2, 3, 9, 12, 18
# nvml.h: uncorrected errors since the driver was loaded; a link's recoveries; a field of an NVLink 5.
_UNCORRECTED, _VOLATILE, _RECOVERY, _RECOVERY_FAILED, _MOST_LINKS = 1, 0, 1, 214, 18
FABRIC_STATES = ("Not Supported", "Not Started", "In Progress", "Completed")


class NvmlError(Exception):
    """A call that NVML refused; `code` is its number."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML error {code}")
        self.code = code


class _Pci(ctypes.Structure):
    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("device_id", ctypes.c_uint),
        ("subsystem_id", ctypes.c_uint),
        ("id", ctypes.c_char * 32),
    )


class _Fabric(ctypes.Structure):
    _fields_ = (
        ("cluster", ctypes.c_ubyte * 16),
        ("status", ctypes.c_uint),
        ("clique", ctypes.c_uint),
        ("state", ctypes.c_ubyte),
    )


class _Field(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("code", ctypes.c_int),
        ("value", ctypes.c_ulonglong),
    )


class Nvml:
    """An open NVML. Raises NvmlError with the library's code, LIBRARY_NOT_FOUND without a library."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            raise NvmlError(LIBRARY_NOT_FOUND) from None
        self._call("nvmlInit_v2")

    def driver_version(self) -> str:
        """The version of the loaded driver."""
        return self._text("nvmlSystemGetDriverVersion")

    def gpus(self) -> list[dict[str, Any]]:
        """Every GPU; what it does not support is None."""
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        return [self._gpu(index) for index in range(count.value)]

    def health(self, index: int) -> dict[str, int]:
        """What a GPU tells of its faults; what it does not support is left out, as DCGM leaves it out."""
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        rows = [ctypes.c_uint() for _ in range(4)]
        bits, errors = ctypes.c_ulonglong(), ctypes.c_ulonglong()
        found: dict[str, int] = {}
        if self._supports("nvmlDeviceGetCurrentClocksEventReasons", handle, ctypes.byref(bits)):
            found["clocks_event_reasons"] = bits.value
        if self._supports("nvmlDeviceGetTotalEccErrors", handle, _UNCORRECTED, _VOLATILE, ctypes.byref(errors)):
            found["ecc_uncorrected"] = errors.value
        if self._supports("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, rows)):
            found["remapped_uncorrected"], found["remap_pending"], found["remap_failure"] = (
                row.value for row in rows[1:]
            )
        recoveries = [self._recoveries(handle, link) for link in range(_MOST_LINKS)]
        failed = [self._failed_recoveries(handle, link) for link in range(_MOST_LINKS)]
        for name, counts in (("nvlink_recoveries", recoveries), ("nvlink_failed_recoveries", failed)):
            if known := [count for count in counts if count is not None]:
                found[name] = sum(known)
        return found

    def _recoveries(self, handle: Any, link: int) -> int | None:
        count = ctypes.c_ulonglong()
        known = self._supports("nvmlDeviceGetNvLinkErrorCounter", handle, link, _RECOVERY, ctypes.byref(count))
        return count.value if known else None

    def _failed_recoveries(self, handle: Any, link: int) -> int | None:
        field = _Field(id=_RECOVERY_FAILED, scope=link)
        known = self._supports("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(field))
        return field.value if known and not field.code else None

    def _supports(self, function: str, *arguments: Any) -> bool:
        try:
            self._call(function, *arguments)
        except NvmlError as error:
            if error.code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                return False
            raise
        return True

    def _gpu(self, index: int) -> dict[str, Any]:
        handle = ctypes.c_void_p()
        self._call("nvmlDeviceGetHandleByIndex_v2", index, ctypes.byref(handle))
        pci, fabric = _Pci(), _Fabric()
        self._call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        self._call("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(fabric))
        ecc, mig = self._modes("nvmlDeviceGetEccMode", handle), self._modes("nvmlDeviceGetMigMode", handle)
        return {
            "index": index,
            "name": self._text("nvmlDeviceGetName", handle),
            "uuid": self._text("nvmlDeviceGetUUID", handle),
            "serial": self._text("nvmlDeviceGetSerial", handle),
            "pci": pci.id.decode(),
            "device_id": pci.device_id,
            "subsystem_id": pci.subsystem_id,
            "persistence": bool(self._number("nvmlDeviceGetPersistenceMode", handle)),
            "ecc": ecc,
            "mig": mig,
            "power_limit_mw": self._number("nvmlDeviceGetPowerManagementLimit", handle),
            "power_default_mw": self._number("nvmlDeviceGetPowerManagementDefaultLimit", handle),
            "temperature_c": self._number("nvmlDeviceGetTemperature", handle, ctypes.c_uint(0)),
            "fabric_state": fabric.state,
            "fabric_status": fabric.status,
        }

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code:
            raise NvmlError(code)

    def _text(self, function: str, *before: Any) -> str:
        buffer = ctypes.create_string_buffer(96)
        self._call(function, *before, buffer, ctypes.c_uint(96))
        return buffer.value.decode()

    def _number(self, function: str, *before: Any) -> int:
        value = ctypes.c_uint()
        self._call(function, *before, ctypes.byref(value))
        return value.value

    def _modes(self, function: str, handle: Any) -> tuple[bool, bool] | None:
        now, pending = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call(function, handle, ctypes.byref(now), ctypes.byref(pending))
        except NvmlError as error:
            if error.code == NOT_SUPPORTED:
                return None
            raise
        return bool(now.value), bool(pending.value)
