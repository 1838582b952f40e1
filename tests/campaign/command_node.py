"""A node of its own for `gpu-burnin run`: configuration, state, kernel log, scenario; and what its report says."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.node.store import Store
from gpu_burnin.types import Action, Gpu, Reason, Verdict
from tests.campaign.faults.command import CommandFault
from tests.campaign.nvml_child import ROOT, SCENARIO_VARIABLE

GPUS = 3
EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 3}
_SHAPES = {
    "gemm_m": 32, "gemm_n": 32, "gemm_k": 32, "hbm_bytes": 65536, "transfer_bytes": 65536, "collective_bytes": 65536,
}  # fmt: skip


class Node:
    """A node with configuration, state, kernel log and scenario of its own. Its runs have two checks unless
    `settings` say more: the node's state, and one that each GPU needs for a verdict of its own."""

    def __init__(self, directory: Path, library: Path, host_key: Path, scenario: str) -> None:
        self._directory, self._library = directory, library
        self.kernel_log = directory / "kmsg"
        self.store = Store(directory / "state")
        self._scenario = directory / "node.scenario"
        self._scenario.write_text(scenario)
        self.settings: dict[str, Any] = {
            "level": "quick", "checks": ["state", "hbm"], "backend": "cpu", "allow_simulated": True,
            "node_name": "gpu-1", "expect": {"gpus": GPUS}, "shapes": _SHAPES, "host_key": str(host_key),
            "kernel_log": str(self.kernel_log), "state_dir": str(self.store.root), "require_evidence": True,
        }  # fmt: skip

    def start(
        self,
        *arguments: str,
        most_bytes: int | None = None,
        variables: Mapping[str, str] | None = None,
        program: tuple[str, ...] = ("gpu_burnin",),
        limit: tuple[str, ...] = (),
    ) -> subprocess.Popen[str]:
        """`gpu-burnin run` with more `variables` in its environment; with `most_bytes` no file may grow further, as
        on a full disk. `program` is the module that is run, and what comes before its arguments; `limit` is the
        command that sets limits for it."""
        path = self._directory / "config.yaml"
        path.write_text(yaml.safe_dump(self.settings))
        if most_bytes is not None:
            limit = ("prlimit", f"--fsize={most_bytes}")
        environment = {
            **os.environ, "LD_LIBRARY_PATH": str(self._library), SCENARIO_VARIABLE: str(self._scenario),
            "PYTHONPATH": str(ROOT), **(variables or {}),
        }  # fmt: skip
        return subprocess.Popen(
            [*limit, sys.executable, "-m", *program, "run", "--json", "--config", str(path), *arguments],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self._directory,
        )  # fmt: skip


def judgement_of(report: Mapping[str, Any]) -> Judgement:
    """What a report says, as the verdict's own type."""
    reasons = tuple(
        Reason(
            code=item["code"], check=item["check"], message=item["message"], gpu=item["gpu"],
            action=Action(item.get("action", "none")), severity=Verdict(item.get("severity", "FAIL")),
        )
        for item in report["reasons"]
    )  # fmt: skip
    gpus = {gpu["uuid"]: Verdict(gpu["verdict"]) for gpu in report["gpus"] if gpu.get("verdict")}
    return Judgement(Verdict(report["verdict"]), Action(report["action"]), reasons, gpus)


def prepare(node: Node, fault: CommandFault, gpus: tuple[Gpu, ...], faulty: int) -> None:
    """Write the kernel log and the journal of the run before."""
    node.settings |= fault.settings
    if not fault.no_log:
        bus = gpus[faulty].pci_bus_id.rpartition(".")[0]
        lines = ["6,0,100,-;Linux version 6.1", *(line.format(bus=bus) for line in fault.log)]
        node.kernel_log.write_text("\n".join(lines) + "\n")
    if fault.journal is not None:
        with node.store.locked():
            run = node.store.new_run(datetime(2026, 1, 2, tzinfo=UTC))
        run.journal.write_bytes(fault.journal)
