"""GPUs in MIG mode: coverage added up over instances, and what none of them reaches. The results are made up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks.planned import covers
from gpu_burnin.engine.plan import Plan
from gpu_burnin.hardware import load_skus
from gpu_burnin.judge.mig import NO_FLOOR, reached
from gpu_burnin.judge.observations import Observations
from gpu_burnin.judge.pcie_outliers import judge_pcie_outliers
from gpu_burnin.judge.verdict import judge
from gpu_burnin.types import Gpu, Measurement, MigInstance, Verdict
from tests.support.run_helpers import GPUS, covered, healthy, plan

GIB = 1 << 30
MEMORY, SMS = 16 * GIB, 16
CHECKS = ("state", "sm", "gemm", "hbm", "pcie", "power")


def parted(gpu: Gpu, instances: int = 7) -> Gpu:
    """The GPU with as many small instances."""
    return replace(
        gpu,
        instances=tuple(MigInstance(f"MIG-{gpu.index}-{n}", "1g.18gb", SMS, MEMORY) for n in range(instances)),
    )


def in_mig(*gpus: Gpu) -> Observations:
    """What a good run on these saw: each instance filled but for what CUDA keeps."""
    chosen: Plan = replace(plan(checks=CHECKS), gpus=gpus)
    seen = healthy(chosen)
    whole = {
        "sm": covered("sm", sms_total=SMS, sms_covered=SMS),
        "hbm": covered("hbm", covered_bytes=MEMORY - GIB // 2, gpu_memory_bytes=MEMORY, of_instance=True),
    }
    results = [replace(one, coverage=whole.get(one.name, one.coverage)) for one in seen.results]
    return replace(seen, gpus=gpus, results=tuple(results))


def changed(seen: Observations, check: str, gpu: str, **told: Any) -> Observations:
    """With another coverage of one result."""
    results = [
        replace(one, coverage=replace(one.coverage, **told)) if (one.name, one.gpu) == (check, gpu) else one
        for one in seen.results
    ]
    return replace(seen, results=tuple(results))


def test_coverage_is_counted_per_instance_and_added_up_per_gpu() -> None:
    seen = in_mig(*map(parted, GPUS))
    judged = judge(seen)
    assert (judged.verdict, judged.reasons) == (Verdict.PASS, ())
    (note,) = (notice for notice in judged.notices if notice.code == "MIG_REACH")
    one = reached(seen.plan.gpus[0], seen.results)
    assert (one.instances, one.instances_tested, one.multiprocessors, one.multiprocessors_tested) == (7, 7, 112, 112)
    assert one.memory_tested_bytes == 7 * (MEMORY - GIB // 2)
    assert one.memory_outside_bytes == GPUS[0].memory_bytes - 7 * MEMORY
    assert "each of GPU 0, GPU 1 7 of 7 instances, 108.5 GiB of 150 GiB of memory (38 GiB belong" in note.message
    assert "112 of the 112 multiprocessors" in note.message and "links to other GPUs" in note.message


@pytest.mark.parametrize(
    ("check", "told", "said"),
    [
        ("hbm", {"covered_bytes": MEMORY - GIB - 1}, "at least 94% is required"),
        ("sm", {"sms_covered": SMS - 1}, "at least 100% is required"),
    ],
)
def test_an_instance_of_which_too_little_was_covered_holds_its_gpu(check: str, told: dict[str, int], said: str) -> None:
    seen = changed(in_mig(*map(parted, GPUS)), check, "MIG-1-3", **told)
    judged = judge(seen)
    (reason,) = judged.reasons
    assert (reason.code, reason.check, reason.gpu) == ("COVERAGE_LOW", check, "GPU-1"), "a GPU is reset and repaired"
    assert reason.message.startswith("MIG 3 (1g.18gb): ") and said in reason.message
    assert reason.details["mig_instance"] == "MIG-1-3"
    assert dict(judged.gpus) == {"GPU-0": Verdict.PASS, "GPU-1": Verdict.INCONCLUSIVE}


def test_an_instance_without_a_result_is_a_gap() -> None:
    seen = in_mig(*map(parted, GPUS))
    seen = replace(seen, results=tuple(one for one in seen.results if (one.name, one.gpu) != ("gemm", "MIG-0-6")))
    judged = judge(seen)
    (reason,) = judged.reasons
    assert (reason.code, reason.gpu, reason.details["mig_instance"]) == ("COVERAGE_LOW", "GPU-0", "MIG-0-6")
    assert judged.gpus["GPU-0"] is Verdict.INCONCLUSIVE


def test_no_rate_of_an_instance_is_held_against_the_figures_of_a_whole_gpu() -> None:
    seen = in_mig(*map(parted, GPUS))
    slow = Measurement("h2d", 1e9, "B/s")
    results = [replace(one, measurements=(slow,)) if one.name == "pcie" else one for one in seen.results]
    seen = replace(seen, results=tuple(results))
    judged = judge(seen)
    assert judged.verdict is Verdict.PASS and judge_pcie_outliers(seen).notices == ()
    assert {one.coverage.no_floor_why for one in judged.results if one.gpu} == {NO_FLOOR}


def test_the_least_memory_of_a_small_instance_leaves_room_for_cuda_and_no_more() -> None:
    small = covered("hbm", covered_bytes=4 * GIB, gpu_memory_bytes=5 * GIB, of_instance=True)
    assert not list(small.shortfalls(()))
    assert list(replace(small, covered_bytes=4 * GIB - 4096).shortfalls(()))  # type: ignore[call-arg]
    assert list(covered("hbm", covered_bytes=4 * GIB, gpu_memory_bytes=5 * GIB).shortfalls(())), "of a whole GPU"


def test_a_plan_says_how_much_of_each_instance_is_tested() -> None:
    chosen = replace(plan(checks=CHECKS), gpus=(parted(GPUS[0], 2),))
    told = covers("hbm", chosen, load_skus())
    assert told.facts["memory_bytes"] == [MEMORY - GIB] * 2 and told.text.startswith("at least 94 % of 16 GiB")
