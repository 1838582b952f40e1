"""The brakes: how many nodes the admitter changes by itself, and how fast."""

from __future__ import annotations

import heapq
import itertools
import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gpu_burnin.admission.service.budgets import GRANTED, Budgets, Pace
from gpu_burnin.admission.service.cache import HELD_BACK, Records
from gpu_burnin.admission.view import Budget, Rules
from gpu_burnin.api.levels import LEVELS
from gpu_burnin.api.names import Names
from gpu_burnin.system.clock import rfc3339
from tests.support.clocks import HandClock

ACCEPTED = {"sequence": 1}
RESTORED_AT = "2026-11-21T11:59:00Z"
VERSIONS = itertools.count(1)


def put(records: Records, name: str, state: str, spec: dict[str, Any] | None = None, **status: Any) -> None:
    """One record as the cluster has it."""
    version = str(next(VERSIONS))
    status = {"state": state, **status}
    records.put({"metadata": {"name": name, "resourceVersion": version}, "spec": spec or {}, "status": status})


@pytest.fixture
def records() -> Records:
    found = Records(Names())
    for number in range(20):
        put(found, f"n{number:02}", "ready")
    return found


@pytest.fixture
def clock() -> HandClock:
    return HandClock(100.0)


@pytest.fixture
def budgets(records: Records, clock: HandClock) -> Budgets:
    return Budgets(records, 2.0, 0.2, 0.05, lambda fleet: 2, clock)


def granted(budgets: Budgets, budget: Budget, *names: str) -> list[bool]:
    return [budgets.ask(budget, name) is GRANTED for name in names]


def test_a_fifth_of_the_fleet_and_no_more_is_kept_from_work(budgets: Budgets, records: Records) -> None:
    names = [f"n{number:02}" for number in range(6)]
    assert granted(budgets, Budget.GATE, *names) == [True] * 4 + [False] * 2
    # Asking again takes no second place, and what the record shows takes the same one.
    assert granted(budgets, Budget.GATE, names[0]) == [True]
    for name in names[:4]:
        put(records, name, "suspect", accepted={"sequence": 1})
        budgets.settled(name)
    assert budgets.gated() == 4
    refusal = budgets.ask(Budget.GATE, names[4])
    assert "4 of 20 nodes" in refusal.why and refusal.after_s > 0
    put(records, names[0], "ready", accepted={"sequence": 1})
    assert granted(budgets, Budget.GATE, names[4], names[5]) == [True, False]


@pytest.mark.parametrize(
    ("state", "spec", "status"),
    [
        ("testing", {}, {"accepted": ACCEPTED}),  # a new boot
        ("held", {"hold": {"who": "x"}}, {"accepted": ACCEPTED}),
        ("quarantined", {"quarantine": {"who": "x"}}, {"accepted": ACCEPTED}),
        ("quarantined", {}, {}),  # never let in
    ],
)
def test_boots_people_and_first_joins_take_no_place(
    budgets: Budgets, records: Records, state: str, spec: dict[str, Any], status: dict[str, Any]
) -> None:
    for number in range(10):
        put(records, f"n{number:02}", state, spec, **status)
    assert budgets.gated() == 0
    assert granted(budgets, Budget.GATE, "n19") == [True]


def test_an_ask_that_is_over_frees_its_place_no_longer(budgets: Budgets, records: Records) -> None:
    over = {"hold": {"who": "x", "until": "2026-01-01T00:00:00Z"}}
    for number in range(4):
        put(records, f"n{number:02}", "quarantined", over, accepted=ACCEPTED)
    assert budgets.gated() == 4 and granted(budgets, Budget.GATE, "n19") == [False]


def test_old_evidence_has_a_smaller_share_within_the_larger(budgets: Budgets, records: Records) -> None:
    assert granted(budgets, Budget.EXPIRE, "n00", "n01") == [True, False]
    put(records, "n00", "expiring", accepted=ACCEPTED)
    budgets.settled("n00")
    assert granted(budgets, Budget.GATE, "n02", "n03", "n04", "n05") == [True, True, True, False]
    budgets.settled("n00")
    put(records, "n00", "ready", accepted=ACCEPTED)
    put(records, "n06", "suspect", accepted=ACCEPTED)
    assert granted(budgets, Budget.EXPIRE, "n01") == [False]


def test_a_small_fleet_may_lose_one(clock: HandClock) -> None:
    records = Records(Names())
    for name in ("a", "b", "c"):
        put(records, name, "ready")
    budgets = Budgets(records, 2.0, 0.2, 0.05, lambda fleet: 1, clock)
    assert granted(budgets, Budget.GATE, "a", "b") == [True, False]


def test_joins_have_each_their_own_moment(budgets: Budgets, clock: HandClock) -> None:
    names = [f"j{number}" for number in range(5)]
    assert granted(budgets, Budget.JOIN, *names) == [True] + [False] * 4
    waits = [budgets.ask(Budget.JOIN, name).after_s for name in names[1:]]
    assert waits == pytest.approx([0.5, 1.0, 1.5, 2.0])
    budgets.settled(names[0])
    clock.now_s += 0.5
    # Who has leave and asks again, as after a look that was cut short, keeps it.
    assert granted(budgets, Budget.JOIN, names[1], names[1], names[2]) == [True, True, False]


