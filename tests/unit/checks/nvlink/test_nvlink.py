"""The NVLink check on the CPU device: real copies between simulated GPUs, a thread for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks import CheckContext, together
from gpu_burnin.checks.nvlink import check as nvlink_check
from gpu_burnin.checks.nvlink import phases as nvlink_phases
from gpu_burnin.checks.nvlink.check import Check
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.nvlink.pairs import expected, moved_bytes
from gpu_burnin.checks.nvlink.phases import MOST_ERRORS, Phases, pairings
from gpu_burnin.checks.nvlink.port import DATA_FAULTS
from gpu_burnin.checks.nvlink.result import Pair
from gpu_burnin.checks.pcie.port import Moved
from gpu_burnin.device.port import DeviceError
from gpu_burnin.judge.attribution import judge_links
from gpu_burnin.judge.coverage import judge_coverage, missed_fault_rate
from gpu_burnin.judge.observations import Findings
from gpu_burnin.telemetry.topology import PairTopology
from gpu_burnin.types import CheckResult, Verdict
from tests.support import clocks, coverages
from tests.support.copy_time import own_copy_time
from tests.support.engine_helpers import context, gpu
from tests.support.observed import observed
from tests.support.together_helpers import contexts, results_together, run_together


def _run(made: list[CheckContext]) -> dict[str, CheckResult]:
    return results_together(Check().run, made)


def _judged(results: dict[str, CheckResult], count: int) -> Findings:
    return judge_links(observed(results.values(), [gpu(index) for index in range(count)], simulated=True))


def _injected(count: int, fault: str, on: int = 0) -> list[CheckContext]:
    made = contexts(count)
    made[on] = replace(made[on], inject=(fault,))
    return made


def _open_memory() -> list[str]:
    """Files of copies that this process still has open."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [str(link.readlink()) for link in links if "gpu-burnin-nvlink" in str(link.readlink())]


@pytest.mark.parametrize("count", [2, 3, 5])
def test_healthy_gpus_cover_every_pair_both_ways(count: int) -> None:
    results = _run(contexts(count))
    assert len(results) == count
    for uuid, result in results.items():
        assert result.verdict is Verdict.PASS, result.reasons
        assert (coverages.nvlink(result).pairs_total, coverages.nvlink(result).pairs_covered) == (count - 1, count - 1)
        rows = coverages.nvlink(result).p2p
        assert {row.peer for row in rows} == set(results) - {uuid}
        for row in rows:
            assert row.verified is True and row.why is None and row.path == "host memory"
            assert row.write_bytes_per_s > 0 and row.read_bytes_per_s > 0
        assert {m.name for m in result.measurements} == {"p2p", "p2p_slowest"}
        assert coverages.nvlink(result).simulated is True
        assert coverages.nvlink(result).bytes_verified > 0
    assert _judged(results, count)[0] == ()
    assert _open_memory() == []


@pytest.fixture
def own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time passes by looking at the clock, 1 ms a look: a budget is a number of copies on any machine."""
    clocks.use(monkeypatch, clocks.LookClock(0.001), nvlink_check, nvlink_phases, together)


@pytest.fixture(name="own_copy_time")
def _own_copy_time(monkeypatch: pytest.MonkeyPatch) -> None:
    own_copy_time(monkeypatch)


@pytest.mark.slow
@pytest.mark.usefixtures("own_time")
def test_time_that_is_left_brings_more_rounds() -> None:
    one, more = _run(contexts(2)), _run(contexts(2, budget_s=0.4))
    assert {coverages.nvlink(result).rounds for result in one.values()} == {1}
    rounds = {coverages.nvlink(result).rounds for result in more.values()}
    assert len(rounds) == 1 and int(str(rounds.pop())) > 1


@pytest.mark.slow
@pytest.mark.usefixtures("own_time")
def test_time_in_peace_brings_more_copies_and_each_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_burnin.checks.nvlink.check.Phases.disjoint_pairs", lambda self: None)
    monkeypatch.setattr("gpu_burnin.checks.nvlink.check.Phases.all_at_once", lambda self: None)
    few, more = _run(contexts(3)), _run(contexts(3, budget_s=0.3))
    for uuid, result in few.items():
        # Four rounds, each way, with two others.
        assert (coverages.nvlink(result).copies_moved, coverages.nvlink(result).copies_verified) == (16, 16)
        coverage = coverages.nvlink(more[uuid])
        assert coverage.copies_moved == coverage.copies_verified
        assert coverage.copies_verified > 16


def test_what_the_other_did_not_look_at_counts_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPU 1 looks at nothing that GPU 0 writes: of that way GPU 0 has no verified time, and so bounds no fault."""
    sources = Phases._sources
    monkeypatch.setattr(
        Phases,
        "_sources",
        lambda self, direction: () if (self._group.uuid, direction) == ("GPU-1", "write") else sources(self, direction),
    )
    result = _run(contexts(2))["GPU-0"]
    assert result.verdict is Verdict.PASS
    parts = coverages.nvlink(result).verified_parts_s
    assert parts["write GPU-1"] == 0.0 < parts["read GPU-1"] == coverages.nvlink(result).verified_s
    assert missed_fault_rate(result) is None
    # Four in peace, then one in each phase; of the pairs that share no GPU only writes.
    assert (coverages.nvlink(result).copies_moved, coverages.nvlink(result).copies_verified) == (11, 5)
    (reason,) = judge_coverage(observed([result], [gpu()])).reasons
    assert "45.5% was verified" in reason.message


