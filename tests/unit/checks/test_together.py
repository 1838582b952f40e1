"""What checks of several GPUs share: members, turns, a common start."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import pytest

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.together import Group
from gpu_burnin.device.port import DeviceError
from gpu_burnin.types import CheckResult, Coverage, Verdict
from tests.support.engine_helpers import context
from tests.support.together_helpers import contexts, run_together


@dataclass(frozen=True, kw_only=True)
class _Told(Coverage):
    entries: Mapping[str, object]


def _done(ctx: CheckContext, **entries: object) -> CheckResult:
    uuid = ctx.gpu.uuid if ctx.gpu else None
    return CheckResult("x", uuid, Verdict.PASS, 0.0, coverage=_Told(entries=entries))


def _coverage(results: dict[str, CheckResult | Exception]) -> dict[str, object]:
    assert not [result for result in results.values() if isinstance(result, Exception)]
    told = {uuid: result.coverage for uuid, result in results.items() if isinstance(result, CheckResult)}
    return {uuid: dict(coverage.entries) if isinstance(coverage, _Told) else {} for uuid, coverage in told.items()}


def test_all_get_what_all_gave_and_the_shortest_budget() -> None:
    def run(ctx: CheckContext) -> CheckResult:
        group = Group(ctx)
        return _done(ctx, rank=group.rank, seen=dict(group.gather(group.rank * 10)), budget_s=group.budget_s)

    made = contexts(3)
    made[1] = replace(made[1], budget_s=5.0)
    made[2] = replace(made[2], budget_s=3.0)
    everybody = {"GPU-0": 0, "GPU-1": 10, "GPU-2": 20}
    expected = {f"GPU-{i}": {"rank": i, "seen": everybody, "budget_s": 0.0} for i in range(3)}
    assert _coverage(run_together(run, made)) == expected


def test_a_member_that_dies_falls_out_and_the_others_go_on() -> None:
    def run(ctx: CheckContext) -> CheckResult:
        group = Group(ctx)
        if group.rank == 1:
            raise RuntimeError("gone")
        group.barrier()
        return _done(ctx, members=group.members, lost=group.lost, rank=group.rank)

    results = run_together(run, contexts(3))
    assert isinstance(results.pop("GPU-1"), RuntimeError)
    left = {"members": ("GPU-0", "GPU-2"), "lost": ("GPU-1",)}
    assert _coverage(results) == {"GPU-0": {**left, "rank": 0}, "GPU-2": {**left, "rank": 1}}


def test_turns_never_overlap() -> None:
    working: list[str] = []
    seen: list[tuple[str, ...]] = []

    def run(ctx: CheckContext) -> CheckResult:
        group = Group(ctx)
        for uuid in group.turns():
            if uuid == group.uuid:
                working.append(uuid)
                seen.append(tuple(working))
                working.remove(uuid)
        return _done(ctx)

    _coverage(run_together(run, contexts(3)))
    assert seen == [("GPU-0",), ("GPU-1",), ("GPU-2",)]


def test_a_turn_of_a_member_that_dies_ends_with_it() -> None:
    def run(ctx: CheckContext) -> CheckResult:
        group, turns = Group(ctx), []
        for uuid in group.turns():
            turns.append(uuid)
            if uuid == group.uuid == "GPU-1":
                raise RuntimeError("gone")
        return _done(ctx, turns=turns)

    results = run_together(run, contexts(3))
    assert isinstance(results.pop("GPU-1"), RuntimeError)
    turns = {"turns": ["GPU-0", "GPU-1", "GPU-2"]}
    assert _coverage(results) == {"GPU-0": turns, "GPU-2": turns}


def test_the_start_is_common_and_lies_ahead() -> None:
    def run(ctx: CheckContext) -> CheckResult:
        start_s = Group(ctx).start_s(30.0)
        return _done(ctx, start_s=start_s, ahead=start_s > time.monotonic())

    found = _coverage(run_together(run, contexts(3)))
    starts = {coverage["start_s"] for coverage in found.values() if isinstance(coverage, dict)}
    assert len(starts) == 1
    assert all(isinstance(coverage, dict) and coverage["ahead"] for coverage in found.values())


def test_members_out_of_step_are_refused() -> None:
    ctx = context()
    group = Group(ctx)
    group.barrier()
    with pytest.raises(DeviceError, match="out of step"):
        Group(replace(ctx, exchange=lambda _: {"GPU-0": {"step": 9, "data": None}}))
    with pytest.raises(DeviceError, match="no part"):
        Group(replace(ctx, exchange=lambda _: {}))
