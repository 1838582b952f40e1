"""Who leaves a node that its work is asked to leave."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations

import pytest

from gpu_burnin.admission.decide.draining import leave_annotation, who_leaves
from gpu_burnin.admission.view import Pod, Rules
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import DrainRequest, RecordError

NOW = datetime(2026, 11, 22, 12, tzinfo=UTC)
DEADLINE = "2026-11-29T12:00:00Z"
LEAVE = DrainRequest("2026-11-22T11:00:00Z", DEADLINE, "XID 79 on GPU-1")
RULES = Rules()


def pod(name: str = "a", **more: str | int | bool) -> Pod:
    return Pod("jobs", name, f"uid-{name}", **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hold", "until"),
    [
        ("", None),
        ("  ", None),
        ("2026-11-22T11:59:59Z", None),  # over
        ("2026-11-22T12:00:00Z", None),  # just now
        ("2026-11-22T13:00:00+01:00", None),  # the same moment, written elsewhere
        ("2026-11-22T12:00:01Z", "2026-11-22T12:00:01Z"),
        ("2026-11-22T10:00:00.5-03:00", "2026-11-22T10:00:00.5-03:00"),
        ("checkpoint", "checkpoint"),
        ("2026-11-29T11:59:59Z", "2026-11-29T11:59:59Z"),
        ("9999-12-31T23:59:59Z", DEADLINE),  # no hold is longer than the deadline
    ],
)
def test_a_hold_is_kept_until_it_ends(hold: str, until: str | None) -> None:
    one = pod(hold_until=hold)
    found = who_leaves([one], LEAVE, NOW, RULES)
    assert (found.evict, found.waiting) == (((one,), ()) if until is None else ((), ((one, until),)))
    assert [one for one, _ in found.pod_events] == [one for one, _ in found.waiting]


@pytest.mark.parametrize(
    ("hold", "sentence"),
    [
        ("checkpoint", "it is asked to leave, and is left until its checkpoint, at most to 2026-11-29T12:00:00Z"),
        ("2026-11-23T00:00:00Z", "it is asked to leave, and is left until 2026-11-23T00:00:00Z"),
        ("2027-01-01T00:00:00Z", "it is asked to leave, and is left until 2026-11-29T12:00:00Z"),
    ],
)
def test_a_pod_that_holds_is_told_until_when(hold: str, sentence: str) -> None:
    one = pod(hold_until=hold)
    assert who_leaves([one, pod("b")], LEAVE, NOW, RULES).pod_events == ((one, sentence),)


@pytest.mark.parametrize("hold", ["", "2026-11-28T00:00:00Z", "9999-12-31T23:59:59Z", "checkpoint", "garbage"])
def test_at_the_deadline_everybody_leaves(hold: str) -> None:
    one = pod(hold_until=hold)
    found = who_leaves([one], LEAVE, datetime(2026, 11, 29, 12, tzinfo=UTC), RULES)
    assert (found.evict, found.waiting, found.wake_at) == ((one,), (), None)


@pytest.mark.parametrize(
    "hold", ["tomorrow", "2026-11-30", "2026-11-30T00:00:00", "1764504000", "Checkpoint", "9999-12-31T23:59:59-14:00x"]
)
def test_a_hold_that_cannot_be_read_is_none_and_is_told(hold: str) -> None:
    one = pod(hold_until=hold)
    found = who_leaves([one], LEAVE, NOW, Rules(names=Names("fleet.example")))
    assert found.evict == (one,)
    ((target, sentence),) = found.pod_events
    assert target == one
    assert sentence.startswith("it is not held, since its annotation fleet.example/hold-until is ")
    assert repr(hold) in sentence and "checkpoint" in sentence


def test_the_end_of_time_is_no_error() -> None:
    found = who_leaves([pod(hold_until="9999-12-31T23:59:59-14:00")], LEAVE, NOW, RULES)
    assert "is not held" in found.pod_events[0][1]


@pytest.mark.parametrize("who", [{"daemon": True}, {"ended": True}, {"leaving": True}])
def test_some_are_never_asked(who: dict[str, bool]) -> None:
    found = who_leaves([pod(**who), pod(hold_until="garbage", **who)], LEAVE, NOW, RULES)
    assert (found.evict, found.waiting, found.pod_events) == ((), (), ())


def test_the_answer_does_not_depend_on_the_order_and_wakes_at_the_first_end() -> None:
    pods = [
        pod("c"),
        pod("b", hold_until="2026-11-23T00:00:00Z"),
        pod("a", hold_until="checkpoint"),
        pod("d", hold_until="2026-11-22T20:00:00Z"),
    ]
    found = who_leaves(pods, LEAVE, NOW, RULES)
    assert [one.name for one in found.evict] == ["c"]
    assert [(one.name, until) for one, until in found.waiting] == [
        ("a", "checkpoint"),
        ("b", "2026-11-23T00:00:00Z"),
        ("d", "2026-11-22T20:00:00Z"),
    ]
    assert found.wake_at == datetime(2026, 11, 22, 20, tzinfo=UTC)
    assert all(who_leaves(order, LEAVE, NOW, RULES) == found for order in permutations(pods))


def test_an_ask_without_a_readable_deadline_is_refused() -> None:
    with pytest.raises(RecordError, match="the deadline 'soon' by which the work should leave cannot be read"):
        who_leaves([pod()], DrainRequest("", "soon", ""), NOW, RULES)


def test_the_annotation_has_what_jobs_read() -> None:
    assert leave_annotation(LEAVE) == (
        '{"deadline":"2026-11-29T12:00:00Z","since":"2026-11-22T11:00:00Z","why":"XID 79 on GPU-1"}'
    )
