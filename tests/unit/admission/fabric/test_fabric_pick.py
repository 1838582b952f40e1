"""Which idle nodes are tested with which: who comes first, who may be whose partner, and how many at a time."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.fabric.pick import Row, Turns, pick, waited_for
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof

NOW_S = datetime(2026, 11, 28, 12, 0, 0, tzinfo=UTC).timestamp()
DAY_S = 86400.0
PROVEN = FabricProof("b", "2026-11-28T11:00:00Z", FabricOutcome.PASSED, "r", passes=2)
SUSPECT = replace(PROVEN, outcome=FabricOutcome.SUSPECT, passes=0)
NAMED = replace(PROVEN, outcome=FabricOutcome.NAMED, failures=3)


def pairs(
    rows: list[Row], places: int = 100, every_s: float = DAY_S, seed: int = 1, *, lone: bool = False
) -> list[tuple[str, ...]]:
    turns = Turns(every_s, NOW_S, lone=lone)
    return [one.members for one in pick(rows, places, turns, random.Random(seed))]


def test_new_nodes_of_a_leaf_are_tested_with_each_other_within_the_places() -> None:
    rows = [Row(f"n-{number}", "leaf-1") for number in range(7)]
    for places, wanted in ((0, 0), (1, 0), (2, 1), (3, 1), (6, 3), (100, 3)):
        found = pairs(rows, places)
        assert len(found) == wanted
        assert len({name for pair in found for name in pair}) == 2 * wanted


def test_pairs_are_of_one_leaf_and_drawn_anew() -> None:
    rows = [Row(f"n-{leaf}-{number}", leaf) for leaf in ("a", "b") for number in range(8)]
    found = pairs(rows)
    assert len(found) == 8 and all(pair[0][2] == pair[1][2] for pair in found)
    assert {frozenset(one) for one in found} != {frozenset(one) for one in pairs(rows, seed=2)}


def test_without_standing_tests_only_suspects_and_those_that_are_waited_for() -> None:
    rows = [Row("new", "l"), Row("old", "l", replace(PROVEN, tested_at="2026-11-01T00:00:00Z")), Row("p", "l", PROVEN)]
    assert pairs(rows, every_s=0) == []
    assert pairs([*rows, Row("s", "l", SUSPECT)], 2, every_s=0)[0][0] == "s"
    assert pairs([*rows, Row("w", "l", wanted="its policy asks for it")], 2, every_s=0)[0][0] == "w"


def test_those_that_are_waited_for_come_first_then_suspects_then_the_oldest() -> None:
    old = replace(PROVEN, tested_at="2026-11-01T00:00:00Z")
    rows = [Row("new", "l"), Row("s", "l", SUSPECT), Row("w", "l", wanted="x"), Row("old", "l", old)]
    rows += [Row(f"p-{number}", "l", PROVEN) for number in range(3)]
    assert [members[0] for members in pairs(rows)][:2] == ["w", "s"]
    assert [one.why for one in pick(rows, 4, Turns(DAY_S, NOW_S), random.Random(1))] == [
        "x",
        "s failed with another node, and nothing explains that yet",
    ]


def test_a_node_that_is_proven_is_tested_again_in_its_time() -> None:
    old = replace(PROVEN, tested_at="2026-11-27T11:59:00Z")
    assert pairs([Row("a", "l", PROVEN), Row("b", "l", PROVEN)]) == []
    assert set(pairs([Row("a", "l", old), Row("b", "l", PROVEN)])[0]) == {"a", "b"}


def test_a_suspect_gets_a_proven_partner_of_its_leaf_that_it_was_not_with() -> None:
    suspect = Row("s", "a", replace(SUSPECT, partners=("p-1",)))
    rows = [suspect, Row("p-1", "a", PROVEN), Row("p-2", "a", PROVEN), Row("new", "a"), Row("q", "b", PROVEN)]
    assert pairs(rows, 2) == [("s", "p-2")]
    assert pairs([suspect, Row("p-1", "a", PROVEN), Row("new", "a"), Row("q", "b", PROVEN)], 2) == [("s", "p-1")]
    assert pairs([suspect, Row("new", "a"), Row("q", "b", PROVEN)], 2) == [("s", "q")]
    # One with which others have failed may be the bad one.
    failed = replace(PROVEN, failed_with=("x",), tested_at="2026-11-01T00:00:00Z")
    assert pairs([Row("s", "a", SUSPECT), Row("p-1", "a", failed), Row("p-2", "a", PROVEN)], 2) == [("s", "p-2")]


def test_no_good_node_meets_a_suspect_before_it_is_proven() -> None:
    suspect, once = Row("s", "a", SUSPECT), replace(PROVEN, passes=1)
    # The last one of the fleet that is none has nobody with whom it could be.
    assert pairs([suspect, Row("new", "a")], every_s=0) == []
    assert pairs([suspect, Row("new", "a")], every_s=0, lone=True) == [("s", "new")]
    rows = [suspect, Row("new", "b"), Row("n-1", "b", once), Row("n-2", "b", once)]
    assert {frozenset(one) for one in pairs(rows, every_s=0)} == {frozenset({"n-1", "n-2"})}
    chosen = pick(rows, 2, Turns(0, NOW_S), random.Random(1))
    assert [one.why for one in chosen] == ["a suspect, s, needs partners that are proven"]


def test_suspects_are_tested_with_each_other_where_nobody_else_is_free_and_not_the_same_two_at_once() -> None:
    rows = [Row("s", "a", SUSPECT), Row("t", "a", SUSPECT)]
    assert set(pairs(rows)[0]) == {"s", "t"}
    assert pairs([rows[0], Row("t", "a", replace(SUSPECT, partners=("s",)))]) == []
    # Where all have met, as behind a firewall that stays closed, it goes round; one that it has not met comes first.
    met = [Row("s", "a", replace(SUSPECT, partners=("u", "t"))), Row("u", "a", replace(SUSPECT, partners=("s", "x")))]
    met.append(Row("t", "a", replace(SUSPECT, partners=("u", "s"))))
    assert {frozenset(one) for one in pairs(met, 2)} <= {frozenset({"s", "u"}), frozenset({"t", "u"})} and pairs(met, 2)
    assert {frozenset(one) for one in pairs([met[0], met[1], Row("v", "b", SUSPECT)], 2)} <= {
        frozenset({"s", "v"}),
        frozenset({"u", "v"}),
    }
    young = replace(SUSPECT, tested_at="2026-11-28T11:55:00Z")
    assert pairs([rows[0], Row("t", "a", young)]) == []
    assert pairs([*rows, Row("p", "b", PROVEN)]) in ([("s", "p")], [("t", "p")])
    assert pairs([*rows, Row("n-1", "b"), Row("n-2", "b")])[0] in (("n-1", "n-2"), ("n-2", "n-1"))


def test_a_node_that_a_job_is_about_to_have_meets_a_suspect_of_that_job_alone() -> None:
    mine, other = Row("p", "a", PROVEN, jobs=("j",)), Row("q", "a", PROVEN, jobs=("k",))
    assert pairs([Row("s", "a", SUSPECT, jobs=("j",)), mine, other]) == [("s", "p")]
    assert pairs([Row("s", "a", SUSPECT), mine, other]) == []
    assert pairs([Row("w", "a", wanted="x"), mine]) == [] == pairs([Row("n", "a", jobs=("j",)), Row("m", "a")])


def test_nodes_that_a_job_waits_for_meet_those_of_that_job_first_also_one_with_a_fresh_pass() -> None:
    met = replace(PROVEN, partners=("fresh",))
    old, fresh = Row("old", "a", met, wanted="x", jobs=("j",)), Row("fresh", "b", PROVEN, jobs=("j",))
    other, idle = Row("other", "a", PROVEN, jobs=("k",)), Row("idle", "a", PROVEN)
    assert pairs([old, idle, fresh, other]) == [("old", "idle")], "of its leaf, before any of another one"
    assert pairs([old, replace(fresh, leaf="a"), idle, other]) == [("old", "fresh")]
    assert pairs([old, fresh, other]) == [("old", "fresh")]
    assert pairs([old, other]) == [] == pairs([fresh, other])


def test_what_a_job_that_waits_holds_idle_may_be_in_its_tests_without_a_place() -> None:
    old, fresh = Row("old", "a", wanted="x", jobs=("j",)), Row("fresh", "a", PROVEN, jobs=("j",))
    suspect, other = Row("s", "a", SUSPECT, jobs=("j",)), Row("other", "a", PROVEN, jobs=("k",))
    waits = Row("waits", "a", wanted="its own pass is no proof of the fabric")
    assert waited_for([old, fresh, suspect, other, waits, Row("idle", "a", PROVEN)]) == [old, fresh, waits]


def test_a_large_fleet_is_looked_through_in_a_moment() -> None:
    """What is read of the nodes is counted: each with each would be millions."""
    reads = 0

    class Counted(Row):
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            nonlocal reads
            reads += 1
            return super().__getattribute__(name)

    suspects = [Counted(f"n-{number}", f"leaf-{number // 16}", SUSPECT) for number in range(3000)]
    assert len(pairs(list(suspects), 64)) == 32 and reads < 300_000
    reads = 0
    known = [Counted(f"n-{number}", "a", replace(SUSPECT, partners=(f"n-{number ^ 1}",))) for number in range(3000)]
    assert len(pairs(list(known), 64)) == 32 and reads < 300_000
    reads = 0
    without = [Counted(f"n-{number}", "", None, "waits") for number in range(3000)]
    assert len(pairs(list(without), 128)) == 64 and reads < 300_000


def test_what_is_named_is_nobodys_partner() -> None:
    assert pairs([Row("s", "a", SUSPECT), Row("n", "a", NAMED)]) == []
    assert pairs([Row("new", "a"), Row("n", "a", NAMED)]) == []


def test_a_node_that_is_alone_in_its_leaf_is_tested_with_others_where_it_is_waited_for() -> None:
    rows = [Row("alone", "a"), Row("x", "b")]
    assert pairs(rows) == []
    assert pairs([replace(rows[0], wanted="its policy asks for it"), rows[1]]) == [("alone", "x")]


def test_a_leaf_is_tested_as_a_whole_where_all_its_nodes_are_free_and_proven_and_there_are_places() -> None:
    leaf = [Row(f"n-{number}", "a", PROVEN) for number in range(4)]

    def groups(rows: list[Row], places: int = 4, **due: int) -> list[tuple[str, ...]]:
        return [one.members for one in pick(rows, places, Turns(DAY_S, NOW_S), random.Random(1), due)]

    assert groups(leaf, a=4) == [("n-0", "n-1", "n-2", "n-3")]
    assert groups(leaf) == [] == groups(leaf, 3, a=4) == groups(leaf, a=5) == groups(leaf, b=4)
    assert groups(leaf[:2], a=2) == [], "two are a pair"
    assert groups([*leaf[:3], Row("n-3", "a", replace(PROVEN, passes=1))], 8, a=4) == [("n-3", "n-0")]
    assert groups([*leaf, Row("s", "a", SUSPECT)], 8, a=5)[0][0] == "s"
    many = [Row(f"n-{number}", "a", PROVEN) for number in range(33)]
    assert groups(many, 100, a=33) == [] and len(groups(many[:32], 100, a=32)[0]) == 32
