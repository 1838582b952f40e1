"""The backend by its name; only the one that is asked for is imported."""

from __future__ import annotations

from pathlib import Path

from gpu_burnin.device.backend import Backend, BackendError


def make_backend(name: str, kernel_dir: Path | None = None) -> Backend:
    """The backend "cpu" or "cuda", not yet opened. Raises BackendError for another name.

    Processes with the same `kernel_dir` share compiled kernels.
    """
    if name == "cpu":
        from gpu_burnin.device.cpu import CpuBackend

        return CpuBackend()
    if name == "cuda":
        from gpu_burnin.device.cuda import CudaBackend

        return CudaBackend(kernel_dir)
    raise BackendError(f"unknown backend {name!r}: choose cpu or cuda")