def test_one_gpu_has_no_pair_and_that_is_said() -> None:
    result = Check().run(context())
    assert result.verdict is Verdict.PASS
    assert coverages.nvlink(result).pairs_total == 0
    assert "no pair of GPUs" in str(coverages.nvlink(result).why)
    assert judge_coverage(observed([result], [gpu()])).reasons == (), "nothing to copy is no lack of coverage"


def test_without_a_device_the_caller_is_told() -> None:
    with pytest.raises(DeviceError, match="needs a device"):
        Check().run(replace(context(), device=None))


@pytest.mark.slow
@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_wrong_data_is_seen_where_it_arrives_and_blamed_on_the_link(fault: str) -> None:
    results = _run(_injected(4, fault))
    # GPU 0 copies wrongly with GPU 1: what it writes arrives there, what it reads arrives here.
    seen = {(uuid, str(e["peer"]), str(e["direction"])) for uuid, r in results.items() for e in r.errors}
    assert seen == {("GPU-1", "GPU-0", "write"), ("GPU-0", "GPU-1", "read")}
    assert {e["kind"] for result in results.values() for e in result.errors} == {fault}
    for uuid in ("GPU-0", "GPU-1"):
        assert results[uuid].verdict is Verdict.INCONCLUSIVE
        assert [reason.code for reason in results[uuid].reasons] == ["P2P_CORRUPTED"]
    assert results["GPU-2"].verdict is results["GPU-3"].verdict is Verdict.PASS
    reasons, _ = _judged(results, 4)
    (reason,) = reasons
    assert (reason.code, reason.severity, reason.gpu) == ("P2P_CORRUPTED", Verdict.FAIL, None)
    told: Any = reason.details["attributed"]
    assert (told["kind"], told["gpus"], told["problem"]) == ("link", ["GPU-0", "GPU-1"], "wrong")


def test_an_error_names_the_place_and_both_values() -> None:
    results = _run(_injected(2, "corrupted"))
    entry = results["GPU-1"].errors[0]
    expected_word, got = int(str(entry["expected"]), 16), int(str(entry["got"]), 16)
    assert expected_word ^ got == 1 << 17
    assert entry["wrong_words"] == 1 and entry["piece"] == 5
    piece_bytes = contexts(1)[0].shapes["transfer_bytes"] // 8
    assert entry["offset_bytes"] == 5 * piece_bytes + 8


@pytest.mark.slow
@pytest.mark.usefixtures("own_time")
def test_errors_are_counted_in_full_and_listed_up_to_a_limit() -> None:
    made = _injected(2, "reordered")
    results = _run([replace(ctx, budget_s=0.5) for ctx in made])
    rows = coverages.nvlink(results["GPU-1"]).p2p
    assert len(results["GPU-1"].errors) == MOST_ERRORS
    assert rows[0].transfers_wrong["write"] > MOST_ERRORS // 2


