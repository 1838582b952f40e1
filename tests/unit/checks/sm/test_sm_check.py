"""The sm check on the CPU device: coverage, injected faults, what its reasons and errors say, its self-test."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks import CHECKS, REGISTRY
from gpu_burnin.checks.sm import check as sm
from gpu_burnin.checks.sm import cpu as sm_cpu
from gpu_burnin.checks.sm.cpu import CpuSm
from gpu_burnin.checks.sm.faults import FAULT_NAMES
from gpu_burnin.checks.sm.kernels import FUNCTIONS, KERNELS, SmRun
from gpu_burnin.device.port import DeviceError
from gpu_burnin.types import Action, Verdict
from tests.support import clocks
from tests.support.devices import DeviceWith
from tests.support.engine_helpers import context


class _Broken(CpuSm):
    """A GPU with something wrong; `change` edits the results of each launch, and is told how many there were."""

    change: Any = None
    launches_of_sms = 0

    def run(self, kernel: str, seed: int, rounds: int, fault: Any = None) -> SmRun:
        run = super().run(kernel, seed, rounds, fault)
        smid, values = run.smid.copy(), run.rows.copy()
        self.change(kernel, self.launches_of_sms, smid, values)
        self.launches_of_sms += 1
        return replace(run, smid=smid, rows=values)


def _with(change: Any) -> Any:
    sms = _Broken()
    sms.change = change
    return replace(context(), device=DeviceWith(sm=lambda: sms))


def test_the_check_is_registered_with_its_faults() -> None:
    assert REGISTRY["sm"].name == "sm"
    assert CHECKS["sm"].faults == FAULT_NAMES
    assert CHECKS["sm"].selftested


def test_a_healthy_gpu_passes_and_says_what_was_covered() -> None:
    result = sm.Check().run(context())
    assert (result.verdict, result.reasons, result.errors) == (Verdict.PASS, (), ())
    coverage: Any = result.coverage
    assert (coverage.sms_total, coverage.sms_covered) == (16, 16)
    assert coverage.runs == dict.fromkeys(KERNELS, 32)
    assert coverage.functions == FUNCTIONS
    assert coverage.simulated is True
    assert coverage.bytes_moved > 1 << 20


@pytest.mark.slow
def test_the_check_uses_the_time_it_is_given_with_new_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    clocks.use(monkeypatch, clocks.LookClock(0.01), sm)
    sent: list[Any] = []
    result = sm.Check().run(replace(context(budget_s=0.5), progress=sent.append))
    assert 0.5 <= result.seconds < 0.55
    assert result.coverage.seeds > len(KERNELS)
    assert sent[0]["phase"] == "sm fp32" and sent[0]["errors"] == 0 and 0 <= sent[0]["done"] <= 1


def test_seeds_never_come_twice() -> None:
    steps = [step for step, _ in zip(sm._schedule(3), range(700), strict=False)]
    assert len({seed for _, seed, _ in steps}) == 700
    assert [kernel for kernel, _, optional in steps if not optional] == list(KERNELS)


@pytest.mark.parametrize("fault", FAULT_NAMES)
def test_every_injected_fault_is_found(fault: str) -> None:
    result = sm.Check().run(context(inject=(fault,)))
    reason = result.reasons[0]
    assert reason.gpu == "GPU-0"
    expected = {
        "absent_sm": (Verdict.INCONCLUSIVE, "COVERAGE_LOW"),
        "special_everywhere": (Verdict.INCONCLUSIVE, "SM_MISMATCH"),
    }.get(fault, (Verdict.FAIL, "SM_MISMATCH"))
    assert (result.verdict, reason.code) == expected
    if fault not in ("absent_sm", "special_everywhere", "bad_smid", "skipped_launch"):
        assert len(result.reasons) == 1  # one SM in one kernel: one reason
        assert f"SM {reason.details['sm']} " in reason.message
        assert result.errors[0]["repeat"] == "same" and result.errors[0]["bits"]


def test_a_fault_meant_for_another_check_is_not_ours() -> None:
    assert sm.Check().run(context(inject=("hang",))).verdict is Verdict.PASS


def test_a_passing_fault_is_told_with_sm_word_bits_and_repeat() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        if launch == KERNELS.index("int"):
            values[int(np.flatnonzero(smid == 9)[0]), 70] ^= np.uint64(0b101 << 40)

    result = sm.Check().run(_with(change))
    (reason,) = result.reasons
    assert (reason.code, reason.severity, reason.action) == ("SM_MISMATCH", Verdict.FAIL, Action.REPAIR)
    assert reason.message.startswith("SM 9 computed the int kernel wrong (thread 70, lane 6): expected 0x")
    assert reason.message.endswith("a repeat came out right")
    (error,) = result.errors
    assert (error["kernel"], error["sm"], error["word"], error["bits"]) == ("int", 9, 70, [40, 42])
    assert (error["repeat"], error["wrong_words"], error["blocks"]) == ("right", 1, 1)
    assert int(str(error["expected"]), 16) ^ int(str(error["got"]), 16) == 0b101 << 40
    assert result.coverage.wrong_blocks == 1


def test_a_function_off_by_its_last_bit_on_one_sm_is_named() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        if kernel == "special":
            values[smid == 2, 1024 + 5] ^= np.uint64(1 << 32)

    (reason,) = sm.Check().run(_with(change)).reasons
    assert "SM 2 computed the special kernel wrong (thread 5, lane 5, sin and cos)" in reason.message
    assert "by most other SMs" in reason.message


def test_sms_that_disagree_without_a_majority_fail_the_gpu() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        if kernel == "special":
            values[smid < 8, 5] ^= np.uint64(1)

    result = sm.Check().run(_with(change))
    assert (result.verdict, len(result.reasons)) == (Verdict.FAIL, 1)
    assert "disagree in the special kernel" in result.reasons[0].message


def test_an_sm_that_misses_one_kernel_only_is_not_covered() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        if kernel == "shared":
            smid[smid == 3] = 4

    result = sm.Check().run(_with(change))
    (reason,) = result.reasons
    assert (result.verdict, reason.code) == (Verdict.INCONCLUSIVE, "COVERAGE_LOW")
    assert reason.message == "1 of 16 SMs did not run every kernel"
    assert result.coverage.sms_covered == 15


def test_many_wrong_sms_are_summed_up() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        if kernel == "atomic":
            values[:, 0] ^= smid.astype(np.uint64)  # SM 0 stays right

    result = sm.Check().run(_with(change))
    assert len(result.reasons) == 9
    assert "15 SMs computed the atomic kernel wrong" in result.reasons[-1].message
    assert "(shared add, cell 0)" in result.reasons[0].message


def test_different_faults_of_one_kernel_are_all_told() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        if kernel == "fp64":
            smid[smid == 5] = 40
            smid[int(np.flatnonzero(smid == 1)[0])] = -2

    messages = [reason.message for reason in sm.Check().run(_with(change)).reasons]
    assert any("SM 40, an id that this GPU does not have" in m for m in messages)
    assert any("1 blocks of the fp64 kernel gave no result" in m for m in messages)


def test_without_a_device_nothing_can_be_done() -> None:
    with pytest.raises(DeviceError, match="sm check needs a device"):
        sm.Check().run(replace(context(), device=None))


# --- self-test ---


@pytest.mark.parametrize("full", [False, True])
def test_the_selftest_changes_every_kernel_and_is_seen(full: bool) -> None:
    results = sm.Check().selftest(replace(context(), selftest_full=full))
    assert all(r.injected and r.detected and r.check == "sm" and r.gpu == "GPU-0" for r in results)
    names = [r.fault for r in results]
    assert len(set(names)) == len(names)
    assert {f"bitflip {kernel}" for kernel in KERNELS} <= set(names)
    assert {name.split()[0] for name in names} == {"bitflip", *FAULT_NAMES}
    assert {r.changed_bits for r in results if r.fault.startswith("bitflip")} == {1}
    if full:
        assert {f"absent_sm {kernel}" for kernel in KERNELS} <= set(names)
        assert {f"stuck_bit {kernel}" for kernel in ("fp32", "fp64", "int", "shared")} <= set(names)


def test_a_blind_detector_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault that never reaches the results stands for a detector that looks elsewhere."""
    monkeypatch.setattr(CpuSm, "run", lambda self, k, s, r, fault=None: sm_cpu.run(k, s, r))
    assert not any(result.detected for result in sm.Check().selftest(context()))


def test_a_detector_that_always_cries_has_detected_nothing() -> None:
    def change(kernel: str, launch: int, smid: Any, values: Any) -> None:
        values[smid == 1, 0] ^= np.uint64(1)

    detected = [result.fault for result in sm.Check().selftest(_with(change)) if result.detected]
    assert detected == []
