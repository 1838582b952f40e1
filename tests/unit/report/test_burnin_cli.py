"""The command line: quick, one sentence on error, the right exit codes."""

from __future__ import annotations

import importlib
import json
import resource
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from report_helpers import leave_run

from gpu_burnin import cli, evidence, host
from gpu_burnin.config import Config
from gpu_burnin.evidence import Statement
from gpu_burnin.hardware import load_reasons


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_burnin", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def processor_s(*arguments: str | Path) -> float:
    """Processor time of the command with its children, best of five: time on the clock is other programs' too."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        call(*arguments)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(times)


def test_help_is_quick_and_names_every_command() -> None:
    done = call("--help")
    assert done.returncode == 0
    for name in ("run", "gate", "report", "publish", "explain", "schema", "version", "host", "fleet"):
        assert f"\n  {name} " in done.stdout
    assert processor_s("--help") < 0.2


def test_gate_is_quick(config: Config, statement: Statement, tmp_path: Path) -> None:
    here = replace(statement, machine_id=host.machine_id(), boot_id=host.boot_id())
    leave_run(config, here)
    path = tmp_path / "config.yaml"
    settings = {"node_name": "gpu-1", "host_key": str(config.host_key), "state_dir": str(config.state_dir)}
    path.write_text(yaml.safe_dump(settings))
    done = call("gate", "--config", path)
    assert (done.returncode, done.stdout) == (0, "gpu-1: open: PASS of run 1 at 2026-01-02T03:04:05Z\n")
    assert processor_s("gate", "--config", path) < 0.3


@pytest.mark.parametrize("name", sorted(cli._LAZY))
def test_lazy_commands_are_there_with_their_help(name: str) -> None:
    module, attribute, help_line = cli._LAZY[name]
    command = getattr(importlib.import_module(module), attribute)
    assert command.name == name
    assert help_line
    assert call(name, "--help").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "No such command"),
        (("run", "--colour"), "No such option"),
        (("run", "--level", "slow"), "Invalid value for '--level'"),
        (("run", "--gpus", ","), "no name given"),
        (("explain", "NOTHING"), "no code NOTHING"),
        (("gate", "--config", "/none.yaml"), "no such configuration file"),
        (("report", "/none"), "there is no report"),
        (("publish", "--deadline", "soon"), "is not a duration"),
    ],
)
def test_mistakes_are_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    done = call(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_version_schema_and_explain() -> None:
    assert call("version").stdout.strip() == call("--version").stdout.split()[-1]
    assert json.loads(call("schema").stdout)["title"]
    listed = call("explain").stdout
    assert all(code in listed for code in (*load_reasons(), *evidence.CODES))
    told = call("explain", "gemm_mismatch").stdout
    assert "GEMM_MISMATCH" in told
    assert load_reasons()["GEMM_MISMATCH"].what_to_do in told
    assert "too old" in call("explain", "EVIDENCE_EXPIRED").stdout
    assert "stopped reporting" in call("explain", "NODE_UNKNOWN").stdout


def test_library_names_load_on_use() -> None:
    code = (
        "import sys, gpu_burnin\n"
        "assert not [name for name in sys.modules if name.startswith('gpu_burnin.')]\n"
        "from gpu_burnin import Outcome, Plan, RunOptions, make_plan, run_burnin\n"
        "try:\n    gpu_burnin.nothing\nexcept AttributeError: print('ok')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "ok\n"
