"""Whole runs on simulated GPUs in MIG mode: a worker for each instance, and what none of them reaches.

No card in MIG mode has run this: NVML is simulated, and the CPU stands in for the instances.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.report import model
from gpu_burnin.run import Outcome, RunOptions, run_burnin
from gpu_burnin.settings.config import Config
from gpu_burnin.settings.expectations import Expectations
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT, SimulatedNode
from tests.support.node_runs import BOOT_LINE, SHAPES

TWO = (("3g.40gb", 42, 40192), ("4g.40gb", 56, 40192))
SHARING = (("1c.3g.40gb", 14, 40192), ("2c.3g.40gb", 28, 40192), ("4g.40gb", 56, 40192))
MODEL = "a100-sxm4-80gb"


def run_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, mig: dict[int, Sequence[Sequence[Any]]], **options: Any
) -> Outcome:
    """A run on two GPUs; `mig` has the instances of those in MIG mode."""
    folder.mkdir(exist_ok=True)
    monkeypatch.setenv(ENVIRONMENT, SimulatedNode(MODEL, 2, mig=mig).to_text())
    log = folder / "kmsg"
    log.write_text(BOOT_LINE)
    config = Config(
        allow_simulated=True,
        backend="cpu",
        node_name="gpu-1",
        host_key=folder / "none",
        kernel_log=str(log),
        state_dir=folder / "state",
        shapes=SHAPES,
        expect=options.pop("expect", Expectations(gpus=2, mig=True)),
    )
    return run_burnin(RunOptions(config=config, level="quick", seed=1, asks_for_extended=False, **options))


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    with pytest.MonkeyPatch.context() as patch:
        return run_on(tmp_path_factory.mktemp("mig"), patch, {0: TWO, 1: TWO})


@pytest.mark.slow
def test_each_instance_has_a_worker_and_a_result_of_each_check(parted: Outcome) -> None:
    assert (parted.verdict, parted.judgement.reasons) == ("PASS", ())
    units = {unit.uuid for unit in parted.plan.units}
    assert len(units) == 4 and all(uuid.startswith("MIG-") for uuid in units)
    on = {name: {result.gpu for result in parted.results if result.name == name} for name in ("sm", "gemm", "hbm")}
    assert on == dict.fromkeys(("sm", "gemm", "hbm"), units)
    memory = {r.coverage.gpu_memory_bytes for r in parted.results if r.name == "hbm"}  # type: ignore[attr-defined]
    assert memory == {40192 << 20}
    assert {test.gpu for test in parted.selftests if test.check == "gemm"} == units
    assert dict.fromkeys((gpu.uuid for gpu in parted.plan.gpus), "PASS") == parted.judgement.gpus


@pytest.mark.slow
def test_what_no_instance_reaches_is_in_the_report_and_the_layout_in_the_evidence(parted: Outcome) -> None:
    report = parted.report
    note = next(warning for warning in report.warnings if warning.code == "MIG_REACH")
    assert "of each of GPU 0, GPU 1 2 of 2 instances (simulated), 1.5 GiB of 80 GiB of memory" in note.message
    for reached in note.details["gpus"].values():
        assert reached["memory_outside_bytes"] == (81920 - 2 * 40192) << 20
        assert reached["memory_tested_bytes"] == 2 * SHAPES["hbm_bytes"]
    why = {gap.check: gap.why for gap in report.coverage.not_run}
    assert why["nvlink"] == why["nccl"] == "GPUs in MIG mode reach no other GPU"
    for name in ("report.txt", "report.html"):
        text = " ".join((parted.run_dir / name).read_text().split())
        assert "belong to no instance" in text and "MIG-0001" not in text, name
    assert [len(gpu.instances or ()) for gpu in report.gpus] == [2, 2]
    assert model.parse(model.to_bytes(report), "it").gpus == report.gpus


@pytest.mark.slow
def test_a_fault_of_one_instance_is_a_fault_of_its_gpu_alone(
    parted: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (uuid,) = (unit.uuid for unit in parted.plan.units if (unit.index, unit.instance) == (1, 1))
    inject = (f"hbm:bitflip:gpu={uuid}",)
    found = run_on(tmp_path, monkeypatch, {0: TWO, 1: TWO}, inject=inject, checks=("state", "hbm"))
    wrong = [reason for reason in found.judgement.reasons if reason.code == "HBM_BIT_ERROR"]
    assert {(reason.gpu, reason.details["mig_instance"]) for reason in wrong} == {(found.plan.gpus[1].uuid, uuid)}
    assert [str(found.judgement.gpus[gpu.uuid]) for gpu in found.plan.gpus] == ["PASS", "FAIL"]
    assert "HBM_BIT_ERROR on GPU 1: MIG 1 (4g.40gb): " in (found.run_dir / "report.txt").read_text()


@pytest.mark.slow
def test_a_gpu_without_an_instance_and_instances_that_share_memory_are_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_on(tmp_path, monkeypatch, {0: (), 1: SHARING}, checks=("hbm",))
    first, second = (reason.message for reason in found.judgement.reasons if "instance" in reason.message)
    assert found.verdict == "INCONCLUSIVE" and {reason.code for reason in found.judgement.reasons} == {"COVERAGE_LOW"}
    assert "has no instance, so nothing of it was tested" in first
    assert "2 MIG devices (1c.3g.40gb, 2c.3g.40gb) share the memory" in second
    assert len([result for result in found.results if result.name == "hbm"]) == 1
    assert set(map(str, found.judgement.gpus.values())) == {"INCONCLUSIVE"}


@pytest.mark.slow
def test_mig_by_mistake_is_a_mismatch_and_its_instances_are_not_tested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = run_on(tmp_path, monkeypatch, {1: TWO}, checks=("state", "hbm"), expect=Expectations(gpus=2))
    assert "MIG_MISMATCH" in {reason.code for reason in found.judgement.reasons}
    assert {result.gpu for result in found.results if result.name == "hbm"} == {gpu.uuid for gpu in found.plan.gpus}


def test_checks_between_gpus_alone_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(GpuBurninError, match="nvlink, nccl cannot run: GPUs in MIG mode reach no other GPU"):
        run_on(tmp_path, monkeypatch, {0: TWO, 1: TWO}, checks=("nvlink", "nccl"))
