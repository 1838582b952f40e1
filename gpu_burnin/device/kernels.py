"""Kernels as functions of the device: compiled by NVRTC, loaded by CuPy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from gpu_burnin.device import nvrtc
from gpu_burnin.device.kernel_store import KernelStore
from gpu_burnin.types import JSON


class Loader(Protocol):
    """What those need who launch kernels."""

    def load(self, source: str, names: Sequence[str], shared_bytes: int = 0) -> dict[str, Any]:
        """Functions by name, to be called as CuPy's; they may take `shared_bytes` of shared memory at launch."""


class KernelLoader:
    """Loads kernels onto CuPy's current device."""

    def __init__(self, cupy: Any, store: KernelStore) -> None:
        self._cupy, self._store = cupy, store

    def load(self, source: str, names: Sequence[str], shared_bytes: int = 0) -> dict[str, Any]:
        """See Loader. Raises DeviceError when the source cannot be compiled, and what CuPy raises."""
        module = self._cupy.cuda.function.Module()
        module.load(self._store.image(source))
        functions = {name: module.get_function(name) for name in names}
        if shared_bytes:
            driver = self._cupy.cuda.driver
            for function in functions.values():
                driver.funcSetAttribute(
                    function.ptr, driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared_bytes
                )
        return functions

    def facts(self) -> dict[str, JSON]:
        """Compiler, target, how many sources were compiled here and taken from other workers, and what was damaged."""
        store = self._store
        return {
            "nvrtc": store.version,
            "kernel_target": store.target,
            "kernels_compiled": store.compiled,
            "kernels_shared": store.shared,
            "kernels_refused": list(store.refused),
        }


def open_loader(cupy: Any, capability: tuple[int, int], folder: Path | None, sources: Sequence[str]) -> KernelLoader:
    """A loader with these sources compiled, all shared with other processes through `folder`.

    The compiler is that of CuPy's version of CUDA, so that the driver which serves CuPy takes its machine code.
    Raises DeviceError.
    """
    compiler = nvrtc.Nvrtc(nvrtc.load_library(int(cupy.cuda.runtime.runtimeGetVersion()) // 1000))
    target = nvrtc.target_for(capability, compiler.architectures)
    store = KernelStore(compiler.compile, compiler.version, target, folder)
    store.prepare(sources)
    return KernelLoader(cupy, store)
