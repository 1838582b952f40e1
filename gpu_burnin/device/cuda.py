"""One NVIDIA GPU through CuPy, which is imported only when it is opened.

Without a GPU, tests drive it against a recording fake of CuPy (order and arguments of calls).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.cuda_device import GpuProperties, clean_environment, import_cupy, open_gpu
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.kernels import open_loader
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.device.storage import STORAGE, Buffer
from gpu_burnin.types import JSON, Gpu

# Blocks of a kernel for each SM: 8 of 256 threads are all that an SM holds.
BLOCKS_PER_SM = 8


class CudaDevice(Device):
    """The Device protocol on one NVIDIA GPU: the only one that CUDA_VISIBLE_DEVICES shows.

    Compiled kernels are shared with the processes that have the same `kernel_dir`; with None they are compiled here.
    `sources` gives the kernels that are compiled at once; others are compiled when they are loaded.
    What the ports use, once it is open: `cupy`, `errors` (turns what CuPy raises into DeviceError), `loader` (of
    kernels), `properties` of the GPU, and `blocks`, as many of a kernel as the GPU holds at a time.
    """

    name = "cuda"
    simulated = False

    def __init__(self, kernel_dir: Path | None = None, sources: Callable[[], Sequence[str]] = tuple) -> None:
        self._kernel_dir, self._sources = kernel_dir, sources
        self.cupy: Any = None
        self.errors: Any = None
        self.loader: Any = None
        self.properties = GpuProperties("", (0, 0), 0)
        self._removed: tuple[str, ...] = ()

    def open(self, gpu: Gpu | None) -> None:
        self._removed = clean_environment()
        self.cupy = import_cupy()
        self.errors = DeviceErrors(self.cupy)
        self.properties = open_gpu(self.cupy, self.errors, gpu)
        with self.errors("taking the GPU"):
            self.loader = open_loader(self.cupy, self.properties.capability, self._kernel_dir, self._sources())

    def close(self) -> None:
        if self.loader is not None:
            self.loader = None
            with self.errors("giving back memory"):
                self.cupy.get_default_memory_pool().free_all_blocks()

    def port(self, package: str) -> Any:
        if self.loader is None:
            raise DeviceError("the cuda device is not open: call open first")
        return super().port(package)

    def facts(self) -> Mapping[str, JSON]:
        runtime = self.cupy.cuda.runtime
        return {
            "backend": "cuda",
            "device": self.properties.name,
            "compute_capability": "{}.{}".format(*self.properties.capability),
            "multiprocessors": self.properties.multiprocessors,
            "cupy": str(self.cupy.__version__),
            "cuda_runtime": int(runtime.runtimeGetVersion()),
            "cuda_driver": int(runtime.driverGetVersion()),
            **self.loader.facts(),
            "environment_removed": list(self._removed),
        }

    def multiprocessors(self) -> int:
        return self.properties.multiprocessors

    def allocate(self, storage: str, rows: int, cols: int, transposed: bool = False) -> Buffer:
        kind = STORAGE[storage]
        with self.errors(f"allocating a {rows} x {cols} {storage} matrix"):
            data = self.cupy.empty(rows * cols, dtype=np.dtype(f"u{kind.size_bytes}"))
        return Buffer(kind, rows, cols, data, transposed)

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        with self.errors("reading device memory"):
            bits: NDArray[Any] = buffer.data[start : start + count].get()
        return bits

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        with self.errors("writing device memory"):
            buffer.data[start : start + bits.size].set(np.ascontiguousarray(bits).reshape(-1))

    def synchronize(self) -> None:
        with self.errors("waiting for the device"):
            self.cupy.cuda.runtime.deviceSynchronize()

    @property
    def blocks(self) -> int:
        """As many blocks as the device holds at a time."""
        return self.properties.multiprocessors * BLOCKS_PER_SM
