"""Nodes that are kept from work while they are tested: which are taken, until when, and how they come back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from gpu_burnin.admission.view import Node, Pod
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Ask, Identity, NodeAdmission, Request, Spec, State, Status
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.fabric.keep import InLedger, refusal, work
from gpu_burnin.fleet.repair.cluster import Cluster
from gpu_burnin.system.clock import parse_rfc3339, rfc3339_s

ME, RUN = "muster:admin", "6f1d9c0e-5a6b-4c3d-8e2f-000000000001"
NOW = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC)


def record(name: str, state: State = State.READY, **spec: Any) -> NodeAdmission:
    made = Spec(identity=Identity(host_key="", machine_id="", addresses=()), **spec)
    return NodeAdmission(name, made, Status(state=state), "1")


def ask(who: str = "ann", why: str = "cables", **more: Any) -> Ask:
    return Ask(who, why, rfc3339_s(NOW - timedelta(hours=1)), **more)


@dataclass
class Ledger:
    """A cluster whose admitter holds what is asked for at once, unless it is `slow`."""

    entries: dict[str, NodeAdmission]
    work: dict[str, list[Pod]] = field(default_factory=dict)
    tainted: set[str] = field(default_factory=set)
    pause: str = ""
    slow: bool = False
    writes: list[str] = field(default_factory=list)
    me: str = ME

    def paused(self) -> str:
        return self.pause

    def records(self) -> dict[str, NodeAdmission]:
        return dict(self.entries)

    def nodes(self) -> dict[str, Node]:
        taints = {True: [{"key": Names().maintenance, "effect": "NoSchedule"}], False: []}
        return {
            name: {"metadata": {"name": name}, "spec": {"taints": taints[name in self.tainted]}}
            for name in self.entries
        }

    def pods_by_node(self) -> dict[str, list[Pod]]:
        return self.work

    def change(self, name: str, asks: Callable[[NodeAdmission], Mapping[str, Any] | None]) -> bool:
        wanted = asks(self.entries[name])
        if wanted is None:
            return False
        self.writes.append(name)
        entry = self.entries[name]
        entry = replace(entry, spec=replace(entry.spec, **wanted))
        state = entry.status.state
        if not self.slow:
            state = State.HELD if entry.spec.hold else State.READY
        self.entries[name] = replace(entry, status=replace(entry.status, state=state))
        return True


@dataclass
class Clock:
    s: float = 0.0

    def sleep(self, seconds: float) -> None:
        self.s += seconds

    @property
    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.s)


def keeper(ledger: Ledger, clock: Clock | None = None) -> InLedger:
    made = clock or Clock()
    return InLedger(cast(Cluster, ledger), Names(), RUN, lambda: made.now, lambda: made.s, made.sleep)


def test_idle_nodes_are_held_until_a_time_and_given_back() -> None:
    ledger = Ledger({name: record(name) for name in ("gpu-1", "gpu-2", "gpu-3")})
    keep = keeper(ledger)
    assert keep.take(["gpu-1", "gpu-2"], 300.0) == {}
    hold = ledger.entries["gpu-1"].spec.hold
    assert hold is not None and (hold.who, hold.why) == (ME, f"fabric run {RUN}")
    # A controller that dies leaves no node out for good.
    assert parse_rfc3339(hold.until) == NOW + timedelta(seconds=4200)
    assert ledger.entries["gpu-3"].spec.hold is None
    keep.release({})
    assert all(entry.spec.hold is None for entry in ledger.entries.values())


def test_a_node_on_which_a_test_may_go_on_is_given_back_by_time() -> None:
    ledger = Ledger({name: record(name) for name in ("gpu-1", "gpu-2")})
    keep = keeper(ledger)
    keep.take(["gpu-1", "gpu-2"], 300.0)
    keep.release({"gpu-2": 191.0})
    hold = ledger.entries["gpu-2"].spec.hold
    assert hold is not None and parse_rfc3339(hold.until) == NOW + timedelta(seconds=191)
    assert ledger.entries["gpu-1"].spec.hold is None


def test_all_are_given_back_but_the_one_that_cannot_be_and_another_runs_nodes_stay() -> None:
    class Stubborn(Ledger):
        broken = False

        def change(self, name: str, asks: Callable[[NodeAdmission], Mapping[str, Any] | None]) -> bool:
            if self.broken and name == "gpu-1":
                raise GpuBurninError("gpu-1: it is gone")
            return super().change(name, asks)

    ledger = Stubborn({name: record(name) for name in ("gpu-1", "gpu-2", "gpu-3")})
    other = ask(ME, "fabric run another", until="2099-01-01T00:00:00Z")
    ledger.entries["gpu-3"] = record("gpu-3", State.HELD, hold=other)
    keep = keeper(ledger)
    keep.take(["gpu-1", "gpu-2"], 300.0)
    ledger.broken = True
    with pytest.raises(GpuBurninError, match=r"gpu-1: still kept from work, until .* gpu-1: it is gone"):
        keep.release({})
    assert ledger.entries["gpu-2"].spec.hold is None and ledger.entries["gpu-3"].spec.hold == other


def test_a_hold_is_renewed_when_the_next_round_needs_it_longer_and_not_before() -> None:
    ledger, clock = Ledger({"gpu-1": record("gpu-1")}), Clock()
    keep = keeper(ledger, clock)
    for _ in range(3):
        keep.take(["gpu-1"], 300.0)
    assert ledger.writes == ["gpu-1"]
    clock.s = 3600.0
    keep.take(["gpu-1"], 300.0)
    hold = ledger.entries["gpu-1"].spec.hold
    assert hold is not None and parse_rfc3339(hold.until) == NOW + timedelta(seconds=3600 + 4200)


def test_nodes_with_work_are_left_and_nobody_is_drained() -> None:
    pods = [Pod("team", "train-0", "u", gpus=8), Pod("team", "done-0", "v", gpus=8, ended=True)]
    ledger = Ledger({name: record(name) for name in ("gpu-1", "gpu-2")}, work={"gpu-2": pods})
    assert keeper(ledger).take(["gpu-1", "gpu-2"], 300.0) == {"gpu-2": "it has work: team/train-0"}
    assert ledger.entries["gpu-2"].spec.hold is None, "it is given back at once"
    assert work([pods[1]]) == ""


def test_work_that_came_when_a_hold_had_ended_is_seen() -> None:
    ledger, clock = Ledger({"gpu-1": record("gpu-1")}), Clock()
    keep = keeper(ledger, clock)
    keep.take(["gpu-1"], 300.0)
    clock.s = 9000.0
    ledger.entries["gpu-1"] = replace(ledger.entries["gpu-1"], status=Status(state=State.READY))
    ledger.work = {"gpu-1": [Pod("team", "train-0", "u", gpus=8)]}
    assert keep.take(["gpu-1"], 300.0) == {"gpu-1": "it has work: team/train-0"}


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (None, "the cluster has no NodeAdmission of this name; run site.yml"),
        (record("gpu-1", State.HELD, hold=ask()), "ann asked for its hold at 2026-11-28T11:00:00Z (cables)"),
        (record("gpu-1", State.HELD, hold=ask(ME, "cables")), f"{ME} asked for its hold"),
        (record("gpu-1", State.QUARANTINED, quarantine=ask()), "ann asked for its quarantine"),
        (record("gpu-1", State.REPAIRING, repair=ask()), "ann asked for its repair"),
        (record("gpu-1", retest=ask()), "ann asked for its test (cables), which comes first"),
        (record("gpu-1", State.TESTING), "it is being tested"),
        (record("gpu-1", State.NEW), "it is new: its own burn-in comes first"),
    ],
)
def test_who_is_in_other_hands_is_left_out_with_the_reason(entry: NodeAdmission | None, says: str) -> None:
    assert refusal(entry, ME, NOW).startswith(says)


@pytest.mark.parametrize(
    "entry",
    [
        record("gpu-1"),
        record("gpu-1", State.EXPIRING),
        record("gpu-1", State.READY, hold=ask(until=rfc3339_s(NOW))),
        record("gpu-1", retest=ask(until=rfc3339_s(NOW))),
        # A run that was killed: the next one takes its nodes over.
        record("gpu-1", State.HELD, hold=ask(ME, "fabric run another")),
        record("gpu-1", State.HELD),
    ],
)
def test_who_is_in_nobodys_hands_is_taken(entry: NodeAdmission) -> None:
    assert refusal(entry, ME, NOW) == ""


def test_a_maintenance_window_a_pause_and_a_slow_admitter_keep_tests_away() -> None:
    ledger = Ledger({name: record(name) for name in ("gpu-1", "gpu-2")}, tainted={"gpu-2"})
    left = keeper(ledger).take(["gpu-1", "gpu-2"], 300.0)
    assert list(left) == ["gpu-2"] and "a maintenance window is near or open" in left["gpu-2"]
    slow = Ledger({"gpu-1": record("gpu-1")}, slow=True)
    left = keeper(slow).take(["gpu-1"], 300.0)
    assert "the admitter has not kept new work away within 60 s" in left["gpu-1"]
    assert slow.entries["gpu-1"].spec.hold is None
    with pytest.raises(GpuBurninError, match="the fleet is paused \\(ann: network\\)"):
        keeper(Ledger({}, pause="ann: network")).take(["gpu-1"], 300.0)


def test_a_burn_in_that_was_asked_for_comes_first() -> None:
    entry = record("gpu-1")
    request = cast(Request, object())
    assert refusal(replace(entry, status=replace(entry.status, request=request)), ME, NOW) == "it is being tested"
