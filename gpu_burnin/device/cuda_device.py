"""Opening one GPU with CuPy: what it is, what it can compute, and whether it is the one that was asked for."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from typing import Any

from gpu_burnin.device.cuda_errors import NO_DEVICE, DeviceErrors
from gpu_burnin.device.port import DeviceError
from gpu_burnin.types import Gpu

# Environment variables that change what cuBLAS computes with; see clean_environment.
_PREFIXES = ("CUBLAS_", "CUBLASLT_")
_NAMES = ("NVIDIA_TF32_OVERRIDE",)


def few_blocks(accesses: int, threads: int, unroll: int) -> int:
    """Blocks for a small piece of memory: so few that most of it is read `unroll` accesses at a time by each thread, as
    large ones are, and the rest one by one. The self-tests thus try the code that reads large pieces."""
    return max(1, accesses * 3 // (4 * unroll * threads))


@dataclass(frozen=True)
class GpuProperties:
    """The GPU in use."""

    name: str
    capability: tuple[int, int]
    multiprocessors: int


def clean_environment(environment: Any = os.environ) -> tuple[str, ...]:
    """Remove what would switch on emulation or TF32 behind the caller's back; the names removed.

    Has effect only before cuBLAS is loaded, which reads them once.
    """
    found = tuple(name for name in environment if name.startswith(_PREFIXES) or name in _NAMES)
    for name in found:
        del environment[name]
    return found


def import_cupy() -> Any:
    """CuPy, set to keep compiled kernels in memory: nothing that was on disk before is run.

    Raises DeviceError when it is not installed.
    """
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        text = " ".join(str(error).split())
        raise DeviceError(f"CuPy is missing ({text[:200]}): install gpu-burnin[cuda12] or [cuda13]") from error


def open_gpu(cupy: Any, errors: DeviceErrors, gpu: Gpu | None) -> GpuProperties:
    """Use the first GPU that CUDA_VISIBLE_DEVICES shows. Raises DeviceError when it cannot be used or is not `gpu`."""
    runtime = cupy.cuda.runtime
    with errors("looking for the GPU"):
        if runtime.getDeviceCount() < 1:
            raise DeviceError(NO_DEVICE)
        cupy.cuda.Device(0).use()
        properties = runtime.getDeviceProperties(0)
        address = str(runtime.deviceGetPCIBusId(0))
    name = properties["name"]
    text = name.decode(errors="replace") if isinstance(name, bytes) else str(name)
    profile, wanted = text.partition(" MIG ")[2], "" if gpu is None else gpu.name.partition(" MIG ")[2]
    if profile and not wanted:
        raise DeviceError(
            f"{text} is a MIG instance, and a whole GPU was asked for: switch MIG mode off, or say that the node is "
            "meant to be in MIG mode (expect.mig)"
        )
    if profile != wanted:
        assert gpu is not None  # else nothing was asked for
        raise DeviceError(
            f"CUDA opened {text} and not the MIG instance {gpu.uuid} ({wanted}): the instances were made anew, so "
            "start the run again"
        )
    if gpu is not None and _pci(address) != _pci(gpu.pci_bus_id):
        raise DeviceError(
            f"CUDA opened the GPU at {address} and not {gpu.uuid} at {gpu.pci_bus_id}: "
            "set CUDA_VISIBLE_DEVICES to the UUID of the GPU under test"
        )
    capability = (int(properties["major"]), int(properties["minor"]))
    return GpuProperties(text, capability, int(properties["multiProcessorCount"]))


def _pci(address: str) -> tuple[int, ...]:
    """Domain, bus, device and function; NVML and CUDA write the domain with 8 and 4 digits."""
    try:
        return tuple(int(part, 16) for part in address.strip("\0").replace(".", ":").split(":"))
    except ValueError:
        raise DeviceError(f"{address!r} is not a PCI address such as 0000:91:00.0: report this") from None
