"""The sm check on a real GPU: every SM gives what the host computed, and struck SMs are seen."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.checks.sm import golden as sm_golden
from gpu_burnin.checks.sm import judge as sm_judge
from gpu_burnin.checks.sm.check import ROUNDS, Check
from gpu_burnin.checks.sm.kernels import KERNELS
from gpu_burnin.checks.sm.port import sm_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import context

_SEED = 7


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_sm_gives_the_expected_words(device: CudaDevice, kernel: str) -> None:
    run = sm_port(device).run(kernel, _SEED, ROUNDS[kernel])
    verdicts = sm_judge.judge(run, sm_golden.expected(kernel, _SEED, ROUNDS[kernel]))
    assert verdicts.clean
    assert len(verdicts.covered) == device.multiprocessors()


def test_the_check_passes_and_its_selftest_sees_everything(device: CudaDevice) -> None:
    ctx = replace(context(budget_s=5.0), device=device, selftest_full=True)
    result = Check().run(ctx)
    assert (result.verdict, result.reasons) == (Verdict.PASS, ())
    tests = Check().selftest(ctx)
    assert tests
    assert [test.fault for test in tests if not (test.injected and test.detected)] == []
