"""Fixtures of this area."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from executor_helpers import LIMITS, Fake

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