def test_a_dead_link_fails_and_is_named() -> None:
    results = _run(_injected(4, "dead_link", on=1))
    for uuid, peer in (("GPU-1", "GPU-2"), ("GPU-2", "GPU-1")):
        rows = coverages.nvlink(results[uuid]).p2p
        row = next(row for row in rows if row.peer == peer)
        assert row.write_bytes_per_s is None and row.verified is False and row.why
        assert (coverages.nvlink(results[uuid]).pairs_total, coverages.nvlink(results[uuid]).pairs_covered) == (3, 2)
    (reason,) = _judged(results, 4)[0]
    told: Any = reason.details["attributed"]
    assert (reason.code, reason.severity) == ("P2P_UNAVAILABLE", Verdict.FAIL)
    assert (told["kind"], told["gpus"], told["problem"]) == ("link", ["GPU-1", "GPU-2"], "dead")


@pytest.mark.usefixtures("own_copy_time")
def test_a_slow_link_is_a_warning_that_names_it() -> None:
    results = _run(_injected(4, "slow_link", on=2))
    reasons, notices = _judged(results, 4)
    assert reasons == ()
    told: Any = [notice.details["attributed"] for notice in notices]
    assert [(one["kind"], one["gpus"], one["problem"]) for one in told] == [("link", ["GPU-2", "GPU-3"], "slow")]


@pytest.mark.usefixtures("own_copy_time")
def test_a_slow_gpu_is_a_warning_that_names_it() -> None:
    results = _run(_injected(4, "slow_gpu", on=2))
    reasons, notices = _judged(results, 4)
    assert reasons == ()
    assert [(notice.code, notice.gpu) for notice in notices] == [("P2P_GPU_SLOW", "GPU-2")]


def test_a_worker_that_dies_leaves_its_pairs_uncovered_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = CpuNvlink.begin

    def dies(self: CpuNvlink, uuid: str, direction: Any, copies: int = 1) -> None:
        if self._own == "GPU-1" and uuid == "GPU-2":
            raise KeyboardInterrupt  # as sudden as a signal: nothing of the check runs on
        begin(self, uuid, direction, copies)

    monkeypatch.setattr(CpuNvlink, "begin", dies)
    monkeypatch.setattr("threading.excepthook", lambda _: None)
    results = run_together(Check().run, contexts(3))
    assert "GPU-1" not in results
    for uuid in ("GPU-0", "GPU-2"):
        result = results[uuid]
        assert isinstance(result, CheckResult)
        assert (coverages.nvlink(result).pairs_total, coverages.nvlink(result).pairs_covered) == (2, 1)
        rows = coverages.nvlink(result).p2p
        lost = next(row for row in rows if row.peer == "GPU-1")
        assert "worker ended" in str(lost.why)
    found = {uuid: result for uuid, result in results.items() if isinstance(result, CheckResult)}
    # That a worker died has its own reason; no link is accused of it.
    assert _judged(found, 3) == ((), ())
    assert _open_memory() == []


def test_an_attempt_without_the_others_is_inconclusive() -> None:
    (_, one) = contexts(2)
    (result,) = _run([one]).values()
    assert result.verdict is Verdict.INCONCLUSIVE
    assert [reason.code for reason in result.reasons] == ["COVERAGE_LOW"]
    assert (coverages.nvlink(result).pairs_total, coverages.nvlink(result).pairs_covered) == (1, 0)


def test_a_worker_that_ended_before_is_no_dead_link() -> None:
    results = _run(contexts(3)[1:])
    assert {coverages.nvlink(result).pairs_covered for result in results.values()} == {1}
    assert _judged(results, 3) == ((), ())


def test_the_first_error_is_the_one_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(what: str) -> Callable[..., None]:
        def call(*_: Any) -> None:
            raise DeviceError(what)

        return call

    monkeypatch.setattr(CpuNvlink, "begin", fails("the copy failed"))
    monkeypatch.setattr(CpuNvlink, "abandon", fails("and so did giving back"))
    monkeypatch.setattr(CpuNvlink, "export", lambda self, *_: {})
    monkeypatch.setattr(CpuNvlink, "attach", lambda *_: None)
    monkeypatch.setattr(CpuNvlink, "fill", lambda *_: None)
    monkeypatch.setattr(CpuNvlink, "clear", lambda *_: None)
    results = run_together(Check().run, contexts(2))
    assert str(results["GPU-0"]) == "the copy failed"  # it has the first turn


