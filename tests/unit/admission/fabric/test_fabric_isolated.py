"""One test between nodes that goes wrong is no matter of the others: hostile texts, refused writes, lost answers."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_burnin.admission.client import ApiError, KubeApi
from gpu_burnin.admission.fabric import course, service
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.api.agent_note import NoteError
from gpu_burnin.api.fabric_note import FabricAnswer, Part, fabric_text, read_fabric_answer, read_fabric_request
from gpu_burnin.api.record import Ask, Spec, spec_document
from tests.support.fabric_cluster import NAMES, NODE, RECORD
from tests.support.fabric_fleet import Fleet, fleet, named
from tests.support.rendezvous_hosts import Host

HALF = "\ud800"
Write = Callable[[str, list[dict[str, Any]]], None]


def before_each_write(made: Fleet, check: Write) -> None:
    """Have each write pass this first, which may refuse it."""

    def patch(path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        check(path, patch)
        return made.patch(path, patch, what)

    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=patch, find=made.find))


@pytest.mark.parametrize("key", ["offer", "view", "why"])
def test_half_a_character_is_no_answer(key: str) -> None:
    text = fabric_text(FabricAnswer("i", Part.DONE, "b", **{key: f"x{HALF}"}))
    with pytest.raises(NoteError, match="cannot be read"):
        read_fabric_answer(text)
    whole = FabricAnswer("i", Part.DONE, "b", **{key: "\N{BEETLE}"})
    assert read_fabric_answer(fabric_text(whole)) == whole


@pytest.mark.parametrize("key", ["offer", "view"])
def test_what_a_hostile_node_writes_stops_its_own_test_alone(key: str) -> None:
    made = fleet(4)
    answer = made.answer

    def hostile(name: str, host: Host, text: str) -> str:
        found = read_fabric_answer(answer(name, host, text))
        changed = replace(found, offer=HALF) if key == "offer" else replace(found, view=HALF)
        return fabric_text(changed if name == "gpu-1" else found)

    made.answer = hostile  # type: ignore[method-assign]
    made.go_on(20)
    # It ends by its time.
    made.now_s += 200
    made.go_on(20)
    assert [made.proof(name).get("outcome", "") for name in made.hosts] == ["", "passed", "passed", "passed"]
    assert made.count("inconclusive") == 1 and "gpu-1" in made.said.getvalue() and made.under_test() == set()


def test_a_fault_with_one_test_ends_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    made, step = fleet(4), course.step

    def fails(request: Any, test: Any, *rest: Any, **more: Any) -> Any:
        if "gpu-1" in test.names:
            raise OverflowError("too large")
        return step(request, test, *rest, **more)

    monkeypatch.setattr(course, "step", fails)
    made.go_on(60)
    assert sum(made.proof(name).get("passes", 0) for name in ("gpu-2", "gpu-3", "gpu-4")) >= 2, made.outcomes()
    assert made.count("inconclusive") == 1 and made.said.getvalue().count("a fault of muster itself (Overflow") == 1


def test_a_record_that_somebody_refuses_to_have_written_is_given_up_and_told() -> None:
    made = fleet(4, bad={"gpu-1"})

    def refuses(path: str, patch: list[dict[str, Any]]) -> None:
        if path == f"{RECORD}gpu-1/status":
            raise ApiError("cannot write gpu-1: a policy of others", 403)

    before_each_write(made, refuses)
    made.go_on(15)
    # Its partner's proof is written, and the other pair goes on.
    assert sorted(made.outcomes().values()) == ["", "passed", "passed", "suspect"]
    assert made.said.getvalue().count("a policy of others") == 1 and made.count("failed") == 0
    made.now_s += 600
    made.go_on(2)
    assert made.count("failed") == 1 and "what it found of gpu-1 was not written" in made.said.getvalue()
    assert "gpu-1" in made.alarms.names
    assert "gpu-1" not in made.service.candidates.budgets.between


def test_those_whose_results_nobody_may_write_are_tested_again_after_a_rest() -> None:
    """Else they, of whom nothing is known, were in one test after the other that comes to nothing."""
    made = fleet(2)

    def refuses(path: str, patch: list[dict[str, Any]]) -> None:
        if path.startswith(RECORD):
            raise ApiError("a policy of others", 403)

    def begun() -> int:
        return made.said.getvalue().count("are tested with each other")

    before_each_write(made, refuses)
    made.go_on(15)
    # decide() takes the requests at their end, which is before that.
    for name in made.hosts:
        made.annotate(name, NAMES.fabric_test, None)
    made.now_s += 600
    made.go_on(10)
    assert begun() == 1 and "given up, what it found of " in made.said.getvalue()
    made.now_s += made.service.again_s - 30
    made.go_on(10)
    assert begun() == 1
    made.go_on(15)
    assert begun() == 2


def test_a_request_that_cannot_be_taken_away_is_given_up() -> None:
    made = fleet(2)

    def refuses(path: str, patch: list[dict[str, Any]]) -> None:
        if path == f"{NODE}gpu-1" and any(one["op"] == "remove" for one in patch):
            raise ApiError("a policy of others", 403)

    before_each_write(made, refuses)
    made.go_on(30)
    assert made.under_test() == {"gpu-1"} and made.count("passed") == 1
    made.now_s += 600
    made.go_on(2)
    assert "given up, it was not ended" in made.said.getvalue() and made.count("passed") == 1
    assert not made.service.candidates.budgets.between


def test_alarms_are_told_though_the_journal_takes_nothing() -> None:
    made = fleet(2, bad={"gpu-1"})

    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            if "wrong data" in text:
                raise BrokenPipeError
            return super().write(text)

    made.service.journal.out = Closed()
    made.go_on(30)
    assert sorted(made.alarms.names) == ["gpu-1", "gpu-2"] and made.under_test() == set()


def test_the_journal_takes_half_a_character() -> None:
    data = io.BytesIO()
    out = io.TextIOWrapper(data, encoding="utf-8")
    Journal(out, native=lambda entry: False).say(f"a{HALF}\N{BEETLE}")
    assert "a?\N{BEETLE}" in data.getvalue().decode()


def test_a_leader_that_leads_no_more_knows_who_is_in_a_test_all_the_same() -> None:
    made = fleet(4)

    def refuses(path: str, patch: list[dict[str, Any]]) -> None:
        raise NotLeader("its term is over")

    made.go_on(1)
    before_each_write(made, refuses)
    with pytest.raises(NotLeader):
        for _ in range(30):
            made.service.candidates.budgets.between = set()
            made.go_on(1)
    assert made.service.candidates.budgets.between == set(made.hosts)


@pytest.mark.parametrize("number", [1, 2])
def test_a_write_whose_answer_was_lost_has_begun_a_test(number: int) -> None:
    """The API server has it, its answer comes too late, and the watch later still."""
    made, asked, late = fleet(2), list[str](), list[Mapping[str, Any]]()
    put = made.nodes.put

    def keep_late(item: Mapping[str, Any], *, listed: bool = False) -> str:
        late.append(item)
        return ""

    def patch(path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        asked.append(path)
        if len(asked) > number:
            return made.patch(path, patch, what)
        made.nodes.put = keep_late  # type: ignore[method-assign]
        try:
            made.patch(path, patch, what)
        finally:
            made.nodes.put = put  # type: ignore[method-assign]
        raise ApiError("no answer")

    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=patch, find=made.find))
    made.service.tick()
    assert len(late) == number and made.service._running
    assert made.service.candidates.budgets.between == set(made.hosts)
    made.go_on(15)
    assert made.count("passed") >= 1 and made.count("inconclusive") == 0


def test_while_nobody_can_say_whether_it_has_begun_it_is_not_forgotten() -> None:
    made, answers = fleet(2), list[bool]()

    def patch(path: str, patch: list[dict[str, Any]], what: str = "") -> dict[str, Any]:
        if not answers:
            made.patch(path, patch, what)
            raise ApiError("no answer")
        return made.patch(path, patch, what)

    def find(path: str) -> dict[str, Any] | None:
        if not answers:
            raise ApiError("no answer")
        return made.find(path)

    def takes_nothing(item: Mapping[str, Any], *, listed: bool = False) -> str:
        return ""

    put = made.nodes.put
    made.nodes.put = takes_nothing  # type: ignore[method-assign]
    made.service.writes.api = cast(KubeApi, SimpleNamespace(patch=patch, find=find))
    made.service.tick()
    made.service.tick()
    assert made.under_test() == set(made.hosts) and made.service.candidates.budgets.between == set(made.hosts)
    made.nodes.put = put  # type: ignore[method-assign]
    answers.append(True)
    made.go_on(15)
    assert made.count("passed") >= 1 and made.count("inconclusive") == 0


def test_a_write_that_comes_to_pass_later_is_adopted_while_it_is_not_over() -> None:
    made = fleet(2)
    made.paused = "by ann"
    made.go_on(1)
    other = Fleet(made.hosts, now_s=50.0)
    other.service.tick()
    text = other.notes("gpu-1")[NAMES.fabric_test]
    made.annotate("gpu-1", NAMES.fabric_test, text)
    made.go_on(int(service.ADOPT_S) + 1)
    assert made.service.candidates.budgets.between == set(made.hosts)
    made.go_on(30)
    assert made.under_test() == set() and made.count("passed") == 1
    # One that is over is decide()'s to take away.
    made.now_s += 3600
    made.annotate("gpu-1", NAMES.fabric_test, text)
    made.go_on(int(service.ADOPT_S) + 1)
    assert made.under_test() == {"gpu-1"} and not made.service.candidates.budgets.between


def test_one_that_is_found_as_others_are_to_begin_is_adopted_at_once() -> None:
    made = fleet(2)
    made.paused = "by ann"
    made.go_on(1)
    other = Fleet(made.hosts, now_s=1.0)
    other.service.tick()
    made.annotate("gpu-1", NAMES.fabric_test, other.notes("gpu-1")[NAMES.fabric_test])
    made.paused = ""
    made.go_on(20)
    assert made.count("passed") == 1 and made.count("inconclusive") == 0


def test_why_a_node_refuses_is_told_without_what_a_terminal_obeys() -> None:
    made, answer = fleet(2), Fleet.answer

    def refuses(name: str, host: Host, text: str) -> str:
        found = read_fabric_answer(answer(made, name, host, text))
        return fabric_text(replace(found, part=Part.REFUSED, why="no\N{RIGHT-TO-LEFT OVERRIDE}"))

    made.answer = refuses  # type: ignore[method-assign]
    made.go_on(5)
    assert "no?" in made.said.getvalue() and "\N{RIGHT-TO-LEFT OVERRIDE}" not in made.said.getvalue()


def test_a_node_that_is_never_as_it_should_be_costs_others_no_turn() -> None:
    made = fleet(3)
    item = made.objects[RECORD + "gpu-1"]
    made.put(RECORD + "gpu-1", {**item, "spec": {**item["spec"], "identity": {"addresses": "none"}}})
    made.go_on(60)
    assert [made.proof(name).get("passes", 0) for name in made.hosts] == [0, 2, 2]


def test_one_that_may_not_be_written_rests_and_is_told_once() -> None:
    made, asked = fleet(4), list[str]()

    def refuses(path: str, patch: list[dict[str, Any]]) -> None:
        if path == f"{NODE}gpu-1":
            asked.append(path)
            raise ApiError("a policy of others", 403)

    before_each_write(made, refuses)
    made.go_on(90)
    outcomes = made.outcomes()
    assert outcomes.pop("gpu-1") == "" and set(outcomes.values()) == {"passed"}, made.said.getvalue()
    assert made.count("inconclusive") == 1 and made.said.getvalue().count("a policy of others") <= 2


def test_a_test_of_its_own_that_a_person_asks_for_comes_first() -> None:
    made = fleet(2)
    item = made.objects[RECORD + "gpu-2"]
    retest = spec_document(Spec(retest=Ask("ann", "new NIC", "2026-11-28T11:59:00Z")))["retest"]
    made.put(RECORD + "gpu-2", {**item, "spec": {**item["spec"], "retest": retest}})
    made.go_on(10)
    assert "are tested with" not in made.said.getvalue()
    made.status("gpu-2", retested=retest["since"])
    made.go_on(10)
    assert "are tested with" in made.said.getvalue()


def test_one_that_could_not_be_had_for_an_hour_keeps_its_node_from_no_others() -> None:
    """It is asked for again and again; the node takes work meanwhile, whose check may need a test with another one."""
    made = fleet(2)
    item = made.objects[RECORD + "gpu-2"]
    retest = spec_document(Spec(retest=Ask("ann", "new NIC", "2026-11-28T10:59:00Z")))["retest"]
    made.put(RECORD + "gpu-2", {**item, "spec": {**item["spec"], "retest": retest}})
    made.go_on(10)
    assert "are tested with" in made.said.getvalue()


def test_a_request_that_is_read_back_is_the_same() -> None:
    made = fleet(2)
    made.service.tick()
    text = made.notes("gpu-1")[NAMES.fabric_test]
    assert fabric_text(read_fabric_request(text)) == text


def test_those_of_whom_none_may_be_written_rest() -> None:
    made, asked = fleet(2), list[str]()

    def refuses(path: str, patch: list[dict[str, Any]]) -> None:
        asked.append(path)
        raise ApiError("a policy of others", 403)

    before_each_write(made, refuses)
    made.go_on(30)
    assert len(asked) == 2 and not made.service.candidates.budgets.between


def test_one_named_is_free_after_a_burn_in_that_began_later_than_it_was_asked_for() -> None:
    asked = {"retested": "2026-11-28T10:59:00Z"}
    for more, under_test in (({}, 0), ({"retestBegan": "2026-11-28T11:00:10Z"}, 2)):
        made = fleet(2)
        made.status("gpu-1", fabric=named(made, "gpu-1"), **asked, **more)
        made.service.tick()
        assert len(made.under_test()) == under_test
