"""What unmodified nvidia-ml-py reads from the lab's fake NVML in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_burnin.system.codec import from_json
from gpu_burnin.telemetry.state import NodeState
from tests.support.clocks import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = ROOT / "tests/lab/scenarios"

Environment = Callable[[str], dict[str, str]]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def scenario_environment(fake_nvml: Path, tmp_path: Path) -> Environment:
    """Environment of a process that sees the given scenario: a file name in the lab, or the text itself."""

    def make(scenario: str) -> dict[str, str]:
        path = SCENARIOS / scenario
        if not scenario.endswith(".scenario"):
            path = tmp_path / "scenario"
            path.write_text(scenario)
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(fake_nvml),
            "MUSTER_FAKE_NVML_SCENARIO": str(path),
            "PYTHONPATH": str(ROOT),
        }

    return make


@pytest.fixture
def run_python(scenario_environment: Environment) -> Run:
    """Runs Python code against a scenario."""

    def run(scenario: str, code: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=scenario_environment(scenario),
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    return run


@pytest.fixture
def read_node(run_python: Run) -> Callable[[str], NodeState]:
    """What gpu_burnin reads of a scenario."""

    def read(scenario: str) -> NodeState:
        done = run_python(scenario, "from gpu_burnin.telemetry.inventory import _main; _main()")
        assert done.returncode == 0, done.stderr
        return from_json(NodeState, json.loads(done.stdout))

    return read