def test_a_node_whose_writes_fail_takes_no_place_from_the_others(budgets: Budgets, clock: HandClock) -> None:
    for number in range(20):
        assert granted(budgets, Budget.JOIN, f"n{number}") == [True]
        budgets.broke_off(f"n{number}")
        clock.now_s += 0.5


@pytest.mark.parametrize(("per_s", "most", "span_s"), [(50.0, 50, 1.0), (5.0, 5, 1.0), (2.5, 2, 1.0), (0.25, 1, 4.0)])
@pytest.mark.parametrize("stall_s", [0.0, 3.0], ids=["quick API", "slow API"])
def test_no_second_has_more_joins_than_allowed(per_s: float, most: int, span_s: float, stall_s: float) -> None:
    """Waiting nodes come when they are told, or all late at once; each is written within a quarter of a second."""
    clock, chance = HandClock(100.0), random.Random(7)
    pace = Pace(per_s, clock)
    waiting = [(clock.now_s, f"n{number}") for number in range(int(per_s * 6) + 3)]
    began_s, written, asked = clock.now_s, [], 0
    busy: list[tuple[float, str]] = []
    stalled = (began_s + 0.5, began_s + 0.5 + stall_s)
    heapq.heapify(waiting)
    while waiting or busy:
        if busy and (not waiting or busy[0][0] <= max(waiting[0][0], clock.now_s)):
            at_s, name = heapq.heappop(busy)
            clock.now_s = max(clock.now_s, at_s)
            # The write itself is anywhere between the leave and its end.
            written.append(clock.now_s)
            pace.over(name)
            continue
        at_s, name = heapq.heappop(waiting)
        if stalled[0] <= at_s < stalled[1]:
            heapq.heappush(waiting, (stalled[1], name))
            continue
        clock.now_s = max(clock.now_s, at_s)
        asked += 1
        wait_s = pace.ask(name)
        if wait_s > 0:
            heapq.heappush(waiting, (clock.now_s + wait_s, name))
        else:
            heapq.heappush(busy, (clock.now_s + chance.uniform(0.0, 0.25), name))
    for number, at_s in enumerate(written):
        assert sum(at_s - span_s < other <= at_s for other in written[: number + 1]) <= most
    # And at half of that pace at least, though each leave holds its place for its writes too.
    fastest_s = (len(written) - most) / most * span_s
    assert written[-1] - began_s <= fastest_s * 2 + stall_s + 2 * span_s
    assert asked < 8 * len(written)


def test_tests_count_those_that_run(budgets: Budgets, records: Records) -> None:
    put(records, "n00", "testing", request={"id": "x", "since": rfc3339(datetime.now(UTC))})
    assert granted(budgets, Budget.TEST, "n01", "n02") == [True, False]


def test_the_end_of_a_test_wakes_the_next_that_waits(records: Records, clock: HandClock) -> None:
    woken: list[str] = []
    budgets = Budgets(records, 2.0, 0.2, 0.05, lambda fleet: 1, clock, wake=woken.append)
    put(records, "n00", "testing", request={"id": "x", "since": rfc3339(datetime.now(UTC))})
    assert granted(budgets, Budget.TEST, "n01", "n02", "n03") == [False] * 3
    budgets.settled("n05")
    assert woken == []
    put(records, "n00", "ready")
    # One that wants none any more gives its turn on.
    budgets.settled("n01")
    assert woken == ["n02"]
    assert granted(budgets, Budget.TEST, "n02") == [True]
    budgets.settled("n02")
    assert woken == ["n02", "n03"]


def test_a_test_without_answer_takes_no_place_for_ever(budgets: Budgets, records: Records) -> None:
    """Its node is out until somebody looks at it: two such would end the tests of all others."""
    rules, now = Rules(), datetime.now(UTC)
    limit_s = rules.settle_s + LEVELS["quick"].total_s + rules.request_timeout_s
    for name, ago_s in (("n01", limit_s + 1), ("n02", limit_s - 60)):
        request = {"id": "r", "level": "quick", "since": rfc3339(now - timedelta(seconds=ago_s)), "why": "its turn"}
        put(records, name, "suspect", request=request)
    assert records.under_test() == {"n02"}
    assert granted(budgets, Budget.TEST, "n03", "n04") == [True, False]


def test_nodes_that_wait_for_their_agents_take_no_place_of_those_that_are_faulty(
    budgets: Budgets, records: Records
) -> None:
    for number in range(10):
        doubt = {"restored": {"since": RESTORED_AT}}
        put(records, f"n{number:02}", "suspect", doubt, code="LEDGER_RESTORED", accepted=ACCEPTED)
    assert budgets.gated() == 0
    assert granted(budgets, Budget.GATE, "n15") == [True]


def test_the_restore_has_closed_whoever_is_in_doubt_whatever_else_is_said_of_it_but_for_a_fault(
    records: Records,
) -> None:
    doubt = {"restored": {"since": RESTORED_AT}}
    put(records, "n01", "suspect", doubt, code="AGENT_SILENT", accepted=ACCEPTED)
    put(records, "n02", "quarantined", doubt, code="XID_FATAL", accepted=ACCEPTED)
    put(records, "n03", "suspect", doubt, code="AGENT_SILENT", accepted=ACCEPTED, confirmed=RESTORED_AT)
    assert records.held_back(*HELD_BACK) == {"n02", "n03"}
