"""Runs the SM kernels on a GPU through CuPy. Without a GPU, tests drive it with a stand-in for CuPy
that runs the same kernels compiled for the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_burnin.checks.sm import golden
from gpu_burnin.checks.sm.faults import inject
from gpu_burnin.checks.sm.kernels import (
    ATOMICS,
    CELLS,
    KERNELS,
    MOVED,
    SPECIAL_WORDS,
    THREADS,
    UNWRITTEN,
    WINDOW_BITS,
    WINDOW_WORDS,
    SmFault,
    SmRun,
    words,
)
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.cuda_source import cuda_text, defines
from gpu_burnin.device.kernels import Loader
from gpu_burnin.exact.operands import MASK64

CONSTANTS: dict[str, object] = {
    "THREADS": THREADS,
    "STARTS": golden.STARTS,
    "WINDOW_BITS": WINDOW_BITS,
    "WINDOW_WORDS": WINDOW_WORDS,
    "CELLS": CELLS,
    "ATOMICS": len(ATOMICS),
    "SPECIAL_WORDS": SPECIAL_WORDS,
    "MOVED": f"({MOVED})",
    "M64": f"{golden.M64:#x}ULL",
    "M32": f"{golden.M32:#x}U",
    "LCG32_A": f"{golden.LCG32[0]}U",
    "LCG32_C": f"{golden.LCG32[1]}U",
    "LCG64_A": f"{golden.LCG64[0]}ULL",
    "LCG64_C": f"{golden.LCG64[1]}ULL",
}
SOURCE = defines(CONSTANTS) + cuda_text(__package__, "primitives.cuh") + cuda_text(__package__, "kernels.cu")
# cudaDeviceAttr (driver_types.h): multiprocessor count, shared memory per block by opt-in.
_MULTIPROCESSORS, _SHARED_OPT_IN = 16, 97
# Launches until every SM was seen; the scheduler promises no order, one launch is nearly always enough.
_LEAST_LAUNCHES, _MOST_LAUNCHES = 2, 16


def make_port(device: CudaDevice) -> CudaSm:
    """See Device.port."""
    return CudaSm(device.cupy, device.errors, device.loader)


class CudaSm:
    """The SmPort protocol on the current GPU; its kernels are loaded at the first run.

    A block takes all the shared memory that one block can have, so an SM holds one block at a time and a launch
    of as many blocks as there are SMs spreads over all of them.
    """

    simulated = False

    def __init__(self, cupy: Any, errors: DeviceErrors, loader: Loader) -> None:
        attribute = cupy.cuda.runtime.deviceGetAttribute
        self._cupy, self._errors, self._loader = cupy, errors, loader
        self._kernels: dict[str, Any] = {}
        self.multiprocessors = int(attribute(_MULTIPROCESSORS, 0))
        self.shared_bytes = int(attribute(_SHARED_OPT_IN, 0))

    def run(self, kernel: str, seed: int, rounds: int, fault: SmFault | None = None) -> SmRun:
        """Launch until every SM has run the kernel, twice at least and 16 times at most."""
        with self._errors(f"running {kernel} on every SM"):
            return self._run(kernel, seed, rounds, fault)

    def _run(self, kernel: str, seed: int, rounds: int, fault: SmFault | None) -> SmRun:
        row = words(kernel, rounds)
        blocks, cupy = self.multiprocessors, self._cupy
        values, smid = cupy.empty((blocks, row), dtype=np.uint64), cupy.empty((blocks,), dtype=np.int32)
        scratch = cupy.empty((blocks, len(ATOMICS) * CELLS), dtype=np.uint64)
        ids = cupy.zeros((1,), dtype=np.int32)
        function = self._kernel(kernel)
        arguments = (
            values, smid, ids, scratch,
            np.uint64(golden.kernel_key(seed, kernel)), np.int32(rounds), np.uint32(self.shared_bytes // 4),
        )  # fmt: skip
        # Uploaded: a fill of CuPy's own is compiled from CUDA headers, which a node need not have.
        unwritten = np.full((blocks, row), MASK64, dtype=np.uint64), np.full((blocks,), UNWRITTEN, dtype=np.int32)
        runs: list[tuple[Any, Any]] = []
        seen: set[int] = set()
        seconds = 0.0
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        while len(runs) < _LEAST_LAUNCHES or (len(seen) < blocks and len(runs) < _MOST_LAUNCHES):
            # What an earlier launch left must not pass for the work of this one.
            values.set(unwritten[0])
            smid.set(unwritten[1])
            start.record()
            if fault is None or fault.name != "skipped_launch" or not fault.hits(kernel):
                function((blocks,), (THREADS,), arguments, shared_mem=self.shared_bytes)
            end.record()
            nsmid = int(ids.get()[0])  # waits for the launch
            seconds += float(cupy.cuda.get_elapsed_time(start, end)) / 1000.0
            if fault is not None:
                self._inject(fault, kernel, smid, values, nsmid)
            runs.append((smid.get(), values.get()))
            seen |= {int(i) for i in runs[-1][0] if 0 <= i < nsmid}
        smids, rows = (np.concatenate([run[part] for run in runs]) for part in (0, 1))
        return SmRun(smids, rows, nsmid, len(runs), seconds)

    @staticmethod
    def _inject(fault: SmFault, kernel: str, smid: Any, values: Any, nsmid: int) -> None:
        """Put a fault into the device's buffers, below the detector."""
        on_host, rows = smid.get(), values.get()
        inject(fault, kernel, on_host, rows, nsmid)
        smid.set(on_host)
        values.set(rows)

    def _kernel(self, kernel: str) -> Any:
        if not self._kernels:
            names = [f"sm_{name}" for name in KERNELS]
            self._kernels = self._loader.load(SOURCE, names, self.shared_bytes)
        return self._kernels[f"sm_{kernel}"]
