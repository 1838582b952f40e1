"""Fixtures of this area."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest
from executor_helpers import LIMITS, Fake
from peer_fakes import compile_peer_kernels

from gpu_burnin.executor import ExecutionResult, Limits, execute
from gpu_burnin.plan import Plan


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """Runs a plan with fake_worker.py in the given mode."""

    def run(mode: str, made: Plan, limits: Limits = LIMITS, **settings: Any) -> ExecutionResult:
        script = Path(__file__).with_name("fake_worker.py")
        command = [sys.executable, "-S", str(script), mode, str(tmp_path / "state")]
        return execute(made, limits=limits, command=command, **settings)

    return run


@pytest.fixture(scope="session")
def peer_kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels of the copies between GPUs, compiled for the host."""
    return compile_peer_kernels(tmp_path_factory.mktemp("peer"))
