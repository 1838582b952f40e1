"""Tests between nodes in a decision: the taint while one is under way, its end, and what follows from what it found."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide
from gpu_burnin.admission.decide.between import FABRIC_NODE, FABRIC_SUSPECT
from gpu_burnin.admission.view import Budget, View
from gpu_burnin.api.fabric_note import FabricRequest, fabric_text
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.record import Ask, Transition
from gpu_burnin.system.clock import rfc3339_s
from tests.support.admission_helpers import BOOT, BOOT2, NOW
from tests.support.decide_helpers import GPU_POD, NAMES, PASSED, RULES, carried_out, changed, ready_view, seen, settled

UNTIL = NOW + timedelta(minutes=3)
REQUEST = FabricRequest("run-1", rfc3339_s(NOW), rfc3339_s(UNTIL), "{}", {})
TESTING = "testing:NoSchedule"
BEFORE = "2026-11-21T11:59:00Z"
AFTER = "2026-11-21T11:59:30Z"
SUSPECT = FabricProof(BOOT, BEFORE, FabricOutcome.SUSPECT, "run-1", ("gpu-2",), claim="one of two")
NAMED = replace(SUSPECT, outcome=FabricOutcome.NAMED, failures=3, claim="node gpu-1: wrong data")


def with_request(view: View, text: str = fabric_text(REQUEST)) -> View:
    """The view with the admitter's request on the Node."""
    assert view.node is not None
    notes = {**(view.node["metadata"].get("annotations") or {}), NAMES.fabric_test: text}
    return replace(view, node={**view.node, "metadata": {**view.node["metadata"], "annotations": notes}})


def notes_of(view: View) -> dict[str, Any]:
    assert view.node is not None
    return dict(view.node["metadata"].get("annotations") or {})


def test_while_one_is_under_way_no_new_pod_comes_and_the_node_stays_ready() -> None:
    shown = seen(with_request(ready_view()))
    assert (shown.state, shown.taints, shown.ready, shown.needs) == ("ready", frozenset({TESTING}), True, None)
    assert notes_of(shown.after)[NAMES.fabric_test] == fabric_text(REQUEST)
    assert shown.decision.status.next is not None
    assert shown.decision.status.next.what == "judged by its test with other nodes"
    assert shown.decision.wake_at == UNTIL
    assert settled(shown.after) == shown.after


@pytest.mark.parametrize("text", [fabric_text(REQUEST), fabric_text(replace(REQUEST, until="x")), "{"])
def test_at_its_end_nothing_stays_though_nobody_has_taken_it_away(text: str) -> None:
    at_test = seen(with_request(ready_view())).after
    if "T12" in text.partition("until")[2]:
        # The leader, who counts a silent member, comes to its end first.
        assert NAMES.fabric_test in notes_of(seen(with_request(at_test, text), UNTIL + timedelta(seconds=14)).after)
    shown = seen(with_request(at_test, text), UNTIL + timedelta(seconds=15))
    assert shown.taints == frozenset() and NAMES.fabric_test not in notes_of(shown.after)


def test_a_closed_node_gets_no_more_taints_by_it() -> None:
    shown = seen(with_request(settled(changed(ready_view(), status={"fabric": SUSPECT}))))
    assert shown.taints == {"preflight:NoSchedule"} and NAMES.fabric_test in notes_of(shown.after)


def test_no_test_of_its_own_begins_meanwhile() -> None:
    wanted = changed(ready_view(), test="quick", test_why="its turn")
    assert decide(wanted, *_rules()).status.request is not None
    assert decide(with_request(wanted), *_rules()).status.request is None
    retest = Ask("ann", "why", "2026-11-21T11:59:00Z", level="quick")
    assert decide(with_request(changed(ready_view(), spec={"retest": retest})), *_rules()).status.request is None


def test_a_suspect_takes_no_new_work_and_keeps_what_it_has() -> None:
    shown = seen(changed(ready_view(), status={"fabric": SUSPECT}, pods=(GPU_POD,)))
    assert (shown.state, shown.code, shown.needs) == ("suspect", FABRIC_SUSPECT, Budget.GATE)
    assert shown.evict == () and "one of two" in shown.decision.status.message
    assert decide(shown.after, *_rules()).status.request is None, "a burn-in cannot clear it"


