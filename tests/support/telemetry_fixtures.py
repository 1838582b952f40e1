"""What unmodified nvidia-ml-py reads from the lab's fake NVML in a process of its own."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
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


# Runs code in processes that are forked from one that has loaded what they import: a Python of its own for each takes
# a tenth of a second, of which the library, which reads the scenario when it is opened, needs nothing.
_FORKS = """
import json, os, sys, tempfile, traceback
import pynvml
import gpu_burnin.checks.state.check, gpu_burnin.telemetry.inventory

for line in sys.stdin:
    environment, code, given = json.loads(line)
    files = [tempfile.TemporaryFile("w+") for _ in range(3)]
    files[0].write(given)
    files[0].seek(0)
    child = os.fork()
    if not child:
        for number, file in enumerate(files):
            os.dup2(file.fileno(), number)
        sys.stdin = open(0)
        os.environ.clear()
        os.environ.update(environment)
        status = 1
        try:
            exec(compile(code, "<test>", "exec"), {"__name__": "__main__"})
            status = 0
        except SystemExit as ended:
            status = ended.code or 0
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for file in files[1:]:
        file.seek(0)
    print(json.dumps([status, *(file.read() for file in files[1:])]), flush=True)
"""


@pytest.fixture(scope="session")
def nvml_forks(fake_nvml: Path) -> Iterator[subprocess.Popen[str]]:
    """The process from which those of run_python are forked."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(fake_nvml), "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", _FORKS], env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as server:
        yield server


@pytest.fixture
def run_python(scenario_environment: Environment, nvml_forks: subprocess.Popen[str]) -> Run:
    """Runs Python code against a scenario."""

    def run(scenario: str, code: str, text: str = "") -> subprocess.CompletedProcess[str]:
        assert nvml_forks.stdin and nvml_forks.stdout
        nvml_forks.stdin.write(json.dumps([scenario_environment(scenario), code, text]) + "\n")
        nvml_forks.stdin.flush()
        assert select.select([nvml_forks.stdout], [], [], PATIENCE_S)[0], f"no answer within {PATIENCE_S:g} s"
        return subprocess.CompletedProcess(code, *json.loads(nvml_forks.stdout.readline()))

    return run


@pytest.fixture
def read_node(run_python: Run) -> Callable[[str], NodeState]:
    """What gpu_burnin reads of a scenario."""

    def read(scenario: str) -> NodeState:
        done = run_python(scenario, "from gpu_burnin.telemetry.inventory import _main; _main()")
        assert done.returncode == 0, done.stderr
        return from_json(NodeState, json.loads(done.stdout))

    return read
