"""When etcd's own downgrade is enabled, ended or left alone, and what is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd.minor import Action, Members, decide, prepare
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError


@pytest.mark.parametrize(
    ("cluster", "target", "wanted", "action"),
    [
        ("3.6.0", "", "3.7", Action.NONE),
        ("3.7.0", "", "3.7", Action.NONE),
        ("3.7.0", "", "3.6", Action.ENABLE),
        ("3.6.0", "3.6.0", "3.6", Action.NONE),
        ("3.7.0", "3.6.0", "3.6", Action.NONE),
        ("3.6.0", "3.6.0", "3.7", Action.CANCEL),
        ("3.10.0", "", "3.9", Action.ENABLE),
    ],
)
def test_decide(cluster: str, target: str, wanted: str, action: Action) -> None:
    assert decide(cluster, target, wanted) is action


def test_what_is_no_version_is_refused() -> None:
    with pytest.raises(FleetError, match="'new' is no version of etcd"):
        decide("3.7.0", "", "new")


class Member:
    """A member of 3.7 that has its data in the old format after so many looks."""

    def __init__(self, looks: int) -> None:
        self.looks, self.asked = looks, list[Mapping[str, Any]]()

    def __call__(self, path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        if path == "/version":
            return {"etcdcluster": "3.7.0"}
        if path == "/v3/maintenance/downgrade":
            assert body is not None
            self.asked.append(body)
            return {}
        if self.asked:
            self.looks -= 1
        return {"storageVersion": "3.7.0" if self.looks > 0 else "3.6.0"}


def test_a_downgrade_is_enabled_once_and_waited_for() -> None:
    member, now = Member(3), iter(range(100))
    action = prepare(Members({"a": member}), "3.6", 60, clock=lambda: next(now), pause=lambda _: None)
    assert (action, member.asked, member.looks) == (Action.ENABLE, [{"action": "ENABLE", "version": "3.6"}], 0)


def test_a_member_that_does_not_follow_stops_it() -> None:
    member, now = Member(1000), iter(range(100))
    with pytest.raises(FleetError, match=r"a did not bring the data to the format of 3\.6 in 5 s"):
        prepare(Members({"a": member}), "3.6", 5, clock=lambda: next(now), pause=lambda _: None)


def test_check_mode_only_tells() -> None:
    member = Member(0)
    assert prepare(Members({"a": member}), "3.6", 5, act=False) is Action.ENABLE
    assert member.asked == []


def test_without_an_answer_the_reason_is_told() -> None:
    def silent(path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        raise FleetError("https://a does not answer: refused")

    with pytest.raises(FleetError, match="https://a does not answer"):
        prepare(Members({"a": silent, "b": silent}), "3.6", 5)
    # Alone, and dead by a build that fails: nobody could be asked, and the old build is to start.
    assert prepare(Members({"a": silent}), "3.6", 5) is Action.NONE
