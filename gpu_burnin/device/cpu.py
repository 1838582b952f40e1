"""The CPU in place of a GPU: matrices in host memory. No GPU is exercised: `simulated` is True."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.device.storage import STORAGE, Buffer
from gpu_burnin.types import JSON, Gpu

SIMULATED_MULTIPROCESSORS = 16


class CpuDevice(Device):
    """The Device protocol on host memory."""

    name = "cpu"
    simulated = True

    def open(self, gpu: Gpu | None) -> None:
        return None

    def close(self) -> None:
        return None

    def facts(self) -> Mapping[str, JSON]:
        return {"backend": "cpu", "numpy": np.__version__, "machine": platform.machine()}

    def multiprocessors(self) -> int:
        return SIMULATED_MULTIPROCESSORS

    def allocate(self, storage: str, rows: int, cols: int, transposed: bool = False) -> Buffer:
        kind = STORAGE[storage]
        try:
            data = np.zeros((cols, rows) if transposed else (rows, cols), dtype=f"u{kind.size_bytes}")
        except MemoryError:
            raise DeviceError(f"no memory for a {rows} x {cols} {storage} matrix: use smaller shapes") from None
        return Buffer(kind, rows, cols, data, transposed)

    def read_raw(self, buffer: Buffer, start: int, count: int) -> NDArray[Any]:
        bits: NDArray[Any] = buffer.data.reshape(-1)[start : start + count].copy()
        return bits

    def write_raw(self, buffer: Buffer, start: int, bits: NDArray[Any]) -> None:
        buffer.data.reshape(-1)[start : start + bits.size] = bits

    def synchronize(self) -> None:
        return None
