"""The real worker under the supervisor, on the CPU backend."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.device.port import DeviceError, DeviceFault
from gpu_burnin.engine.messages import Failed, parse
from gpu_burnin.engine.worker import Progress, _failure
from gpu_burnin.engine.worker_process import worker_environment
from gpu_burnin.exact.operands import PRECISIONS
from gpu_burnin.judge.coverage import verified_s
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import limited, plan
from tests.support.executor_helpers import LIMITS, gone, reasons_of, run_plan


@pytest.mark.slow
def test_real_workers_pass_on_healthy_memory_and_prove_their_detectors() -> None:
    result = run_plan(plan("gemm", "hbm", gpus=2, selftest=True))
    assert [r.verdict for r in result.results] == [Verdict.PASS] * 4
    proved = {(t.check, t.gpu, t.fault.split(" ")[1]) for t in result.selftests}
    parts = [("hbm", "cell"), *(("gemm", precision) for precision in PRECISIONS)]
    assert proved == {(check, f"GPU-{i}", part) for i in range(2) for check, part in parts}
    assert all(t.detected for t in result.selftests)
    assert result.facts["GPU-0"]["backend"] == "cpu"


@pytest.mark.slow
def test_real_worker_faults_hit_the_gpu_they_name() -> None:
    inject = ("gemm:bitflip:gpu=1", "hbm:crash:gpu=1", "gemm:crash_once:gpu=0")
    result = run_plan(plan("gemm", "hbm", gpus=2, inject=inject))
    found = {(r.name, r.gpu): reasons_of(r) for r in result.results}
    assert found == {
        ("gemm", "GPU-0"): [("WORKER_DIED", Verdict.INCONCLUSIVE)],
        ("hbm", "GPU-0"): [],
        ("gemm", "GPU-1"): [("GEMM_MISMATCH", Verdict.FAIL)],
        ("hbm", "GPU-1"): [("WORKER_DIED", Verdict.FAIL)],
    }


def test_real_worker_without_memory_says_so() -> None:
    result = run_plan(plan("gemm", "hbm", inject=("gemm:out_of_memory",)))
    assert [reasons_of(r) for r in result.results] == [[("OUT_OF_MEMORY", Verdict.INCONCLUSIVE)], []]


def test_what_the_device_says_of_itself_reaches_the_supervisor() -> None:
    told = parse(_failure(DeviceFault("uncorrectable", "ECC_UNCORRECTED")), "check", "gemm", "GPU-0")
    assert told == Failed("uncorrectable", None, "ECC_UNCORRECTED")
    assert parse(_failure(DeviceError("lacking")), "check", "gemm", "GPU-0") == Failed("lacking")


def test_real_worker_goes_first_when_memory_runs_out() -> None:
    scores: list[int] = []

    def on_event(event: Mapping[str, Any]) -> None:
        if event["event"] == "check_started":
            scores.append(int(Path(f"/proc/{event['pid']}/oom_score_adj").read_text()))

    run_plan(plan("state", gpus=0), on_event=on_event)
    assert scores[0] > int(Path("/proc/self/oom_score_adj").read_text())


def test_a_check_that_tells_too_much_is_passed_on_now_and_then_but_an_error_at_once() -> None:
    sent: list[Any] = []
    now = iter([0.0, 0.1, 0.15, 0.16, 1.0])
    progress = Progress(sent.append, lambda: next(now))
    for errors in (0, 0, 1, 1, 1):
        progress.report({"phase": "x", "errors": errors})
    assert [message["data"]["errors"] for message in sent] == [0, 1, 1]
    assert all(message["type"] == "progress" for message in sent)


def test_time_of_waiting_is_told_each_time() -> None:
    """The supervisor adds it to the check's deadline: what is left out would be missing there."""
    sent: list[Any] = []
    progress = Progress(sent.append, lambda: 0.0)
    for _ in range(3):
        progress.report({"phase": "waiting", "waited_s": 0.1})
    assert len(sent) == 3


@pytest.mark.slow
def test_real_worker_that_wedges_is_killed() -> None:
    made = plan("hbm", inject=("hbm:wedge",), deadline_s=0.5)
    result = run_plan(limited(made, **LIMITS))
    assert reasons_of(result.results[0]) == [("HUNG", Verdict.FAIL)]
    assert all(gone(pid) for pid in result.worker_pids)


def test_the_supervisor_loads_nothing_heavy() -> None:
    code = (
        "import sys, gpu_burnin.engine.executor, gpu_burnin.engine.plan, gpu_burnin.engine.journal\n"
        "print([m for m in ('numpy', 'cupy', 'pynvml', 'ml_dtypes') if m in sys.modules])"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_environment_of_a_worker_is_clean() -> None:
    base = {
        "PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "NVIDIA_TF32_OVERRIDE": "0",
        "NCCL_DEBUG": "INFO", "PYTHONPATH": "/tmp/evil", "OMP_NUM_THREADS": "64", "LD_LIBRARY_PATH": "/fake/nvml",
    }  # fmt: skip
    cpu = worker_environment(base, "cpu", "GPU-1")
    assert (cpu["PATH"], cpu["LD_LIBRARY_PATH"], cpu["OMP_NUM_THREADS"]) == ("/bin", "/fake/nvml", "1")
    assert not {k for k in cpu if k.startswith(("CUDA", "CUBLAS", "NVIDIA", "NCCL"))}
    assert cpu["PYTHONPATH"] == str(Path(__file__).parents[3])
    assert worker_environment(base, "cuda", "GPU-1")["CUDA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.slow
def test_a_gpu_that_waits_for_the_turns_of_others_is_not_tested_meanwhile() -> None:
    """Copies of four GPUs, one after the other: each waits for three."""
    made = plan("pcie", gpus=4)
    result = run_plan(made)
    for one in result.results:
        waited_s = one.coverage.waited_s
        assert isinstance(waited_s, float)
        assert 0 < waited_s < one.seconds
        assert 0 < verified_s(one) < one.seconds - waited_s
    (alone,) = run_plan(plan("gemm")).results
    assert alone.coverage.waited_s is None
