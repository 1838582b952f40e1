"""A node of its own for whole runs through the command line, on the CPU device and the lab's fake NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from gpu_burnin.cli.main import cli
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.store import Store
from tests.support.clocks import PATIENCE_S
from tests.support.command_line import called

LAB = Path(__file__).resolve().parents[1] / "lab"
BOOT_LINE = "6,0,100,-;Linux version 6.1\n"
SHAPES = {"gemm_m": 32, "gemm_n": 32, "gemm_k": 32, "hbm_bytes": 65536}


@dataclass
class Node:
    """A node of its own: configuration, state, kernel log, scenario."""

    directory: Path
    nvml: Path
    host_key: Path
    scenario: str = "healthy-2gpu"
    own_scenario: str = ""

    def __post_init__(self) -> None:
        self.directory.mkdir(exist_ok=True)
        self.kernel_log = self.directory / "kmsg"
        self.kernel_log.write_text(BOOT_LINE)
        self.configure()

    @property
    def store(self) -> Store:
        return Store(self.directory / "state")

    @property
    def environment(self) -> dict[str, str]:
        scenario = LAB / "scenarios" / f"{self.scenario}.scenario"
        if self.own_scenario:
            scenario = self.directory / "own.scenario"
            scenario.write_text(self.own_scenario)
        return {"LD_LIBRARY_PATH": str(self.nvml), "MUSTER_FAKE_NVML_SCENARIO": str(scenario)}

    def configure(self, **change: object) -> None:
        settings: dict[str, Any] = {
            "level": "quick",
            "backend": "cpu",
            "allow_simulated": True,
            "node_name": "gpu-1",
            "expect": {"gpus": 2},
            "shapes": SHAPES,
            "host_key": str(self.host_key),
            "require_evidence": True,
            "kernel_log": str(self.kernel_log),
            "state_dir": str(self.store.root),
            **change,
        }
        (self.directory / "config.yaml").write_text(yaml.safe_dump(settings))

    def start(self, *arguments: str, file_limit_bytes: int | None = None) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "gpu_burnin", *arguments, "--config", str(self.directory / "config.yaml")]
        if file_limit_bytes is not None:  # the kernel then refuses to let any file grow further, as a full disk does
            command = ["prlimit", f"--fsize={file_limit_bytes}", *command]
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.directory
        )

    def call(self, *arguments: str, file_limit_bytes: int | None = None) -> tuple[int, str, str]:
        """Exit code and output; what only reads the state is asked in this process."""
        if arguments[0] in ("gate", "report"):
            done = called(cli, *arguments, "--config", self.directory / "config.yaml")
            return done.returncode, done.stdout, done.stderr
        process = self.start(*arguments, file_limit_bytes=file_limit_bytes)
        out, err = process.communicate(timeout=PATIENCE_S)
        return process.returncode, out, err

    def run(self, *arguments: str) -> tuple[int, Any, str]:
        """`run --json` with a fixed seed: exit code, report, standard error."""
        code, out, err = self.call("run", "--json", "--seed", "1", *arguments)
        return code, json.loads(out) if out else None, err


def codes(report: Any) -> set[str]:
    return {reason["code"] for reason in report["reasons"]}


def full(node: Node, file_limit_bytes: int, *arguments: str) -> tuple[int, str, str]:
    """Exit code, verdict and last sentence of a run whose files cannot be written."""
    code, out, err = node.call("run", "--json", *arguments, file_limit_bytes=file_limit_bytes)
    sentence = err.splitlines()[-1]
    assert sentence.startswith("gpu-burnin: ")
    assert "File too large" in err
    assert "Traceback" not in err
    assert not (node.store.runs()[-1].path / "evidence.json").exists()
    return code, json.loads(out)["verdict"], sentence


def refused(node: Node, says: str, *arguments: str, runs: int = 0, exit_code: int = 2) -> None:
    """In this process, since none of these gets as far as a run."""
    done = CliRunner().invoke(cli, ["run", *arguments, "--config", str(node.directory / "config.yaml")])
    error = done.exception if isinstance(done.exception, GpuBurninError) else None
    assert (error.exit_code if error else done.exit_code) == exit_code
    assert says in (str(error) if error else done.output)
    assert error is None or "\n" not in str(error)
    assert len(node.store.runs()) == runs
