"""The NVLink check where GPUs do not reach each other: by topology, by the host, by a limit, or one way only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.nvlink.check import Check
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.nvlink.port import TOO_MANY_PEERS, NvlinkUnavailable
from gpu_burnin.checks.nvlink.result import Pair
from gpu_burnin.checks.pcie.port import Moved
from gpu_burnin.hardware import load_skus
from gpu_burnin.judge.attribution import judge_links
from gpu_burnin.judge.observations import Findings
from gpu_burnin.system.codec import to_json
from gpu_burnin.telemetry import node_links
from gpu_burnin.telemetry.node_links import GpuLinks, NodeLinks, Source
from gpu_burnin.telemetry.topology import PairTopology
from gpu_burnin.types import CheckResult, Verdict
from tests.support import coverages
from tests.support.engine_helpers import gpu
from tests.support.observed import observed
from tests.support.together_helpers import contexts, results_together


def _run(made: list[CheckContext]) -> dict[str, CheckResult]:
    return results_together(Check().run, made)


def _judged(results: dict[str, CheckResult], count: int) -> Findings:
    return judge_links(observed(results.values(), [gpu(index) for index in range(count)], simulated=True))


def _no_peer_access(status: str) -> Callable[[str, Any], dict[str, PairTopology]]:
    return lambda own, others: {
        other: PairTopology("none", 0, "across NUMA nodes", status, status, status) for other in others
    }


def test_gpus_that_cannot_and_need_not_reach_each_other_are_no_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_burnin.checks.nvlink.check.read_topology", _no_peer_access("topology_not_supported"))
    results = _run(contexts(3))
    for result in results.values():
        assert result.verdict is Verdict.PASS
        assert (coverages.nvlink(result).pairs_total, coverages.nvlink(result).pairs_covered) == (0, 0)
        rows = coverages.nvlink(result).p2p
        assert len(rows) == 2 and all("put them under one PCIe switch" in str(row.why) for row in rows)
    reasons, notices = _judged(results, 3)
    assert reasons == ()
    assert [notice.code for notice in notices] == ["P2P_UNAVAILABLE"]
    assert "need not" in notices[0].message and len(list(notices[0].details["pairs"])) == 3  # type: ignore[arg-type]


def test_models_with_nvlink_to_all_others_must_reach_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_burnin.checks.nvlink.check.read_topology", _no_peer_access("disabled_by_regkey"))
    gpus = tuple(replace(gpu(index), sku="h200-sxm") for index in range(3))
    assert "h200-sxm" in load_skus().skus
    made = [replace(ctx, gpus=gpus, gpu=gpus[i]) for i, ctx in enumerate(contexts(3))]
    reasons, notices = _judged(_run(made), 3)
    assert notices == ()
    (reason,) = reasons
    assert (reason.code, reason.severity, reason.gpu) == ("P2P_UNAVAILABLE", Verdict.FAIL, None)
    assert "setting of the driver" in reason.message and "should" in reason.message
    decided = to_json(NodeLinks({one.uuid: GpuLinks() for one in gpus}, Source.SHAPE, "there is no NVLink"))
    told = _run([replace(ctx, options={node_links.KEY: decided}) for ctx in made])
    reasons, (notice,) = _judged(told, 3)
    assert reasons == () and "need not here" in notice.message
    for result in told.values():
        assert result.verdict is Verdict.PASS
        assert "18 NVLinks" in str(coverages.nvlink(result).no_floor_why), "its floor is that of copies over NVLink"


def test_a_gpu_that_is_reached_but_reaches_not_gives_its_data_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    attach = CpuNvlink.attach

    def one_way(self: CpuNvlink, uuid: str, handle: Any) -> None:
        if (self._own, uuid) == ("GPU-1", "GPU-0"):
            raise NvlinkUnavailable("too many peers")
        attach(self, uuid, handle)

    monkeypatch.setattr(CpuNvlink, "attach", one_way)
    results = _run(contexts(3))
    for result in results.values():
        assert result.errors == () and result.verdict is Verdict.PASS
    rows = coverages.nvlink(results["GPU-0"]).p2p
    row = next(row for row in rows if row.peer == "GPU-1")
    assert row.transfers_checked["read"] > 0 and row.transfers_checked["write"] == 0
    assert [reason.code for reason in _judged(results, 3)[0]] == ["P2P_UNAVAILABLE"]


@pytest.mark.parametrize("where", ["export", "attach"])
def test_what_the_host_refuses_is_not_held_against_the_gpus(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    def refuses(*_: Any) -> None:
        raise NvlinkUnavailable("this driver has no interprocess handles", 801, by_host=True)

    monkeypatch.setattr(CpuNvlink, where, refuses)
    results = _run(contexts(3))
    assert _judged(results, 3) == ((), ())
    for result in results.values():
        assert [(one.code, one.severity) for one in result.reasons] == [("COVERAGE_LOW", Verdict.INCONCLUSIVE)]
        assert "this driver has no interprocess handles" in result.reasons[0].message
        assert (coverages.nvlink(result).pairs_total, coverages.nvlink(result).pairs_covered) == (2, 0)


def test_a_limit_of_every_gpu_is_a_notice(monkeypatch: pytest.MonkeyPatch) -> None:
    attach = CpuNvlink.attach

    def limited(self: CpuNvlink, uuid: str, handle: Any) -> None:
        if {self._own, uuid} == {"GPU-0", "GPU-2"}:
            raise NvlinkUnavailable("the GPU has all the peers it can have", TOO_MANY_PEERS)
        attach(self, uuid, handle)

    monkeypatch.setattr(CpuNvlink, "attach", limited)
    results = _run(contexts(3))
    assert {result.verdict for result in results.values()} == {Verdict.PASS}
    reasons, (notice,) = _judged(results, 3)
    assert reasons == () and notice.details["pairs"] == [["GPU-0", "GPU-2"]]


@pytest.mark.parametrize(("path", "size_bytes"), [("pcie", 4096), ("nvswitch", 1 << 16)])
def test_transfers_fit_into_the_smallest_window_over_pcie(
    monkeypatch: pytest.MonkeyPatch, path: str, size_bytes: int
) -> None:
    seen: list[int] = []
    export = CpuNvlink.export

    def notes(self: CpuNvlink, own: str, peers: Any, size: int, faults: Any = None) -> Any:
        seen.append(size)
        return export(self, own, peers, size, faults)

    monkeypatch.setattr(CpuNvlink, "export", notes)
    monkeypatch.setattr(
        "gpu_burnin.checks.nvlink.check._pairs",
        lambda ctx, by_nvlink, simulated: {
            one.uuid: Pair.of(one.uuid, PairTopology(path), path, True) for one in ctx.gpus if one != ctx.gpu
        },
    )
    # Of two windows with four places, an outbox and an inbox for each of two others, half of the smaller one.
    monkeypatch.setattr("gpu_burnin.checks.nvlink.check.bar1_bytes", lambda uuid: 32768 if uuid == "GPU-1" else None)
    for result in _run(contexts(3)).values():
        assert coverages.nvlink(result).pairs_covered == 2
    assert seen == [size_bytes] * 3


@pytest.mark.parametrize(
    ("rate", "by_nvlink", "path", "codes"),
    [
        (26e9, True, "nvswitch", ["COVERAGE_LOW"]),
        (390e9, True, "nvswitch", []),
        (26e9, True, "pcie", []),
        (26e9, False, "nvlink", []),
    ],
)
def test_nvlink_that_is_no_faster_than_pcie_is_not_shown_to_work(
    monkeypatch: pytest.MonkeyPatch, rate: float, by_nvlink: bool, path: str, codes: list[str]
) -> None:
    finish = CpuNvlink.finish

    def takes(self: CpuNvlink) -> Moved:
        moved = finish(self)
        return Moved(moved.bytes, moved.bytes / rate)

    monkeypatch.setattr(CpuNvlink, "finish", takes)
    others = frozenset(one.uuid for one in contexts(3)[0].gpus) if by_nvlink else frozenset()
    monkeypatch.setattr("gpu_burnin.checks.nvlink.check._by_nvlink", lambda ctx: others)
    monkeypatch.setattr(
        "gpu_burnin.checks.nvlink.check._pairs",
        lambda ctx, by_nvlink, simulated: {
            one.uuid: Pair.of(one.uuid, PairTopology(path), path, True) for one in ctx.gpus if one != ctx.gpu
        },
    )
    for result in _run(contexts(3)).values():
        assert [reason.code for reason in result.reasons] == codes
        assert result.verdict is (Verdict.INCONCLUSIVE if codes else Verdict.PASS)
