"""The nccl check on the CPU device: healthy runs, each fault it must see, ranks that die or hang in real processes."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.nccl import check as nccl_check
from gpu_burnin.checks.nccl import session as nccl_session
from gpu_burnin.checks.nccl.check import Check
from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.checks.nccl.operations import COLLECTIVES, KINDS
from gpu_burnin.checks.nccl.port import NcclMissing, Transports
from gpu_burnin.checks.nccl.tally import sizes
from gpu_burnin.engine.executor import ExecutionResult
from gpu_burnin.report.formatting import covered
from gpu_burnin.types import CheckResult, Verdict
from tests.support import clocks, coverages
from tests.support.clocks import PATIENCE_S
from tests.support.devices import DeviceWith
from tests.support.engine_helpers import context, limited, plan
from tests.support.executor_helpers import LIMITS, gone, reasons_of, run_plan
from tests.support.together_helpers import contexts, results_together, run_together

# All ranks of a test that has none missing come at once, however slow the host.
_PATIENT: Mapping[str, float] = {"collective_wait_s": PATIENCE_S}


def _run(count: int, inject: Mapping[int, str] | None = None, **changes: Any) -> list[CheckResult]:
    """The results of `count` GPUs, with a fault on some of them."""
    made = contexts(count, **{"options": _PATIENT, **changes})
    for index, fault in (inject or {}).items():
        made[index] = replace(made[index], inject=(fault,))
    results = results_together(Check().run, made)
    return [results[f"GPU-{index}"] for index in range(count)]


@pytest.mark.parametrize("count", [2, 3])
def test_healthy_gpus_pass_with_all_that_was_promised(count: int) -> None:
    results = _run(count)
    assert [result.verdict for result in results] == [Verdict.PASS] * count
    for result in results:
        assert [m.name for m in result.measurements] == [f"{name}_busbw" for name in COLLECTIVES]
        assert all(m.value > 0 and m.unit == "B/s" for m in result.measurements)
        coverage = coverages.nccl(result)
        curves = coverage.curves
        assert [(c.collective, c.algorithm, c.transport) for c in curves] == [
            (name, "ring", ("shared memory",)) for name in COLLECTIVES
        ]
        assert [len(c.points) for c in curves] == [len(sizes(1 << 16))] * 4
        assert coverage.types == ("fp32", "int32", "int64", "bf16")
        # To connect, each size of each collective twice (warm-up, timed), then each type once.
        assert coverage.operations_verified == 4 * (1 + 2 * len(sizes(1 << 16)) + len(KINDS))
        assert coverage.operations >= coverage.operations_verified
        assert coverage.ranks == coverage.gpus_in_plan == count
        assert coverage.wrong_elements == 0 and coverage.simulated is True
        assert "over shared memory" in covered(result)
        assert f"{count} of {count} GPUs together" in covered(result)


def test_bus_bandwidth_is_size_over_time_times_the_factor() -> None:
    result = _run(3)[0]
    curves = coverages.nccl(result).curves
    factors = {"all_reduce": 4 / 3, "all_gather": 2 / 3, "reduce_scatter": 2 / 3, "all_to_all": 2 / 3}
    for curve, measured in zip(curves, result.measurements, strict=True):
        rates = [p.size_bytes / p.seconds * factors[curve.collective] for p in curve.points]
        assert [p.busbw_bytes_per_s for p in curve.points] == pytest.approx(rates)
        assert measured.value == pytest.approx(max(rates))


def test_one_gpu_has_no_bus_bandwidth_and_says_so() -> None:
    (result,) = _run(1)
    assert result.verdict is Verdict.PASS
    assert [m.name for m in result.measurements] == [f"{name}_one_rank" for name in COLLECTIVES]
    assert "nothing went from one GPU to another" in str(coverages.nccl(result).why_no_busbw)
    assert "one GPU alone" in covered(result)


@pytest.mark.slow
def test_the_time_given_is_used_by_all_ranks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = clocks.ThreadClock(0.001)
    clocks.use(monkeypatch, clock, nccl_session, nccl_check)
    results = _run(2, budget_s=1.0)
    verified = {coverages.nccl(result).operations_verified for result in results}
    assert len(verified) == 1
    assert all(result.verdict is Verdict.PASS and 0.8 < result.seconds < 1.5 for result in results)
    assert int(str(verified.pop())) > int(str(coverages.nccl(_run(2)[0]).operations_verified))


def test_sizes_go_from_small_to_the_largest() -> None:
    assert sizes(1 << 30) == (4096, 32768, 262144, 2097152, 16777216, 134217728, 1 << 30)
    assert sizes(4096) == (4096,)


# --- faults ---


def test_one_wrong_element_fails_its_gpu_and_no_other() -> None:
    results = _run(3, {1: "wrong_element"})
    assert [reasons_of(result) for result in results] == [[], [("NCCL_DATA", Verdict.FAIL)], []]
    (error,) = results[1].errors
    assert (error["collective"], error["rank"], error["kind"]) == ("all_reduce", 1, "corrupted")
    assert int(str(error["expected"]), 16) ^ int(str(error["got"]), 16) == 4
    details = results[1].reasons[0].details
    assert details["attributed"] == {"kind": "gpu", "gpus": ["GPU-1"]}
    assert details["wrong_elements"] == 1


def test_a_lost_operation_is_a_stale_result() -> None:
    results = _run(2, {0: "stale"})
    assert [reasons_of(result) for result in results] == [[("NCCL_DATA", Verdict.FAIL)], []]
    assert {error["kind"] for error in results[0].errors} == {"unwritten"}


class _Lossy(CpuNccl):
    """Gets nothing of what is moved."""

    def finish(self, timeout_s: float) -> float:
        assert self._pending is not None
        op = self._pending[0]
        seconds = super().finish(timeout_s)
        if not op.adds:
            self.forget(op)
        return seconds


def test_a_gpu_that_gets_nothing_from_anybody_is_itself_at_fault() -> None:
    results = run_together(Check().run, _with_port(contexts(3, options=_PATIENT), 2, _Lossy()))
    found = [results[f"GPU-{index}"] for index in range(3)]
    assert [reasons_of(result) for result in found if isinstance(result, CheckResult)] == [
        [], [], [("NCCL_DATA", Verdict.FAIL)],
    ]  # fmt: skip
    assert isinstance(found[2], CheckResult)
    assert found[2].reasons[0].details["attributed"] == {"kind": "gpu", "gpus": ["GPU-2"]}


class _Spoiled(CpuNccl):
    """Spoils what it sends to others, at its source."""

    collective = ""

    def fill(self, op: Any) -> None:
        super().fill(op)
        if op.collective == self.collective:
            self._send_array(op)[3] ^= 1


def _with_port(made: Sequence[Any], index: int, port: CpuNccl) -> list[Any]:
    device = DeviceWith(nccl=lambda: port)
    return [replace(ctx, device=device) if i == index else ctx for i, ctx in enumerate(made)]


def test_the_gpu_that_sends_wrong_elements_is_named_by_all_that_get_them() -> None:
    port = _Spoiled()
    port.collective = "all_gather"
    results = run_together(Check().run, _with_port(contexts(3, options=_PATIENT), 1, port))
    found = [results[f"GPU-{index}"] for index in range(3)]
    for result in found:
        assert isinstance(result, CheckResult)
        faulty = result.gpu == "GPU-1"
        assert reasons_of(result) == [("NCCL_DATA", Verdict.FAIL if faulty else Verdict.INCONCLUSIVE)]
        assert result.reasons[0].details["attributed"] == {"kind": "gpu", "gpus": ["GPU-1"]}
        assert "the fault lies with GPU 1" in result.reasons[0].message
        assert {error["source_gpu"] for error in result.errors} == {"GPU-1"}
    assert [r.reasons[0].action for r in found if isinstance(r, CheckResult)] == ["retest", "repair", "retest"]


def test_a_wrong_addend_is_seen_on_all_and_nobody_is_named_without_proof() -> None:
    port = _Spoiled()
    port.collective = "all_reduce"
    results = run_together(Check().run, _with_port(contexts(2, options=_PATIENT), 1, port))
    for result in results.values():
        assert isinstance(result, CheckResult)
        assert result.reasons[0].details["attributed"] == {"kind": "unknown", "gpus": ["GPU-0", "GPU-1"]}
        assert "unknown which GPU is at fault" in result.reasons[0].message


@pytest.mark.slow
def test_the_rank_that_comes_late_is_named_and_nothing_fails() -> None:
    results = _run(3, {2: "slow_rank"})
    assert [result.verdict for result in results] == [Verdict.PASS] * 3
    assert [coverages.nccl(result).latest_gpu for result in results] == ["GPU-2"] * 3


class _Missing(CpuNccl):
    def version(self) -> str:
        raise NcclMissing("NCCL cannot be loaded: install gpu-burnin[cuda13]")


class _Old(CpuNccl):
    def version(self) -> str:
        return "2.18.1"


class _Replaced(CpuNccl):
    """The library is not that of its package."""

    def expected_version(self) -> str:
        return "2.32.3"


@pytest.mark.parametrize(
    ("port", "code"), [(_Missing(), "NCCL_MISSING"), (_Old(), "NCCL_VERSION"), (_Replaced(), "NCCL_VERSION")]
)
def test_a_library_that_is_missing_or_another_is_inconclusive_on_all(port: CpuNccl, code: str) -> None:
    results = run_together(Check().run, _with_port(contexts(2, options=_PATIENT), 0, port))
    for result in results.values():
        assert isinstance(result, CheckResult)
        assert reasons_of(result) == [(code, Verdict.INCONCLUSIVE)]
        assert coverages.nccl(result).operations_verified == 0


def test_another_version_than_the_configuration_asks_for_is_inconclusive() -> None:
    results = _run(2, options={**_PATIENT, "expect": {"nccl": "2.99.1"}})
    assert [reasons_of(result) for result in results] == [[("NCCL_VERSION", Verdict.INCONCLUSIVE)]] * 2
    assert "2.99.1" in results[0].reasons[0].message


class _NoNvlink(CpuNccl):
    """As a real device that went over shared memory."""

    def transports(self) -> Transports:
        return replace(super().transports(), multicast=False)


class _Real(DeviceWith):
    simulated = False


def test_a_way_around_nvlink_is_refused() -> None:
    made = contexts(2, options=_PATIENT)
    gpus = tuple(replace(one, sku="h100-sxm5-80gb") for one in made[0].gpus)
    for index, ctx in enumerate(made):
        made[index] = replace(ctx, gpus=gpus, gpu=gpus[index], device=_Real(nccl=_NoNvlink))
    for result in run_together(Check().run, made).values():
        assert isinstance(result, CheckResult)
        assert reasons_of(result) == [("NCCL_FALLBACK", Verdict.INCONCLUSIVE)]
        assert "not over NVLink" in result.reasons[0].message


# --- self-test ---


def test_the_selftest_sees_each_fault_in_each_type() -> None:
    results = Check().selftest(context())
    assert len(results) == 8
    assert all(test.injected and test.detected for test in results)
    full = Check().selftest(replace(context(), selftest_full=True))
    assert {test.fault for test in full} == {
        f"{fault} {collective} {kind}"
        for fault in ("wrong_element", "stale") for collective in COLLECTIVES for kind in KINDS
    }  # fmt: skip
    assert all(test.detected for test in full)


class _Blind(CpuNccl):
    def verify(self, op: Any) -> Any:
        return replace(super().verify(op), wrong=0)


class _Crying(CpuNccl):
    def verify(self, op: Any) -> Any:
        return replace(super().verify(op), wrong=op.recv_elements)


@pytest.mark.parametrize("port", [_Blind(), _Crying()])
def test_the_selftest_trusts_no_detector_that_says_always_the_same(port: CpuNccl) -> None:
    (ctx,) = _with_port([context()], 0, port)
    results = Check().selftest(ctx)
    assert results and not any(test.detected for test in results)


# --- real processes ---


def _execute(
    count: int, inject: Sequence[str] = (), deadline_s: float = 60.0, wait_s: float = 3.0, **settings: Any
) -> ExecutionResult:
    made = plan("nccl", gpus=count, inject=tuple(inject), deadline_s=deadline_s)
    return run_plan(limited(replace(made, options={"collective_wait_s": wait_s}), **LIMITS), **settings)


def _by_gpu(result: ExecutionResult) -> dict[str | None, CheckResult]:
    return {found.gpu: found for found in result.results}


@pytest.mark.slow
def test_workers_run_a_ring_of_processes() -> None:
    results = _execute(3, wait_s=PATIENCE_S).results
    assert [reasons_of(result) for result in results] == [[]] * 3
    assert all(coverages.nccl(result).ranks == 3 for result in results)


@pytest.mark.slow
def test_a_rank_that_dies_in_an_operation_is_named_by_the_others() -> None:
    result = _execute(3, ["nccl:dead_rank:gpu=1"])
    assert not result.killed_pids, "nobody was waited for until the deadline of the check"
    found = _by_gpu(result)
    assert reasons_of(found["GPU-1"]) == [("WORKER_DIED", Verdict.FAIL)], "it dies alone, too"
    for uuid in ("GPU-0", "GPU-2"):
        assert reasons_of(found[uuid]) == [("NCCL_TIMEOUT", Verdict.INCONCLUSIVE)]
        reason = found[uuid].reasons[0]
        assert reason.details["missing"] == ["GPU-1"]
        assert "GPU 1" in reason.message and "did not return from all_reduce" in reason.message
    assert all(gone(pid) for pid in result.worker_pids)


@pytest.mark.slow
def test_a_rank_that_hangs_in_an_operation_does_not_hold_up_the_others_for_ever() -> None:
    result = _execute(2, ["nccl:hang_rank:gpu=0"], deadline_s=5.0)
    found = _by_gpu(result)
    assert reasons_of(found["GPU-0"]) == [("HUNG", Verdict.FAIL)]
    assert reasons_of(found["GPU-1"]) == [("NCCL_TIMEOUT", Verdict.INCONCLUSIVE)]
    assert found["GPU-1"].reasons[0].details["missing"] == ["GPU-0"]
    assert all(gone(pid) for pid in result.worker_pids)


# A worker that gets a signal, which no part of the check knows of, when it comes to the first round of all collectives.
_SIGNALLED = """
import os, sys
from gpu_burnin.checks.nccl import session
from gpu_burnin.engine import worker
gpu, number = sys.argv[1], int(sys.argv[2])
collectives = session.Session._all_collectives
def signalled(self, kind, size):
    if self._ctx.gpu.uuid == gpu and len(self._ctx.gpus) > 1 and self.ranks > 1:
        os.kill(os.getpid(), number)
    collectives(self, kind, size)
