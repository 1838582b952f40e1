"""What a test between nodes leaves in the ledger: who is proven, suspect, named, cleared, and who is never blamed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_burnin.admission.fabric.proofs import after, is_proven, is_suspect, with_fault
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.fabric.model import ALL, Found, Judged, Kind, Purpose, Test

THEN, NOW = "2026-11-28T11:00:00Z", "2026-11-28T12:00:00Z"
NEW = FabricProof("boot-a", THEN, FabricOutcome.PASSED, "run-0")
PROVEN = replace(NEW, passes=2)
SUSPECT = replace(NEW, outcome=FabricOutcome.SUSPECT, claim="one of two")
FAILURES = [found for found in Found if found not in (Found.PASS, Found.SPOILED)]


def outcome_of(
    found: Found,
    a: FabricProof | None = None,
    b: FabricProof | None = None,
    rails: tuple[int, ...] = (0,),
    silent: tuple[str, ...] = (),
    run: str = "",
) -> dict[str, FabricProof]:
    """A test of a and b, the next one of theirs."""
    run = run or f"run-{1 + max((int(one.run.removeprefix('run-')) for one in (a, b) if one), default=0)}"
    test = Test(0, Kind.PAIR, Purpose.PAIRS, ("a", "b"), ("a", "b"))
    boots = {"a": "boot-a", "b": "boot-b"}
    return after(Judged(test, {ALL: found}), {"a": a, "b": b}, boots, run, NOW, {"a": rails, "b": rails}, silent)


def test_two_passes_prove_a_node() -> None:
    first = outcome_of(Found.PASS)
    assert first["a"] == FabricProof("boot-a", NOW, FabricOutcome.PASSED, "run-1", ("b",), passes=1)
    assert not is_proven(first["a"])
    assert is_proven(outcome_of(Found.PASS, first["a"], first["b"])["a"])


def test_an_inconclusive_test_shows_nothing() -> None:
    assert outcome_of(Found.SPOILED, PROVEN, SUSPECT) == {}


@pytest.mark.parametrize("found", FAILURES)
@pytest.mark.parametrize("both", [None, NEW, PROVEN])
def test_a_failure_of_two_alike_makes_suspects_of_both(found: Found, both: FabricProof | None) -> None:
    after_it = outcome_of(found, both, both)
    assert all(is_suspect(one) and one.failures == one.passes == 0 for one in after_it.values())
    assert after_it["a"].claim == f"one of these, not told apart: node a, node b: {found}"


@pytest.mark.parametrize("found", FAILURES)
def test_a_proven_partner_is_never_blamed_and_three_failures_with_two_of_them_name(found: Found) -> None:
    suspect: FabricProof | None = None
    for failures in (1, 2, 3):
        shown = outcome_of(found, suspect, PROVEN)
        assert shown["b"].outcome is FabricOutcome.PASSED and shown["a"].failures == failures
        suspect = shown["a"]
        assert is_suspect(suspect), "the partner may be the bad one"
    suspect = outcome_of(found, replace(SUSPECT, failures=2, failed_with=("c",)), PROVEN)["a"]
    assert suspect.outcome is FabricOutcome.NAMED and suspect.failed_with == ("c", "b")
    assert suspect.claim.startswith(f"node a: {found}; or cable of a on rail 0, NIC of a")
    assert "failed 3 of 3 tests with proven partners, the last with b" in suspect.claim


def test_a_partner_with_whom_others_fail_and_with_nobody_else_is_proven_no_more() -> None:
    bad = PROVEN
    for failures in (1, 2, 3):
        bad = outcome_of(Found.WRONG, bad, None)["a"]
        assert is_suspect(bad) is (failures == 3) and is_proven(bad) is (failures < 3)
    assert bad.claim == "one of these, not told apart: node a, node b: wrong data" and bad.failures == 0
    # Its next pass speaks for it, and who failed with others too does not speak against it.
    failed = replace(PROVEN, failed_with=("x", "b"))
    assert outcome_of(Found.PASS, failed, PROVEN)["a"].failed_with == ()
    assert set(outcome_of(Found.WRONG, failed, replace(SUSPECT, failures=1, failed_with=("c",)))) == {"b"}


def test_silence_counts_against_the_silent_alone() -> None:
    assert set(outcome_of(Found.SILENT, PROVEN, PROVEN, silent=("a",))) == {"a"}
    assert outcome_of(Found.SILENT, silent=("b",))["b"].claim == "node b: silent"
    assert set(outcome_of(Found.SILENT, SUSPECT, PROVEN, silent=("a",))) == {"a"}


def test_the_next_leader_writes_what_is_missing_and_nothing_twice() -> None:
    for before in (None, PROVEN):
        whole = outcome_of(Found.WRONG, before, before, run="run-7")
        assert outcome_of(Found.WRONG, whole["a"], before, run="run-7") == {"b": whole["b"]}
        assert outcome_of(Found.WRONG, whole["a"], whole["b"], run="run-7") == {}
    whole = outcome_of(Found.WRONG, SUSPECT, PROVEN, run="run-7")
    assert outcome_of(Found.WRONG, SUSPECT, whole["b"], run="run-7") == {"a": whole["a"]}
    assert outcome_of(Found.WRONG, whole["a"], PROVEN, run="run-7") == {"b": whole["b"]}


def test_two_suspects_that_pass_begin_anew_unless_a_proven_one_speaks_against_it() -> None:
    shown = outcome_of(Found.PASS, SUSPECT, replace(SUSPECT, failures=1, failed_with=("c",)))
    assert (shown["a"].outcome, shown["a"].passes, shown["a"].claim) == (FabricOutcome.PASSED, 1, "")
    assert is_suspect(shown["b"]) and shown["b"].failures == 1
    assert is_suspect(outcome_of(Found.WRONG, SUSPECT, SUSPECT)["a"])


def test_a_fault_of_its_own_makes_a_suspect_whatever_it_was() -> None:
    for before in (None, PROVEN, SUSPECT):
        found = with_fault(before, "boot-a", "run-1", NOW, "no interface has the address 198.51.100.2")
        assert is_suspect(found) and found.claim == "no interface has the address 198.51.100.2"
    named = replace(NEW, outcome=FabricOutcome.NAMED)
    assert with_fault(named, "boot-a", "run-1", NOW, "x") == named


def test_of_several_rails_no_link_is_named() -> None:
    assert outcome_of(Found.WRONG, SUSPECT, PROVEN, rails=(0, 1))["a"].claim.startswith("node a: wrong data; failed")


def test_three_passes_with_proven_partners_clear_a_suspect_and_others_do_not() -> None:
    assert outcome_of(Found.PASS, SUSPECT, NEW)["a"].passes == 0
    suspect = replace(SUSPECT, failures=2)
    for passes in (1, 2):
        suspect = outcome_of(Found.PASS, suspect, PROVEN)["a"]
        assert is_suspect(suspect) and suspect.passes == passes
    cleared = outcome_of(Found.PASS, suspect, PROVEN)["a"]
    assert is_proven(cleared) and (cleared.failures, cleared.claim) == (0, "")


def test_a_partner_of_a_suspect_is_proven_by_its_own_passes() -> None:
    assert is_proven(outcome_of(Found.PASS, SUSPECT, replace(NEW, boot_id="boot-b", passes=1))["b"])


def test_what_is_named_stays_so() -> None:
    named = replace(NEW, outcome=FabricOutcome.NAMED, failures=3, claim="node a")
    assert "a" not in outcome_of(Found.PASS, named, PROVEN) and "a" not in outcome_of(Found.WRONG, named, PROVEN)


def test_a_record_keeps_the_newest_partners_each_once() -> None:
    old = replace(PROVEN, partners=("b", *(f"n-{number}" for number in range(7))))
    assert outcome_of(Found.PASS, old)["a"].partners == (*(f"n-{number}" for number in range(7)), "b")
    full = replace(PROVEN, partners=tuple(f"n-{number}" for number in range(8)))
    assert outcome_of(Found.PASS, full)["a"].partners == (*(f"n-{number}" for number in range(1, 8)), "b")


@pytest.mark.parametrize("found", list(Found))
def test_a_group_says_nothing_of_a_node(found: Found) -> None:
    test = Test(0, Kind.GROUP, Purpose.LEAF, ("a", "b", "c"), ("leaf",))
    boots = dict.fromkeys("abc", "boot-a")
    assert after(Judged(test, {ALL: found}), dict.fromkeys("abc", PROVEN), boots, "run-1", NOW, {}) == {}
