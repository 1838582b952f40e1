"""The campaign itself: an outcome that is wrong in any way must be told, and a blind detector must fail a case."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks import REGISTRY
from gpu_burnin.checks.hbm.cpu import CpuHbm
from gpu_burnin.checks.hbm.patterns import MemoryFaults, Pattern
from gpu_burnin.checks.nccl.operations import Operation, Outcome
from gpu_burnin.checks.nvlink.port import PieceFault
from gpu_burnin.checks.pcie.port import Verified
from gpu_burnin.checks.sm.faults import FAULT_NAMES as SM_FAULTS
from gpu_burnin.device.storage import Buffer
from gpu_burnin.exact.cpu import CpuProducts
from gpu_burnin.exact.faults import FAULTS
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.types import Action, Reason, Verdict
from tests.campaign.faults.faulty_collectives import RING_FAULTS, WrongElement
from tests.campaign.faults.faulty_link import PEER_FAULTS, FaultyNvlink, FaultyPcie
from tests.campaign.faults.faulty_products import FaultyProductsDevice, always
from tests.campaign.faults.memory import MEMORY_FAULTS
from tests.campaign.faults.opinion import OPINIONS
from tests.campaign.faults.power import POWER_FAULTS
from tests.campaign.faults.state import STATE_FAULTS
from tests.campaign.faults.wires import FAULTY_WIRES, StuckLine
from tests.campaign.matrix import Case, lines, render, summary
from tests.campaign.model import MISSED, NOT_TESTED, SEEN, Expect, Row, problems
from tests.campaign.node import clean, context_of, made_up_gpus, observe, plan_of, verdict
from tests.campaign.plugin import repeat_command, row_of
from tests.campaign.together import judge_group, run_group
from tests.support.devices import ComputingDevice, DeviceWith

GPUS = made_up_gpus(3)
FAULTY_CELLS = GPUS[1]
EXPECT = Expect(frozenset({"GEMM_MISMATCH"}), Verdict.FAIL, frozenset({1}), action=Action.REPAIR)


def _reason(code: str = "GEMM_MISMATCH", gpu: str | None = FAULTY_CELLS.uuid) -> Reason:
    return make_reason(code, "gemm", "wrong", gpu=gpu)


def _judged(*reasons: Reason, verdict: Verdict = Verdict.FAIL) -> Judgement:
    gpus = {gpu.uuid: Verdict.PASS for gpu in GPUS} | {FAULTY_CELLS.uuid: verdict}
    return Judgement(verdict, Action.REPAIR, reasons, gpus)


RIGHT = _judged(_reason())


def test_a_right_outcome_has_no_problems() -> None:
    assert problems(EXPECT, RIGHT, GPUS) == []


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda j: replace(j, reasons=()), "not seen: GEMM_MISMATCH"),
        (lambda j: replace(j, verdict=Verdict.INCONCLUSIVE), "verdict INCONCLUSIVE, expected FAIL"),
        (lambda j: replace(j, action=Action.RETEST), "action retest, expected repair"),
        (lambda j: replace(j, reasons=(*j.reasons, _reason("GEMM_NONFINITE"))), "not expected: GEMM_NONFINITE"),
        (lambda j: replace(j, reasons=(_reason(gpu=None),)), "expected on"),
        (lambda j: replace(j, reasons=(_reason(gpu=GPUS[2].uuid),)), "GPU 2 is blamed"),
        (lambda j: replace(j, reasons=(*j.reasons, _reason(gpu=GPUS[0].uuid))), "GPU 0 is blamed"),
        (lambda j: replace(j, gpus={**j.gpus, GPUS[2].uuid: Verdict.FAIL}), "GPU 2 is blamed (FAIL)"),
    ],
)
def test_a_wrong_outcome_is_told(change: Callable[[Judgement], Judgement], says: str) -> None:
    assert any(says in problem for problem in problems(EXPECT, change(RIGHT), GPUS))


def test_a_reason_of_the_node_must_be_of_the_node() -> None:
    expect = Expect(frozenset({"XID_GAP"}), Verdict.FAIL)
    assert problems(expect, replace(_judged(_reason("XID_GAP", None)), gpus={}), GPUS) == []
    assert problems(expect, replace(_judged(_reason("XID_GAP")), gpus={}), GPUS)


class _Blind(FaultyProductsDevice):
    """Wrong results lie in memory, but whatever verifies them reads the right ones."""

    def __init__(self) -> None:
        super().__init__(FAULTS["low_mantissa"], always, 1)
        self._right: dict[int, Any] = {}

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        CpuProducts.gemm(self, precision, a, b, c)
        right = c.data.copy()
        self._launches -= 1
        super().gemm(precision, a, b, c)
        self._right[id(c.data)] = right

    def _honest(self, c: Buffer) -> Buffer:
        return replace(c, data=self._right.get(id(c.data), c.data))

    def enqueue_check(self, c: Buffer, *more: Any) -> None:
        super().enqueue_check(self._honest(c), *more)

    def digest_bits(self, c: Buffer, key: int) -> int:
        return super().digest_bits(self._honest(c), key)

    def bilinear(self, c: Buffer, *more: Any) -> int:
        return super().bilinear(self._honest(c), *more)

    def read_raw(self, buffer: Buffer, *more: Any) -> Any:
        return super().read_raw(self._honest(buffer), *more)


@pytest.mark.parametrize(("device", "missed"), [(_Blind(), True), (None, False)])
def test_a_blind_detector_fails_a_case(device: ComputingDevice | None, missed: bool) -> None:
    faulty = device or FaultyProductsDevice(FAULTS["low_mantissa"], always, 1)
    found = [clean("gemm", gpu, ("fp32",)) for gpu in GPUS]
    result = REGISTRY["gemm"].run(context_of(GPUS, 1, seed=1, precisions=("fp32",), device=faulty))
    tests = [test for _, own in found for test in own]
    judged = verdict(observe(plan_of(GPUS, "gemm"), [found[0][0], result, found[2][0]], tests))
    assert any("not seen: GEMM_MISMATCH" in problem for problem in problems(EXPECT, judged, GPUS)) is missed


class _BlindPcie(FaultyPcie):
    def verify(self) -> Verified:
        return replace(super().verify(), wrong=())


class _BlindNvlink(FaultyNvlink):
    def verify(self, uuid: str, key: int) -> tuple[PieceFault, ...]:
        return ()


class _BlindRing(WrongElement):
    def verify(self, op: Operation) -> Outcome:
        return replace(super().verify(op), wrong=0, recorded=())


class _BlindHbm(CpuHbm):
    def verify(self, pattern: Pattern, invert: bool = False, downwards: bool = False) -> MemoryFaults:
        super().verify(pattern, invert, downwards)
        return MemoryFaults()


def _blind_device() -> DeviceWith:
    """Faulty in everything, and nothing that verifies says so."""
    return DeviceWith(
        pcie=lambda: _BlindPcie({"h2d": StuckLine(1)}),
        nvlink=lambda: _BlindNvlink({(GPUS[0].uuid, "read"): StuckLine(1)}),
        nccl=lambda: _BlindRing(1, once=False),
        hbm=_BlindHbm,
    )


def _faulty_device() -> DeviceWith:
    """As faulty, and seen."""
    return DeviceWith(
        pcie=lambda: FaultyPcie({"h2d": StuckLine(1)}),
        nvlink=lambda: FaultyNvlink({(GPUS[0].uuid, "read"): StuckLine(1)}),
        nccl=lambda: WrongElement(1, once=False),
    )


@pytest.mark.parametrize("check", ["pcie", "nvlink", "nccl"])
@pytest.mark.parametrize(("device", "missed"), [(_blind_device, True), (_faulty_device, False)])
def test_a_blind_detector_of_checks_together_fails_a_case(
    check: str, device: Callable[[], DeviceWith], missed: bool
) -> None:
    judged = judge_group(check, GPUS, 1, run_group(check, GPUS, 1, devices={1: device()}))
    assert (judged.verdict is Verdict.PASS) is missed


def test_a_blind_selftest_is_told() -> None:
    """The self-tests of a device that verifies nothing: none of them may have seen its fault."""
    for check in ("hbm", "pcie", "nvlink", "nccl"):
        tests = REGISTRY[check].selftest(context_of(GPUS, 1, seed=1, device=_blind_device()))
        assert tests and not any(test.detected for test in tests), check


def test_each_check_has_faults_in_the_campaign() -> None:
    """A check without a fault would be a check that nobody knows to be able to fail."""
    tables: dict[str, Any] = {
        "state": STATE_FAULTS, "sm": SM_FAULTS, "gemm": FAULTS, "hbm": MEMORY_FAULTS, "pcie": FAULTY_WIRES,
        "nvlink": PEER_FAULTS, "nccl": RING_FAULTS, "power": POWER_FAULTS, "dcgm": OPINIONS,
    }  # fmt: skip
    assert set(tables) == set(REGISTRY)
    assert all(tables.values())


def _row(fault: str, gpu_burn: str, area: str = "compute") -> Row:
    return Row(area, fault, 5, codes=("GEMM_MISMATCH",), tools={"gpu-burn": gpu_burn, "dcgm": NOT_TESTED})


def test_the_matrix_counts_cases_and_leaves_out_what_a_tool_does_not_test() -> None:
    rows = [_row("nan", MISSED), _row("nan", SEEN), _row("nan", NOT_TESTED), _row("h100", NOT_TESTED, "healthy")]
    cases = [Case(row.to_json(), right=index != 0, test="t") for index, row in enumerate(rows)]
    nan, _ = lines(cases)
    unseen = dict.fromkeys(("dcgm", "nvbandwidth", "nccl-tests"), "-")
    assert (nan.right, nan.cases, nan.tools) == (2, 3, {"gpu-burn": "1/2", **unseen})
    assert summary(cases) == "1 faults, 2 of 3 cases detected; 1 healthy runs, 0 of them not passed"
    assert "nan" in render(cases)


def test_a_case_that_broke_before_its_outcome_is_a_line_too() -> None:
    row = row_of("tests/campaign/cases/test_state.py::test_state_fault[lost gpu-1]")
    assert row is not None
    assert (row.area, row.fault) == ("state", "lost gpu-1")
    assert row_of("tests/campaign/cases/test_reference_tools.py::test_equal_slots_have_no_errors[float32]") is None


def test_a_failed_case_says_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUSTER_CAMPAIGN_SEED", "77")
    assert repeat_command("a.py::b[c d-0]") == "python -m tests.campaign --seed 77 'a.py::b[c d-0]'"
    assert shlex.split(repeat_command("a.py::b[it's-0]"))[-1] == "a.py::b[it's-0]"
