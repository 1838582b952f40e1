"""Tests between nodes where something goes wrong: half-written results, silence, bad partners, budgets, firewalls."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_burnin.admission.client import ApiError, Conflict, KubeApi
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.api.fabric_note import NO_ADDRESS, FabricAnswer, Part, fabric_text, read_fabric_request
from tests.support.fabric_cluster import NAMES, NODE
from tests.support.fabric_fleet import RULES, fleet, named
from tests.support.rendezvous_hosts import Host


@pytest.mark.parametrize("boot", ["", "0b1c2d3e-0000-4000-8000-999999999999"])
def test_what_is_named_stays_so_while_a_budget_keeps_it_at_work(boot: str) -> None:
    made = fleet(3, braked=True)
    before = named(made, "gpu-2") | ({"bootID": boot} if boot else {})
    made.status("gpu-2", fabric=before)
    made.go_on(300)
    assert made.proof("gpu-2") == before
    assert (made.proof("gpu-1")["passes"], made.proof("gpu-3")["passes"]) == (2, 2)


def test_a_suspect_that_a_budget_keeps_at_work_stays_one_until_three_partners_have_cleared_it() -> None:
    made = fleet(3, braked=True)
    made.go_on(120)
    made.status("gpu-2", fabric={**made.proof("gpu-2"), "outcome": "suspect", "passes": 0, "failures": 1})
    made.paused = "by ann"
    made.go_on(120)
    made.paused = ""
    made.go_on(9)
    assert made.proof("gpu-2")["outcome"] == "suspect" and made.proof("gpu-2")["passes"] in (1, 2)
    made.go_on(60)
    assert made.proof("gpu-2")["outcome"] == "passed"


@pytest.mark.parametrize("dies", [False, True])
def test_a_result_that_was_half_written_makes_suspects_of_both_all_the_same(*, dies: bool) -> None:
    made = fleet(2)
    made.go_on(120)
    made.bad, refused = {"gpu-1"}, list[str]()

    def patch(path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        refused.extend([path] if path.endswith("/status") and len(refused) < 4 else [])
        if refused[-1:] == [path] and len(refused) == 2:
            raise NotLeader("its term is over") if dies else Conflict(f"{path}: it has changed", 409)
        return made.patch(path, patch, what)

    made.now_s += 86400
    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=patch, find=made.find))
    for _ in range(20):
        try:
            made.go_on(1)
        except NotLeader:
            made.lead()
    assert made.outcomes() == dict.fromkeys(made.hosts, "suspect"), made.said.getvalue()
    assert made.count("failed") == 1 and sorted(made.alarms.names) == ["gpu-1", "gpu-2"]


def test_a_proven_partner_that_is_silent_is_no_failure_of_the_one_that_answered() -> None:
    made = fleet(2)
    made.go_on(120)
    made.status("gpu-2", fabric=None)
    made.hung = {"gpu-1"}
    made.go_on(300)
    assert made.outcomes() == {"gpu-1": "passed", "gpu-2": ""} and made.count("inconclusive") == 1
    # Of two alike it is the silent one.
    made = fleet(2, hung={"gpu-1"})
    made.go_on(200)
    assert made.outcomes() == {"gpu-1": "suspect", "gpu-2": ""} and made.alarms.names == ["gpu-1"]
    assert made.proof("gpu-1")["claim"] == "node gpu-1: silent"


def test_requests_that_go_before_the_result_are_told_and_their_members_rest() -> None:
    made = fleet(2, hung={"gpu-1"})
    made.go_on(20)
    for name in made.hosts:
        made.annotate(name, NAMES.fabric_test, None)
    made.go_on(300)
    assert made.count("inconclusive") == 1 and "its requests were gone" in made.said.getvalue()
    assert made.outcomes() == dict.fromkeys(made.hosts, "")


def test_a_test_that_one_member_alone_was_asked_for_goes_on() -> None:
    made, asked = fleet(2), list[str]()

    def patch(path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        asked.append(path)
        if len(asked) == 2:
            raise ApiError("503", 503)
        return made.patch(path, patch, what)

    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=patch, find=made.find))
    made.service.tick()
    assert len(made.under_test()) == 1
    made.go_on(10)
    assert made.count("passed") and made.count("inconclusive") == 0


def test_one_bad_newcomer_takes_no_good_node_but_its_first_partner_from_work() -> None:
    """Where nodes are tested to be let in alone, nobody is proven: two good ones are, before the suspect meets them."""
    made = fleet(7, rules=replace(RULES, every_s=0.0))
    made.go_on(10)
    for name in made.hosts:
        passed = {**named(made, name), "outcome": "passed", "failures": 0, "passes": 1, "claim": ""}
        made.status(name, fabric=passed if name != "gpu-7" else None)
    made.bad = {"gpu-7"}
    made.status("gpu-7", state="testing", code="FABRIC_WAITS", accepted=None)
    suspects: set[str] = set()
    for _ in range(300):
        made.go_on(1)
        suspects |= {name for name, outcome in made.outcomes().items() if outcome == "suspect"}
    assert made.outcomes() == {name: "named" if name == "gpu-7" else "passed" for name in made.hosts}
    assert len(suspects - {"gpu-7"}) == 1, suspects


@pytest.mark.parametrize("proven", [1, 3])
def test_one_bad_partner_that_is_proven_has_no_good_node_named(proven: int) -> None:
    """It went bad after its tests; three newcomers meet it, and good ones if there are any."""
    made = fleet(proven + 3, rules=replace(RULES, every_s=0.0), bad={"gpu-1"})
    for number, name in enumerate(made.hosts, 1):
        passed = {**named(made, name), "outcome": "passed", "failures": 0, "passes": 2, "claim": ""}
        if number <= proven:
            made.status(name, fabric={**passed, "testedAt": f"2026-11-28T10:0{number}:00Z"})
        else:
            made.status(name, state="testing", code="FABRIC_WAITS", accepted=None)
    named_ever: set[str] = set()
    for _ in range(600):
        made.go_on(1)
        named_ever |= {name for name, outcome in made.outcomes().items() if outcome == "named"}
    assert named_ever <= {"gpu-1"}, made.outcomes()
    assert made.outcomes() == dict.fromkeys(made.hosts, "passed") | {"gpu-1": made.outcomes()["gpu-1"]}


@pytest.mark.parametrize("number", [3, 4, 6])
def test_after_a_firewall_that_stopped_all_the_fleet_comes_back_by_itself(number: int) -> None:
    made = fleet(number)
    made.bad = set(made.hosts)
    # So long that each has met all others.
    for _ in range(6):
        made.go_on(30)
        made.now_s += 600
    assert set(made.outcomes().values()) == {"suspect"}
    made.bad = set()
    for _ in range(6):
        made.go_on(60)
        made.now_s += 600
    assert made.outcomes() == dict.fromkeys(made.hosts, "passed")


def test_a_node_without_its_address_is_a_suspect_and_says_why() -> None:
    made, why = fleet(3), "no interface has the address 198.51.100.2; correct fleet_fabric_nics"
    answer = made.answer

    def refuses(name: str, host: Host, text: str) -> str:
        if name != "gpu-2":
            return answer(name, host, text)
        request = read_fabric_request(text)
        return fabric_text(FabricAnswer(request.id, Part.REFUSED, host.boot_id, why=why, fault=NO_ADDRESS))

    made.answer = refuses  # type: ignore[method-assign]
    made.go_on(120)
    assert made.outcomes() == {"gpu-1": "passed", "gpu-2": "suspect", "gpu-3": "passed"}
    assert made.proof("gpu-2")["claim"] == why and set(made.alarms.names) == {"gpu-2"}


def test_a_node_that_changes_while_its_test_ends_counts_nothing_twice() -> None:
    made, refused = fleet(2, bad={"gpu-1"}), list[str]()

    def patch(path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        if path.startswith(NODE) and len(refused) < 3 and any(one["op"] == "remove" for one in patch):
            refused.append(path)
            raise Conflict(f"{path}: it has changed", 409)
        return made.patch(path, patch, what)

    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=patch, find=made.find))
    made.go_on(12)
    assert len(refused) == 3 and not made.under_test()
    assert made.count("failed") == 1.0 and sorted(made.alarms.names) == ["gpu-1", "gpu-2"]


def test_a_test_that_could_be_given_to_nobody_has_not_begun() -> None:
    made = fleet(2, failing={"gpu-1", "gpu-2"})
    made.go_on(3)
    assert not made.service.candidates.budgets.between and "are tested" not in made.said.getvalue()
    made.failing.clear()
    made.go_on(6)
    assert "gpu-1, gpu-2 are tested" in made.said.getvalue() or "gpu-2, gpu-1 are tested" in made.said.getvalue()
