"""When a maintenance window keeps work away."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import permutations

import pytest

from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.maintenance import active, changes_at, first, unknown

START, END = "2026-12-01T22:00:00Z", "2026-12-02T02:00:00Z"
T0 = datetime(2026, 12, 1, 22, tzinfo=UTC)
HOUR_S = 3600.0


def at(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


@pytest.mark.parametrize(
    ("state", "not_before", "not_after", "hours", "keeps_away"),
    [
        ("scheduled", START, END, -1.01, False),
        ("scheduled", START, END, -1, True),
        ("scheduled", START, END, 1, True),
        ("scheduled", START, END, 3.99, True),
        ("scheduled", START, END, 4, False),
        ("scheduled", START, "", 400, True),  # the source takes it away when it is over
        ("scheduled", "", END, -400, True),  # it may be at any moment
        ("scheduled", "", "", 0, True),
        ("scheduled", "0001-01-01T00:00:00Z", "", 0, True),
        ("scheduled", "garbage", "", 0, True),
        ("started", START, END, 0, True),
        ("started", START, END, 400, True),  # longer than planned: the source says that it goes on
        ("started", "", "", 0, True),
        ("none", START, END, 0, False),
        ("unknown", START, END, 0, False),
        ("another version's", START, END, 0, False),
    ],
)
def test_a_window_keeps_work_away_from_before_its_start_to_its_end(
    state: str, not_before: str, not_after: str, hours: float, keeps_away: bool
) -> None:
    why = active(Maintenance("azure", state, not_before, not_after), at(hours), HOUR_S)
    assert bool(why) is keeps_away


def test_the_time_before_is_a_setting() -> None:
    window = Maintenance("azure", "scheduled", START, END)
    assert [bool(active(window, at(-2), before_s)) for before_s in (0, HOUR_S, 2 * HOUR_S)] == [False, False, True]


def test_unknown_is_not_none() -> None:
    assert unknown(None) == unknown(Maintenance("azure", "none")) == unknown(Maintenance("azure", "started")) == ""
    assert unknown(Maintenance("azure", "unknown", message="azure: no answer")) == "azure: no answer"
    assert unknown(Maintenance("azure", "unknown")) == "azure: it is not known whether maintenance is near"
    assert unknown(Maintenance("azure", "another version's"))
    assert active(None, T0, HOUR_S) == ""


def test_the_first_day_that_there_is_is_no_error() -> None:
    assert changes_at(Maintenance("azure", "scheduled", "0001-01-01T00:00:00Z"), T0, HOUR_S) is None


def test_time_alone_changes_it_before_the_start_and_at_the_end() -> None:
    window = Maintenance("azure", "scheduled", START, END)
    assert [changes_at(window, at(hours), HOUR_S) for hours in (-2, -1, 0, 4)] == [at(-1), at(4), at(4), None]
    for other in (None, Maintenance("azure", "started", START, END), Maintenance("azure", "unknown")):
        assert changes_at(other, at(-2), HOUR_S) is None


def test_of_several_the_one_that_has_started_counts_then_the_soonest_then_what_is_unknown() -> None:
    order = [
        Maintenance("a", "started", END),
        Maintenance("a", "scheduled", START),
        Maintenance("a", "scheduled", END),
        Maintenance("a", "unknown"),
        Maintenance("a", "none"),
    ]
    for number in range(len(order)):
        assert all(first(some) == order[number] for some in permutations(order[number:], len(order) - number))
    assert first([]) is None
