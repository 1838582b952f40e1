"""Errors of CUDA as one sentence with a fix.

Numbers are those of cudaError_t (driver_types.h); CUresult has the same where both are named here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_burnin.device.port import DeviceError, DeviceFault

NO_DEVICE = (
    "CUDA finds no GPU: check the driver with nvidia-smi, and that MIG mode is off (the parent of MIG instances "
    "computes nothing)"
)
_INSUFFICIENT_DRIVER = 35
_FIXES = {
    2: "free the GPU or use smaller shapes",
    3: "check the driver with nvidia-smi",
    46: "another process holds the GPU alone or the GPU is in prohibited mode: see nvidia-smi",
    100: "check the driver with nvidia-smi, and that MIG mode is off",
    101: "check the driver with nvidia-smi, and that MIG mode is off",
    214: "uncorrectable memory error (XID 48, 63, 64, 94 or 95 in the kernel log): take the GPU out of use and run the "
    "state check",
    220: "uncorrectable NVLink error (XID 74 or 144 to 150 in the kernel log): reset the GPU",
    226: "contained memory error (XID 94 in the kernel log): take the GPU out of use and reset it",
    700: "see the kernel log for an XID; reset the GPU if it happens again",
    702: "see the kernel log for an XID; reset the GPU if it happens again",
    714: "see the kernel log for an XID; reset the GPU",
    716: "see the kernel log for an XID; reset the GPU if it happens again",
    719: "see the kernel log for an XID; reset the GPU if it happens again",
    802: "start nvidia-fabricmanager and wait until the GPU's fabric state is completed",
    803: "reboot: the loaded driver module and the driver's libraries have different versions",
    804: "remove the CUDA compatibility package: this GPU does not support it",
}
# What these errors say of the hardware: codes of reasons.yaml.
_FAULTS = {214: "ECC_UNCORRECTED", 220: "NVLINK_ERRORS", 226: "ECC_UNCORRECTED"}


def explain(error: Exception, what: str, runtime: Any) -> str:
    """One sentence for an error of CuPy that happened while doing `what`."""
    status = getattr(error, "status", None)
    if status == _INSUFFICIENT_DRIVER:
        return _driver_too_old(runtime)
    if status == 100:
        return NO_DEVICE
    text = " ".join(str(error).split()) or type(error).__name__
    fix = _FIXES.get(status or 0, "see the kernel log for an XID and check the GPU with nvidia-smi")
    return f"CUDA failed while {what} ({text[:300]}): {fix}"


def _driver_too_old(runtime: Any) -> str:
    needed, found = (_version(number) for number in (runtime.runtimeGetVersion(), runtime.driverGetVersion()))
    if found == "0.0":
        return "no NVIDIA driver is loaded: install it and check with nvidia-smi"
    return (
        f"the NVIDIA driver supports CUDA {found} and CuPy needs CUDA {needed}: install a newer driver "
        "(R580 for gpu-burnin[cuda13], R525 for [cuda12]) or the other of the two"
    )


def _version(number: int) -> str:
    """12090 as 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


def all_compared(what: str, compared: int, wanted: int, unit: str = "words") -> None:
    """Raise DeviceError where a kernel has not counted all it was to compare: its "nothing wrong" is no evidence."""
    if compared != wanted:
        raise DeviceError(
            f"the comparison of {what} looked at {compared} of {wanted} {unit}: a kernel did not run as "
            "launched; see the kernel log for an XID and run the state check"
        )


class DeviceErrors:
    """Turns what CuPy raises into DeviceError, and into DeviceFault where the GPU itself is what is wrong."""

    def __init__(self, cupy: Any) -> None:
        self._runtime = cupy.cuda.runtime
        self._memory: type[Exception] = cupy.cuda.memory.OutOfMemoryError
        self._device: tuple[type[Exception], ...] = (
            cupy.cuda.runtime.CUDARuntimeError,
            cupy.cuda.driver.CUDADriverError,
            cupy.cuda.compiler.CompileException,
        )

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """`what` completes "CUDA failed while ..." and "no GPU memory while ..."."""
        try:
            yield
        except self._memory as error:
            raise DeviceError(f"no GPU memory while {what}: free the GPU or use smaller shapes") from error
        except self._device as error:
            text, code = explain(error, what, self._runtime), _FAULTS.get(getattr(error, "status", None) or 0)
            raise (DeviceError(text) if code is None else DeviceFault(text, code)) from error
        except RuntimeError as error:  # of CuPy: a library that it cannot load, or NVRTC's own
            message = " ".join(str(error).split())[:300]
            raise DeviceError(
                f"CuPy failed while {what} ({message}): install gpu-burnin[cuda12] or [cuda13] with all dependencies, "
                "including NVRTC"
            ) from error
