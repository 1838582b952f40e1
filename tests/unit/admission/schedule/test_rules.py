"""The settings of the standing tests: hours, places, and what is refused."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from gpu_burnin.admission.schedule.rules import TestRules, TestRulesError, parse_tests


@pytest.mark.parametrize(
    ("document", "what"),
    [
        ({"nodes": -1}, "nodes is -1"),
        ({"nodes": True}, "nodes: not int"),
        ({"share": 1.1}, "share is 1.1"),
        ({"random_share": -0.1}, "random_share is -0.1"),
        ({"quick_every_s": -1}, "quick_every_s is -1"),
        ({"standard_every_s": "inf"}, "standard_every_s is inf"),
        ({"quick_every_s": "nan"}, "quick_every_s is nan"),
        ({"hours": ["22-06"]}, "hours has '22-06'"),
        ({"hours": ["22:00-22:00"]}, "hours has '22:00-22:00'"),
        ({"hours": ["22:00-24:30"]}, "hours has '22:00-24:30'"),
        ({"hours": "22:00-06:00"}, "hours: not a list"),
        ({"node": 3}, "unknown: node"),
        ([], "not an object"),
    ],
)
def test_a_wrong_setting_is_named(document: object, what: str) -> None:
    with pytest.raises(TestRulesError, match=r"^tests: ") as caught:
        parse_tests(document)  # type: ignore[arg-type]
    assert what in str(caught.value) and "\n" not in str(caught.value)


def test_settings_are_read() -> None:
    document = {"nodes": 3, "share": 0.5, "hours": ["22:00-06:00", "12:00-13:30"], "extended_every_s": 0}
    assert parse_tests(document) == TestRules(3, 0.5, ("22:00-06:00", "12:00-13:30"), extended_every_s=0)
    assert parse_tests({}) == TestRules()


@pytest.mark.parametrize(
    ("hours", "open_at", "shut_at"),
    [
        ((), ["00:00", "12:00", "23:59"], []),
        (("22:00-06:00",), ["22:00", "23:59", "00:00", "05:59"], ["06:00", "12:00", "21:59"]),
        (("08:00-09:30", "20:00-24:00"), ["08:00", "09:29", "23:59"], ["07:59", "09:30", "19:59", "00:00"]),
    ],
)
def test_tests_begin_in_their_hours_alone(hours: tuple[str, ...], open_at: list[str], shut_at: list[str]) -> None:
    rules = TestRules(hours=hours)
    for text in open_at + shut_at:
        assert rules.open_at(datetime.fromisoformat(f"2026-03-01T{text}:00Z")) == (text in open_at), text


def test_hours_are_utc_whatever_the_clock_says() -> None:
    rules = TestRules(hours=("22:00-06:00",))
    moment = datetime(2026, 3, 1, 23, 0, tzinfo=UTC)
    assert rules.open_at(moment.astimezone(timezone(timedelta(hours=-8))))


@pytest.mark.parametrize(
    ("nodes", "share", "fleet", "places"),
    [(8, 0.02, 7500, 8), (500, 0.02, 7500, 150), (8, 0.02, 3, 1), (0, 0.5, 100, 0), (8, 0, 100, 0), (8, 1, 0, 0)],
)
def test_the_smaller_of_number_and_share_holds(nodes: int, share: float, fleet: int, places: int) -> None:
    assert TestRules(nodes, share).places(fleet) == places
