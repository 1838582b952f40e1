"""Reading single values of one GPU through nvidia-ml-py: a value, or why there is none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from gpu_burnin.hardware import load_skus
from gpu_burnin.telemetry.state import Unsupported

_T = TypeVar("_T")

_ERROR_NAMES: dict[int, str] = {
    value: name.removeprefix("NVML_ERROR_").lower()
    for name, value in vars(pynvml).items()
    if name.startswith("NVML_ERROR_") and isinstance(value, int)
}


def error_name(code: int) -> str:
    """NVML's name of an error code in lower case, such as gpu_is_lost."""
    return _ERROR_NAMES.get(code, f"error_{code}")


def by_age(name: str, value: _T, driver_version: str) -> _T | Unsupported:
    """A value of GpuState or a counter, driver_too_old where the driver calls it an invalid argument because it came
    later: so drivers refuse ids of fields. The same answer of a driver that should know the field stays as it is."""
    if value == Unsupported("invalid_argument") and load_skus().is_newer(name, driver_version):
        return Unsupported("driver_too_old")
    return value


class Reader:
    """Reads values of one GPU; remembers that it was lost or wants a reset."""

    def __init__(self, handle: Any) -> None:
        self.handle = handle
        self.lost = ""
        self.reset_required = False

    def get(self, call: Callable[[Any], _T]) -> _T | Unsupported:
        """The value, or why there is none."""
        try:
            return call(self.handle)
        except pynvml.NVMLError as error:
            return self.failed(error.value)

    def failed(self, code: int) -> Unsupported:
        """Note what an error says about the GPU itself."""
        if code in (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_GPU_NOT_FOUND):
            self.lost = error_name(code)
        self.reset_required |= bool(code == pynvml.NVML_ERROR_RESET_REQUIRED)
        return Unsupported(error_name(code))

    def number(self, call: Callable[[Any], Any]) -> int | Unsupported:
        """A whole number."""
        return self.get(lambda handle: int(call(handle)))

    def flag(self, call: Callable[[Any], Any]) -> bool | Unsupported:
        """A yes or no."""
        return self.get(lambda handle: bool(call(handle)))

    def text(self, call: Callable[[Any], Any]) -> str | Unsupported:
        """A text (some calls give bytes); NVML answers "N/A" for what it does not know."""
        raw = self.get(call)
        if isinstance(raw, Unsupported):
            return raw
        value = raw.decode() if isinstance(raw, bytes) else str(raw)
        return Unsupported("not_supported") if value in ("", "N/A") else value

    def watts(self, call: Callable[[Any], Any]) -> float | Unsupported:
        """Milliwatts turned into watts."""
        return self.get(lambda handle: int(call(handle)) / 1000)

    def field(self, field_id: int, scope: int = 0) -> int | Unsupported:
        """One field value (nvmlDeviceGetFieldValues); each carries its own error."""
        read = self.get(lambda handle: pynvml.nvmlDeviceGetFieldValues(handle, [(field_id, scope)])[0])
        if isinstance(read, Unsupported):
            return read
        if read.nvmlReturn != pynvml.NVML_SUCCESS:
            return self.failed(int(read.nvmlReturn))
        return _field_number(read)

    def ecc(self, kind: int, counter: int, location: int) -> int | Unsupported:
        """One ECC counter."""
        return self.number(lambda h: pynvml.nvmlDeviceGetMemoryErrorCounter(h, kind, counter, location))


def _field_number(value: Any) -> int:
    kinds = {
        pynvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        pynvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        pynvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }
    return int(getattr(value.value, kinds.get(value.valueType, "ullVal")))
