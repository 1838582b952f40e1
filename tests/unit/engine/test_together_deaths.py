"""Checks of several GPUs when workers leave them at any exchange: nobody waits for ever, nobody else is accused."""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_burnin.checks import REGISTRY, CheckContext
from gpu_burnin.device.port import DeviceError
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.judge.attribution import judge_links
from gpu_burnin.types import JSON, CheckResult, Verdict
from tests.support import coverages
from tests.support.engine_helpers import gpu, limited, plan
from tests.support.executor_helpers import LIMITS, gone, run_plan
from tests.support.observed import observed
from tests.support.together_helpers import contexts, run_together

_COUNT = 3
_OPTIONS: Mapping[str, JSON] = {"collective_wait_s": 60.0}
_CHECKS = ("nvlink", "nccl")


def _run(
    name: str, leaves: Mapping[str, int], error: Callable[[], BaseException] = lambda: DeviceError("it left")
) -> tuple[dict[str, CheckResult | Exception], Counter[str]]:
    """A check in which some GPUs fail at an exchange, counted from 1; results, and the exchanges that each came to."""
    calls: Counter[str] = Counter()

    def run(ctx: CheckContext) -> CheckResult:
        assert ctx.gpu is not None
        uuid, exchange = ctx.gpu.uuid, ctx.exchange

        def may_leave(data: JSON) -> Mapping[str, JSON]:
            calls[uuid] += 1
            if calls[uuid] == leaves.get(uuid):
                raise error()
            return exchange(data)

        return REGISTRY[name].run(replace(ctx, exchange=may_leave))

    return run_together(run, contexts(_COUNT, options=_OPTIONS)), calls


def _accuses_nobody(name: str, results: Mapping[str | None, CheckResult], left: set[str]) -> None:
    for uuid, result in results.items():
        assert result.verdict is not Verdict.FAIL, (uuid, result.reasons)
        assert result.errors == ()
        for pair in coverages.nvlink(result).p2p if name == "nvlink" else ():
            if pair.why is None:
                assert all(pair.transfers_checked.values()) and pair.write_bytes_per_s and pair.read_bytes_per_s
            else:
                assert pair.peer in left and pair.worker_ended
        assert name != "nccl" or coverages.nccl(result).wrong_elements == 0
        assert {reason.code for reason in result.reasons} <= {"NCCL_TIMEOUT", "COVERAGE_LOW"}
        if name == "nccl" and coverages.nccl(result).ranks != _COUNT:
            assert result.verdict is Verdict.INCONCLUSIVE
    reasons, notices = judge_links(observed(results.values(), [gpu(index) for index in range(_COUNT)], simulated=True))
    assert reasons == () and {notice.code for notice in notices} <= {"P2P_LINK_SLOW", "P2P_GPU_SLOW"}


def _open_memory() -> list[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sorted(str(link.readlink()) for link in links if link.readlink().name.startswith("memfd:gpu-burnin"))


@pytest.mark.slow
@pytest.mark.parametrize("name", _CHECKS)
def test_a_gpu_may_leave_at_any_exchange(name: str) -> None:
    before = _open_memory()
    healthy, calls = _run(name, {})
    assert len(set(calls.values())) == 1, "all make the same calls"
    for step in range(1, calls["GPU-0"] + 1):
        victim = f"GPU-{step % _COUNT}"
        results, _ = _run(name, {victim: step})
        assert isinstance(results.pop(victim), DeviceError)
        others: dict[str | None, CheckResult] = {r.gpu: r for r in results.values() if isinstance(r, CheckResult)}
        assert len(others) == _COUNT - 1, (step, results)
        _accuses_nobody(name, others, {victim})
    assert all(isinstance(result, CheckResult) and result.verdict is Verdict.PASS for result in healthy.values())
    assert _open_memory() == before


@pytest.mark.slow
@pytest.mark.parametrize("name", _CHECKS)
def test_two_gpus_may_leave_at_any_two_exchanges(name: str) -> None:
    _, calls = _run(name, {})
    draw = random.Random(20_261)
    for _ in range(12):
        victims = draw.sample([f"GPU-{index}" for index in range(_COUNT)], 2)
        leaves = {uuid: draw.randint(1, calls["GPU-0"]) for uuid in victims}
        results, _ = _run(name, leaves)
        (left,) = (result for uuid, result in results.items() if uuid not in victims)
        assert isinstance(left, CheckResult), (leaves, left)
        _accuses_nobody(name, {left.gpu: left}, set(victims))


# --- real workers ---

_WORKER = """
import os, signal, sys
from gpu_burnin.engine import worker
from tests.support.observed import observed
gpu, step, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
exchange, calls = worker.Worker._exchange, []
def may_die(self, data):
    calls.append(data)
    if self._gpu.uuid == gpu and len(calls) == step:
        if how == "raises":
            raise RuntimeError("as by a fault of the check")
        os.kill(os.getpid(), signal.SIGKILL if how == "dies" else signal.SIGSTOP)
    return exchange(self, data)
worker.Worker._exchange = may_die
sys.exit(worker.main())
"""


def _execute(tmp_path: Path, step: int, how: str) -> ExecutionResult:
    (tmp_path / "worker.py").write_text(_WORKER)
    command = [sys.executable, "-P", str(tmp_path / "worker.py"), "GPU-1", str(step), how]
    made = plan(*_CHECKS, gpus=_COUNT, deadline_s=6.0)
    # None of these workers resists SIGKILL: on a busy machine it is gone later, and is waited for.
    limits = {**LIMITS, "kill_grace_s": 60.0}
    return run_plan(limited(replace(made, options={"collective_wait_s": 4.0}), **limits), command=command)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "step"), [
    # In each check one death; all other exchanges are left by threads above.
    *(pytest.param("dies", step, marks=() if step in (2, 31) else pytest.mark.soak)
      for step in (1, 2, 4, 9, 17, 24, 31, 40)),
    pytest.param("raises", 3, marks=pytest.mark.soak), ("raises", 35), ("hangs", 6),
])  # fmt: skip
def test_workers_that_end_at_an_exchange_leave_the_others_with_right_verdicts(
    tmp_path: Path, how: str, step: int
) -> None:
    result = _execute(tmp_path, step, how)
    found = {(one.name, one.gpu): one for one in result.results}
    assert set(found) == {(name, f"GPU-{index}") for name in _CHECKS for index in range(_COUNT)}
    for name in _CHECKS:
        others = {uuid: one for (check, uuid), one in found.items() if check == name and uuid != "GPU-1"}
        _accuses_nobody(name, others, {"GPU-1"})
    of_victim = {reason.code for (_, uuid), one in found.items() if uuid == "GPU-1" for reason in one.reasons}
    assert {"dies": "WORKER_DIED", "raises": "CHECK_ERROR", "hangs": "HUNG"}[how] in of_victim
    assert all(gone(pid) for pid in result.worker_pids)
