"""The table of `gpu-burnin selftest`, and its exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.checks import SELFTESTED
from gpu_burnin.checks.selftest import SCOPE_CPU, injected, sensitivity
from gpu_burnin.cli.selftest import exit_code, render, selftest_plan
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.settings.config import Config
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT
from gpu_burnin.types import CheckResult, SelftestResult, Verdict
from tests.support.clocks import PATIENCE_S
from tests.support.engine_helpers import context, plan

LAB = Path(__file__).resolve().parents[2] / "lab"


def shot(fault: str, gpu: int = 0, detected: bool = True, bits: int | None = None) -> SelftestResult:
    return SelftestResult(fault, "gemm", f"GPU-{gpu}", True, detected, 0.001 * (gpu + 1), SCOPE_CPU, bits)


def test_a_result_says_what_it_proves() -> None:
    result = injected(context(), "gemm", "nan bf16", True, 0.1, changed_bits=2)
    assert (result.scope, result.gpu, result.injected, result.changed_bits) == (SCOPE_CPU, "GPU-0", True, 2)


def test_the_smallest_fault_counts_only_where_every_gpu_saw_it() -> None:
    results = [
        shot("bitflip bf16", 0, bits=1), shot("bitflip bf16", 1, detected=False, bits=1),
        shot("multibit bf16", 0, bits=3), shot("multibit bf16", 1, bits=4), shot("stale bf16", 0, bits=900),
        shot("nan fp8_e4m3 (fresh seed)"),
    ]  # fmt: skip
    bf16, fp8 = sensitivity(results)
    assert (bf16.check, bf16.part, bf16.injected, bf16.detected) == ("gemm", "bf16", 5, 4)
    assert (bf16.smallest_bits, bf16.missed, bf16.slowest_s) == (4, ("bitflip bf16",), 0.002)
    assert (fp8.part, fp8.smallest_bits, fp8.missed) == ("fp8_e4m3", None, ())


def test_a_selftest_that_could_not_be_done_is_a_row_without_a_part() -> None:
    (row,) = sensitivity([SelftestResult("all (no memory)", "hbm", "GPU-0", False, False, 0.0, "nothing")])
    assert (row.part, row.injected, row.missed) == ("", 0, ("all (no memory)",))


def test_the_table_names_what_was_missed() -> None:
    results = [shot("bitflip bf16", bits=1), shot("zero bf16", detected=False)]
    lines = render(plan("gemm"), results, sensitivity(results)).splitlines()
    assert "1/2" in lines[1] and "1 bit " in lines[1] and lines[1].endswith("zero bf16")
    assert SCOPE_CPU in lines[-1]


@pytest.mark.parametrize(
    ("results", "settings", "code"),
    [
        ([shot("nan bf16")], {}, 0),
        ([shot("nan bf16"), shot("inf bf16", detected=False)], {}, 1),
        ([shot("nan bf16"), SelftestResult("all (x)", "hbm", None, False, False, 0.0, "nothing")], {}, 3),
        ([], {}, 3),
        ([shot("nan bf16")], {"interrupted": True}, 3),
        ([shot("nan bf16")], {"results": (CheckResult("gemm", "GPU-0", Verdict.INCONCLUSIVE, 1.0),)}, 3),
        ([shot("nan bf16")], {"results": (CheckResult("gemm", "GPU-0", Verdict.FAIL, 1.0),)}, 1),
    ],
)
def test_exit_codes(results: list[SelftestResult], settings: dict[str, Any], code: int) -> None:
    assert exit_code(ExecutionResult(**{"results": (), "selftests": (), "events": (), **settings}), results) == code


def call(tmp_path: Path, nvml: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    config = tmp_path / "config.yaml"
    shapes = {"gemm_m": 64, "gemm_n": 64, "gemm_k": 64, "hbm_bytes": 65536}
    config.write_text(yaml.safe_dump({"shapes": shapes, "state_dir": str(tmp_path / "state")}))
    scenario = LAB / "scenarios/healthy-2gpu.scenario"
    environment = {**os.environ, "LD_LIBRARY_PATH": str(nvml), "MUSTER_FAKE_NVML_SCENARIO": str(scenario)}
    command = [sys.executable, "-m", "gpu_burnin", "selftest", "--config", str(config), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.mark.slow
def test_the_command_proves_every_detector_on_every_gpu(tmp_path: Path, fake_nvml: Path) -> None:
    done = call(tmp_path, fake_nvml, "--backend", "cpu", "--seed", "5", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["schema"], told["backend"], told["seed"]) == ("muster-selftest/v1", "cpu", 5)
    seen = {(result["check"], result["gpu"]) for result in told["results"] if result["detected"]}
    assert {(check, gpu) for check in SELFTESTED for gpu in told["gpus"]} <= seen
    assert len(told["gpus"]) == 2
    parts = {row["part"]: row for row in told["sensitivity"] if row["check"] == "gemm"}
    assert len(parts) == 7
    assert {row["smallest_bits"] for row in parts.values()} == {1}
    assert not any(row["missed"] for row in told["sensitivity"])
    assert not (tmp_path / "state").exists(), "it needs no rights and leaves nothing"


@pytest.mark.slow
def test_one_gpu_one_check(tmp_path: Path, fake_nvml: Path) -> None:
    done = call(tmp_path, fake_nvml, "--backend", "cpu", "--gpus", "1", "--checks", "hbm")
    assert done.returncode == 0, done.stderr
    assert "hbm" in done.stdout
    assert "gemm" not in done.stdout
    assert SCOPE_CPU in done.stdout


def test_no_usable_gpu_is_said_why(tmp_path: Path, fake_nvml: Path) -> None:
    done = call(tmp_path, fake_nvml)
    assert (done.returncode, done.stdout) == (2, "")
    assert "NVML is a simulation here" in done.stderr


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_without_a_gpu_the_cpu_is_offered_simulated_ones(backend: str) -> None:
    with pytest.raises(GpuBurninError, match=r"no GPU to prove detectors on \(no driver\)") as caught:
        selftest_plan(Config(), Found(error="no driver"), None, None, backend, None)
    assert (ENVIRONMENT in str(caught.value)) is (backend == "cpu")