def test_a_boot_ends_a_suspicion_and_not_what_is_named() -> None:
    old = replace(SUSPECT, boot_id=BOOT2)
    assert seen(changed(ready_view(), status={"fabric": old})).state == "ready"
    shown = seen(changed(ready_view(), status={"fabric": replace(NAMED, boot_id=BOOT2)}))
    assert (shown.state, shown.code) == ("quarantined", FABRIC_NODE)


def test_what_is_named_is_quarantined_as_by_a_run_of_its_own() -> None:
    shown = seen(changed(ready_view(), status={"fabric": NAMED}, pods=(GPU_POD,)))
    assert (shown.state, shown.code, shown.needs) == ("quarantined", FABRIC_NODE, Budget.GATE)
    assert f"quarantine={FABRIC_NODE}:NoSchedule" in shown.taints and not shown.ready and shown.verdict == "fail"
    assert shown.evict == (GPU_POD.name,) and "wrong data" in shown.decision.status.message


@pytest.mark.parametrize("proof", [SUSPECT, NAMED])
@pytest.mark.parametrize(
    "status",
    [
        {"retested": AFTER},
        {"transitions": (Transition(AFTER, "quarantined", "repairing", "REPAIRING", "x"),)},
    ],
)
def test_a_repair_or_a_test_that_a_person_asked_for_ends_it(proof: FabricProof, status: dict[str, Any]) -> None:
    shown = seen(changed(ready_view(), status={"fabric": proof, **status}))
    assert shown.code not in (FABRIC_NODE, FABRIC_SUSPECT)
    earlier = {"retested": "2026-11-21T11:58:00Z"}
    assert seen(changed(ready_view(), status={"fabric": proof, **earlier})).code in (FABRIC_NODE, FABRIC_SUSPECT)


def test_a_retest_that_waited_for_the_end_of_a_test_with_others_ends_what_that_found() -> None:
    """The person asked before the pair failed, and the burn-in that it asked for came after."""
    ask = Ask("ann", "new NIC", "2026-11-21T11:59:58Z", level="quick")
    busy = settled(with_request(changed(ready_view(), spec={"retest": ask})))
    assert busy.record is not None and busy.record.status.request is None
    failed = NOW + timedelta(seconds=10)
    proof = replace(SUSPECT, tested_at=rfc3339_s(failed))
    asked = settled(changed(with_request(busy, "{"), status={"fabric": proof}), failed)
    assert asked.record is not None and asked.record.status.request is not None
    sent = settled(asked, failed + timedelta(seconds=RULES.settle_s))
    passed = replace(PASSED, level="quick", sequence=6, finished_at="2026-11-21T12:02:00Z")
    shown = seen(changed(sent, statement=passed), NOW + timedelta(minutes=3))
    assert (shown.code, shown.decision.status.retested) == ("PASS", ask.since)
    assert shown.decision.status.retest_began == rfc3339_s(failed)
    # What is found after it counts.
    later = replace(proof, tested_at="2026-11-21T12:03:00Z")
    assert seen(changed(shown.after, status={"fabric": later}), NOW + timedelta(minutes=4)).code == FABRIC_SUSPECT


def test_what_clears_a_suspect_is_said_as_it_is() -> None:
    shown = seen(changed(ready_view(), status={"fabric": SUSPECT}))
    assert shown.decision.status.next is not None
    assert "with another suspect one pass clears those that did not fail" in shown.decision.status.next.why


def test_a_person_comes_before_it() -> None:
    hold = Ask("ann", "looks at it", BEFORE)
    assert seen(changed(ready_view(), status={"fabric": NAMED}, spec={"hold": hold})).state == "held"


def test_a_proof_of_another_key_is_none() -> None:
    view = ready_view(status={"fabric": NAMED, "host_key": "ssh-ed25519 BBBB"})
    assert decide(view, *_rules()).status.fabric is None


def test_what_tests_found_stays_in_the_record() -> None:
    view = changed(ready_view(), status={"fabric": NAMED})
    after = carried_out(view, decide(view, *_rules()))
    assert after.record is not None and after.record.status.fabric == NAMED


def _rules() -> tuple[Any, Any]:
    return RULES, NOW
