"""Tests between nodes from their begin to their end: agents, kubelet and decide() are stand-ins, the rest is real."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.api.record import Ask, Request, Spec, Status, spec_document, status_document
from tests.support.fabric_cluster import NAMES, RECORD
from tests.support.fabric_fleet import RULES, Fleet, fleet, named


def test_idle_nodes_are_proven_and_then_left_alone() -> None:
    made = fleet(4)
    made.go_on(120)
    assert made.outcomes() == dict.fromkeys(made.hosts, "passed")
    assert all(made.proof(name)["passes"] == 2 for name in made.hosts)
    assert made.under_test() == set() and made.count("passed") == 4 and made.alarms.names == []


def test_a_bad_node_is_named_by_others_that_are_proven_and_they_are_not() -> None:
    made = fleet(3)
    made.go_on(120)
    made.bad = {"gpu-2"}
    made.now_s += 86400
    made.go_on(600)
    # The first failure was between two that are proven, so both were suspects; the other one was cleared.
    assert made.outcomes() == {"gpu-1": "passed", "gpu-2": "named", "gpu-3": "passed"}
    assert "node gpu-2: wrong data" in made.proof("gpu-2")["claim"] and "gpu-2" in made.alarms.names
    assert made.under_test() == set()


def test_of_two_without_a_third_none_is_named() -> None:
    made = fleet(2, bad={"gpu-2"})
    made.go_on(300)
    assert made.outcomes() == dict.fromkeys(made.hosts, "suspect") and made.count("failed") == 1
    assert made.proof("gpu-1")["claim"] == "one of these, not told apart: node gpu-1, node gpu-2: wrong data"


def test_an_agent_that_does_not_answer_ends_the_test_and_counts_against_nobody() -> None:
    made = fleet(2, dead={"gpu-2"})
    made.go_on(30)
    assert made.under_test() == set(made.hosts)
    made.go_on(60)
    assert made.under_test() == set() and made.outcomes() == dict.fromkeys(made.hosts, "")
    made.go_on(300)
    assert made.count("inconclusive") == 1, "its members rest"


def test_a_reboot_in_the_middle_is_inconclusive() -> None:
    made = fleet(2, dead={"gpu-2"})
    made.go_on(10)
    made.boot("gpu-2", "0b1c2d3e-0000-4000-8000-999999999999")
    made.go_on(5)
    assert made.under_test() == set() and made.count("inconclusive") == 1
    assert made.outcomes() == dict.fromkeys(made.hosts, "")


def test_a_new_leader_goes_on_and_counts_nothing_twice() -> None:
    made = fleet(2)
    while not any("offer" in made.notes(name).get(NAMES.fabric_test, "") for name in made.hosts):
        made.go_on(1)
    made.lead()
    # The record of one cannot be written, and its leader dies between the two.
    made.failing = {"gpu-2"}
    made.go_on(5)
    made.lead()
    made.failing = set()
    made.paused = "by ann"
    made.go_on(10)
    assert {name: made.proof(name)["passes"] for name in made.hosts} == dict.fromkeys(made.hosts, 1)
    assert made.under_test() == set() and made.count("passed") == 1


def test_a_pause_begins_nothing_and_ends_what_is_under_way() -> None:
    made = fleet(2)
    made.go_on(1)
    assert made.under_test() == set(made.hosts)
    made.paused = "by ann"
    made.go_on(300)
    assert made.under_test() == set() and made.count("passed") == 1


def pod_on(made: Fleet) -> None:
    spec = {"nodeName": "gpu-2", "containers": [{"resources": {"requests": {"nvidia.com/gpu": "8"}}}]}
    made.pods.put({"metadata": {"name": "train", "namespace": "ml", "uid": "u", "resourceVersion": "1"}, "spec": spec})


def held(made: Fleet) -> None:
    item = made.objects[RECORD + "gpu-2"]
    hold = spec_document(Spec(hold=Ask("ann", "looks at it", "2026-11-28T11:00:00Z")))["hold"]
    made.put(RECORD + "gpu-2", {**item, "spec": {**item["spec"], "hold": hold}})


HINDRANCES: dict[str, Callable[[Fleet], object]] = {
    "work": pod_on,
    "hold": held,
    "a window": lambda made: made.status("gpu-2", code="MAINTENANCE"),
    "the schedule": lambda made: made.chosen.update({"gpu-2": "quick"}),
    "its own test": lambda made: made.status(
        "gpu-2", request=status_document(Status(request=Request("i", "quick", "2026-11-28T12:00:00Z", "x")))["request"]
    ),
}


@pytest.mark.parametrize("what", HINDRANCES)
def test_a_node_that_is_not_free_is_in_no_test(what: str) -> None:
    made = fleet(2)
    HINDRANCES[what](made)
    made.service.tick()
    assert made.under_test() == set()


@pytest.mark.parametrize("what", ["work", "hold", "its own test"])
def test_what_comes_before_they_meet_ends_the_test(what: str) -> None:
    made = fleet(2)
    made.service.tick()
    assert made.under_test() == set(made.hosts)
    HINDRANCES[what](made)
    made.service.tick()
    assert made.under_test() == set() and made.count("inconclusive") == 1


def test_without_places_nothing_begins_but_for_one_pair_of_a_small_fleet() -> None:
    for places, wanted in ((0, 0), (1, 2), (2, 2), (4, 4)):
        made = fleet(4, places=places)
        made.service.tick()
        assert len(made.under_test()) == wanted


def test_the_same_address_twice_is_said_and_not_tested() -> None:
    made = fleet(2)
    item = made.objects[RECORD + "gpu-2"]
    made.put(RECORD + "gpu-2", {**item, "spec": {**item["spec"], "fabric": [{"rail": 0, "address": "198.51.100.1"}]}})
    made.go_on(30)
    assert made.under_test() == set() and made.outcomes() == dict.fromkeys(made.hosts, "")


def test_a_leaf_is_tested_as_a_whole_and_names_no_node() -> None:
    made = fleet(3)
    made.go_on(120)
    made.bad = {"gpu-2"}
    made.service._leaves_due_s = {"a": 0.0}
    made.go_on(30)
    assert made.count("failed") == 1 and made.alarms.names == ["muster-admitter"]
    assert made.outcomes() == dict.fromkeys(made.hosts, "passed") and made.under_test() == set()


def test_an_api_server_that_refuses_is_no_end_of_the_service() -> None:
    made = fleet(2)

    def refuses(*_: object) -> dict[str, Any]:
        raise ApiError("503", 503)

    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=refuses, find=refuses))
    times = iter((False, False, True))
    made.service.run(lambda _: next(times))
    assert made.under_test() == set()


def test_one_named_is_free_again_after_a_test_that_a_person_asked_for() -> None:
    made = fleet(2)
    made.status("gpu-1", fabric=named(made, "gpu-1"), retested="2026-11-28T11:30:00Z")
    made.service.tick()
    assert made.under_test() == set(made.hosts), "decide() has let it in again"
    assert replace(RULES, every_s=0.0).on is False
