"""Random products of the GPUs of a node beside each other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.judge.gemm_agreement import judge_gemm_agreement
from gpu_burnin.types import CheckResult, Gpu, Reason, Verdict
from tests.support.coverages import coverage
from tests.support.observed import observed

GPUS = tuple(Gpu(i, f"GPU-{i}", f"S{i}", f"0000:{i + 1:02x}:00.0", "Test", "h200-sxm", 1 << 30, "1") for i in range(4))


def gemm(index: int, digests: list[str], algorithm: str = "a1") -> CheckResult:
    covered = coverage("gemm", random_digests={"bf16": digests}, algorithms={"bf16": algorithm})
    return CheckResult("gemm", f"GPU-{index}", Verdict.PASS, 1.0, coverage=covered)


def sm(index: int, total: int) -> CheckResult:
    return CheckResult("sm", f"GPU-{index}", Verdict.PASS, 1.0, coverage=coverage("sm", sms_total=total))


def found(*results: CheckResult, gpus: tuple[Gpu, ...] = GPUS) -> list[Reason]:
    return list(judge_gemm_agreement(observed(results, gpus)).reasons)


def test_equal_bits_say_nothing() -> None:
    assert found(*(gemm(i, ["1", "2"]) for i in range(4))) == []


def test_the_one_that_stands_alone_is_named_and_it_is_inconclusive() -> None:
    (reason,) = found(gemm(0, ["1", "2"]), gemm(1, ["1", "2"]), gemm(2, ["1", "9"]), gemm(3, ["1", "2"]))
    assert (reason.code, reason.gpu, reason.severity) == ("GEMM_DISAGREE", "GPU-2", Verdict.INCONCLUSIVE)
    assert "than 3 GPUs" in reason.message and "bf16" in reason.message


@pytest.mark.parametrize("digests", [["1", "9"], ["9", "2"]])
def test_two_that_differ_blame_neither(digests: list[str]) -> None:
    (reason,) = found(gemm(0, ["1", "2"]), gemm(1, digests))
    assert reason.gpu is None


def test_two_against_two_and_two_odd_ones_blame_nobody() -> None:
    (reason,) = found(gemm(0, ["1", "2"]), gemm(1, ["1", "2"]), gemm(2, ["3", "4"]), gemm(3, ["3", "4"]))
    assert reason.gpu is None
    (reason,) = found(gemm(0, ["1", "2"]), gemm(1, ["1", "2"]), gemm(2, ["3", "4"]), gemm(3, ["5", "6"]))
    assert reason.gpu is None


def test_only_equal_model_sm_count_and_algorithm_are_compared() -> None:
    assert found(gemm(0, ["1", "2"]), gemm(1, ["3", "4"], algorithm="a2")) == []
    assert found(gemm(0, ["1", "2"]), gemm(1, ["3", "4"]), sm(0, 132), sm(1, 130)) == []
    other = (GPUS[0], replace(GPUS[1], sku="h100-sxm"))
    assert found(gemm(0, ["1", "2"]), gemm(1, ["3", "4"]), gpus=other) == []


def test_a_gpu_that_failed_or_was_cut_short_is_not_compared() -> None:
    assert found(gemm(0, ["1", "2"]), replace(gemm(1, ["3", "4"]), verdict=Verdict.FAIL)) == []
    assert found(gemm(0, ["1", "2"]), gemm(1, ["3"])) == []