def test_memory_that_others_may_have_mapped_is_not_freed_when_it_goes_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[tuple[str, str]] = []
    verify = CpuNvlink.verify

    def fails(self: CpuNvlink, uuid: str, key: int) -> Any:
        if self._own == "GPU-1":
            raise DeviceError("the device is gone")
        return verify(self, uuid, key)

    monkeypatch.setattr(CpuNvlink, "verify", fails)
    close = CpuNvlink.close
    for name in ("abandon", "close"):
        monkeypatch.setattr(CpuNvlink, name, lambda self, name=name: (ended.append((self._own, name)), close(self)))
    results = run_together(Check().run, contexts(3))
    assert str(results["GPU-1"]) == "the device is gone"
    # The close of export, which starts afresh, has no name yet.
    assert sorted(end for end in ended if end[0]) == [("GPU-0", "close"), ("GPU-1", "abandon"), ("GPU-2", "close")]


def test_a_pair_whose_copies_took_no_time_is_not_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = CpuNvlink.finish

    def timeless(self: CpuNvlink) -> Moved:
        return Moved(finish(self).bytes, 0.0)

    monkeypatch.setattr(CpuNvlink, "finish", timeless)
    assert {coverages.nvlink(result).pairs_covered for result in _run(contexts(2)).values()} == {0}


def test_a_first_copy_that_is_slow_to_set_up_is_not_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    finish = CpuNvlink.finish
    seen: dict[str, int] = {}

    def warms_up(self: CpuNvlink) -> Moved:
        seen[self._own] = seen.get(self._own, 0) + 1
        return Moved(finish(self).bytes, 0.2 if seen[self._own] < 3 else 0.01)

    monkeypatch.setattr(CpuNvlink, "finish", warms_up)
    monkeypatch.setattr(CpuNvlink, "detach_all", lambda self: None)
    for result in _run(contexts(2)).values():
        rows = coverages.nvlink(result).p2p
        assert rows[0].write_bytes_per_s == rows[0].read_bytes_per_s == (1 << 16) / 0.01


@pytest.mark.parametrize(
    ("pair", "by_nvlink", "simulated", "wanted"),
    [
        (PairTopology(), True, False, True),
        (PairTopology("none", read="not_supported", write="not_supported"), True, False, True),
        (PairTopology("pcie", read="ok", write="ok"), False, False, True),
        (PairTopology("none", read="not_supported", write="ok"), False, False, False),
        (PairTopology("nvlink", read="not_supported", write="ok"), False, False, True),
        (PairTopology(), False, True, True),
        (PairTopology(), False, False, False),
    ],
)
def test_who_must_reach_whom(pair: PairTopology, by_nvlink: bool, simulated: bool, wanted: bool) -> None:
    assert expected(pair, by_nvlink, simulated) is wanted


def test_bytes_are_counted_by_the_kind_of_link() -> None:
    paths = {"a": "nvswitch", "b": "pcie", "c": "nvlink"}
    pairs = [Pair.of(uuid, PairTopology(), path, True) for uuid, path in paths.items()]
    assert moved_bytes(pairs, {"a": 5, "b": 7}, {"a": 100, "b": 200, "c": 300}) == (405, 207)


@pytest.mark.parametrize("count", range(2, 17))
def test_disjoint_pairs_meet_exactly_once(count: int) -> None:
    members = [f"GPU-{index}" for index in range(count)]
    steps = pairings(members)
    met = [frozenset(pair) for step in steps for pair in step.items()]
    assert len(steps) == (count - 1 if count % 2 == 0 else count)
    assert all(partners[partners[one]] == one for partners in steps for one in partners)
    assert len(met) == count * (count - 1) and len(set(met)) == count * (count - 1) // 2


@pytest.mark.parametrize(("full", "count"), [(False, 2), (True, 8)])
def test_the_selftest_sees_every_fault(full: bool, count: int) -> None:
    results = Check().selftest(replace(context(), selftest_full=full))
    assert len(results) == count and all(test.injected and test.detected for test in results)
    assert {test.changed_bits for test in results if test.fault.startswith("corrupted")} == {1}
    assert _open_memory() == []


@pytest.mark.parametrize("answer", ["never", "always"])
def test_a_blind_comparison_does_not_pass_the_selftest(monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    verify = CpuNvlink.verify

    def broken(self: CpuNvlink, uuid: str, key: int) -> Any:
        return () if answer == "never" else verify(self, uuid, key + 1)

    monkeypatch.setattr(CpuNvlink, "verify", broken)
    results = Check().selftest(context())
    assert results and not any(test.detected for test in results)
