"""The inventory's calendar of maintenance windows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import yaml

from gpu_burnin.admission.calendar import CalendarError, changes_at, read_calendar, windows
from gpu_burnin.api.maintenance import active

START, END = datetime(2026, 12, 1, 22, tzinfo=UTC), datetime(2026, 12, 2, 2, tzinfo=UTC)
ENTRY: dict[str, Any] = {
    "nodes": ["node1", "node2"], "not_before": "2026-12-01T23:00:00+01:00", "not_after": "2026-12-02T02:00:00Z",
    "kind": "power", "message": "the feed of row 7 is replaced",
}  # fmt: skip
ONE_HOUR = timedelta(hours=1)


def entry(**changed: Any) -> dict[str, Any]:
    return {key: value for key, value in {**ENTRY, **changed}.items() if value != "absent"}


def states(calendar: list[dict[str, Any]], node: str, now: datetime) -> list[tuple[str, str]]:
    return [(one.state, one.not_before) for one in windows(read_calendar(calendar), node, now)]


def test_a_window_is_scheduled_then_under_way_then_over() -> None:
    before, within = [("scheduled", "2026-12-01T22:00:00Z")], [("started", "2026-12-01T22:00:00Z")]
    moments = (START - ONE_HOUR, START - timedelta(seconds=1), START, END - timedelta(seconds=1), END, END + ONE_HOUR)
    assert [states([ENTRY], "node1", now) for now in moments] == [before, before, within, within, [], []]


def test_a_window_is_its_nodes_alone() -> None:
    assert states([ENTRY], "node3", START) == []
    assert len(states([entry(nodes="all")], "node3", START)) == 1
    assert len(states([entry(nodes=["node9", "all"])], "node3", START)) == 1


def test_several_come_in_the_order_of_their_start() -> None:
    later = entry(not_before="2026-12-02T00:00:00Z", not_after="2026-12-03T00:00:00Z")
    assert [text for _, text in states([later, ENTRY], "node2", START)] == [
        "2026-12-01T22:00:00Z", "2026-12-02T00:00:00Z",
    ]  # fmt: skip


def test_a_window_says_itself() -> None:
    (one,) = windows(read_calendar([ENTRY]), "node1", START - ONE_HOUR)
    assert active(one, START - ONE_HOUR, 3600) == (
        "calendar: maintenance (power) is announced from 2026-12-01T22:00:00Z to 2026-12-02T02:00:00Z: the feed of "
        "row 7 is replaced"
    )


def test_time_alone_changes_a_window_at_its_start_and_its_end() -> None:
    calendar = read_calendar([ENTRY])
    assert changes_at(calendar, "node1", START - ONE_HOUR) == START
    assert changes_at(calendar, "node1", START) == END
    assert changes_at(calendar, "node1", END) is None
    assert changes_at(calendar, "node3", START) is None


def test_times_as_yaml_has_them() -> None:
    text = "[{nodes: all, not_before: 2026-12-01T22:00:00Z, not_after: 2026-12-02 02:00:00+00:00}]"
    (window,) = read_calendar(yaml.safe_load(text))
    assert (window.not_before, window.not_after, window.kind) == (START, END, "maintenance")


@pytest.mark.parametrize("document", [None, []])
def test_no_calendar_has_no_windows(document: object) -> None:
    assert read_calendar(document) == ()


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("all", "calendar must be a list of windows, each with nodes, not_before, not_after"),
        ({"nodes": "all"}, "calendar must be a list of windows, each with nodes, not_before, not_after"),
        (["node1"], r"calendar\[0\] must be a mapping with nodes, not_before, not_after"),
        ([ENTRY, entry(not_befor="x")], r"calendar\[1\]: unknown key not_befor \(did you mean not_before\?\); correct"),
        ([entry(owner="x")], r"calendar\[0\]: unknown key owner \(the keys are nodes, not_before, not_after, ki"),
        ([entry(nodes="absent")], r"calendar\[0\]: nodes must be a list of names of nodes, or all"),
        ([entry(nodes="node1")], "nodes must be a list of names of nodes, or all"),
        ([entry(nodes=[])], "nodes must be a list of names of nodes, or all"),
        ([entry(nodes=["node1", 2])], "nodes must be a list of names of nodes, or all"),
        ([entry(not_before="absent")], r"calendar\[0\]: not_before must be a time with its offset, such as 2026"),
        ([entry(not_before="2026-12-01T22:00:00")], "not_before is '2026-12-01T22:00:00'; it must be a time with its"),
        ([entry(not_after=datetime(2026, 12, 2))], "not_after is '2026-12-02 00:00:00'; it must be a time with its"),
        ([entry(not_after=datetime.fromisoformat("9999-12-31T23:59:59-14:00"))], "not_after is '9999-12-31"),
        ([entry(not_after="2026-12-01T22:00:00Z")], r"not_after must be later than not_before \(2026-12-01T22:00:00Z"),
        ([entry(kind="x" * 65)], "kind must be a text on one line of at most 64 characters"),
        ([entry(message="a\nb")], "message must be a text on one line of at most 300 characters"),
        ([entry(message=["a"])], "message must be a text on one line of at most 300 characters"),
    ],
)  # fmt: skip
def test_a_wrong_calendar_is_one_sentence(document: object, sentence: str) -> None:
    with pytest.raises(CalendarError, match=sentence) as caught:
        read_calendar(document)
    assert "\n" not in str(caught.value)


def test_the_key_is_the_one_the_person_wrote() -> None:
    with pytest.raises(CalendarError, match=r"^fleet_maintenance\[0\]: nodes must"):
        read_calendar([entry(nodes=None)], "fleet_maintenance")