session.Session._all_collectives = signalled
sys.exit(worker.main())
"""


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_in_its_work_ends_the_check_for_all(
    tmp_path: Path, number: signal.Signals
) -> None:
    """The campaign has it, too (test_collectives.py, "rank killed" and "rank hangs")."""
    (tmp_path / "worker.py").write_text(_SIGNALLED)
    command = [sys.executable, "-P", str(tmp_path / "worker.py"), "GPU-2", str(int(number))]
    result = _execute(3, deadline_s=5.0, wait_s=2.0, command=command)
    found = _by_gpu(result)
    for uuid in ("GPU-0", "GPU-1"):
        assert reasons_of(found[uuid]) == [("NCCL_TIMEOUT", Verdict.INCONCLUSIVE)]
        assert found[uuid].reasons[0].details["missing"] == ["GPU-2"]
    codes = [code for code, _ in reasons_of(found["GPU-2"])]
    # Killed: tried once more, alone, which covers nothing between GPUs. Stopped: its deadline passes.
    assert codes == (["WORKER_DIED", "COVERAGE_LOW"] if number is signal.SIGKILL else ["HUNG"])
    assert all(gone(pid) for pid in result.worker_pids)


def test_the_row_knows_the_faults() -> None:
    assert set(CHECKS["nccl"].faults) == {"wrong_element", "stale", "slow_rank", "hang_rank", "dead_rank"}
