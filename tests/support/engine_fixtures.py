"""Fixtures of the engine and of the checks' device code: fake workers, kernels compiled for the host, libnccl."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.cuda import CudaNccl
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.engine.plan import Plan
from tests.support.cuda_fakes import compile_product_kernels
from tests.support.engine_helpers import limited
from tests.support.executor_helpers import LIMITS, Fake, run_plan
from tests.support.nccl_fakes import SIZE_BYTES, FakeGpu, FakeNccl, compile_nccl_kernels
from tests.support.nvlink_fakes import compile_nvlink_kernels


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Runs a plan with fake_worker.py in the given mode. Its deadlines pass while all have nothing to do."""

    def run(mode: str, made: Plan, limits: Mapping[str, float] = LIMITS, **settings: Any) -> ExecutionResult:
        script = Path(__file__).with_name("fake_worker.py")
        command = [sys.executable, "-S", str(script), mode, str(tmp_path / "state")]
        return run_plan(limited(made, **limits), command=command, **settings)

    return run


@pytest.fixture(scope="session")
def product_kernels() -> ctypes.CDLL:
    """The kernels of products and their verification, compiled for the host."""
    return compile_product_kernels()


@pytest.fixture(scope="session")
def nvlink_kernels() -> ctypes.CDLL:
    """The kernels of the copies between GPUs, compiled for the host."""
    return compile_nvlink_kernels()


@pytest.fixture(scope="session")
def nccl_kernels() -> ctypes.CDLL:
    """The kernels around the collectives, compiled for the host."""
    return compile_nccl_kernels()


@pytest.fixture
def nccl_library(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """libnccl; what the port sets in the environment goes with the test."""
    made = FakeNccl()
    monkeypatch.setattr(nccl, "load_library", lambda: made)
    for name in ("DEBUG", "DEBUG_SUBSYS", "DEBUG_FILE", "ALGO", "SOCKET_IFNAME", "IB_DISABLE"):
        monkeypatch.setenv(f"NCCL_{name}", "")
        monkeypatch.delenv(f"NCCL_{name}")
    return made


@pytest.fixture
def nccl_gpu(nccl_kernels: ctypes.CDLL) -> FakeGpu:
    """A GPU that computes."""
    return FakeGpu(nccl_kernels)


@pytest.fixture
def nccl_port(nccl_gpu: FakeGpu, nccl_library: FakeNccl) -> Iterator[CudaNccl]:
    """A port with open buffers."""
    made = CudaNccl(nccl_gpu, DeviceErrors(nccl_gpu), nccl_gpu, 1)
    made.open(SIZE_BYTES)
    yield made
    made.close()
