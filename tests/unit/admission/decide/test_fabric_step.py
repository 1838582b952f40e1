"""A test with another node as a step of admission: who waits, until when, and what the policy makes of a lone node."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, withheld
from gpu_burnin.admission.decide.fabric import FABRIC_ALONE, FABRIC_WAITS, passed_at, wanted
from gpu_burnin.admission.fabric_config import Admission, Alone, FabricRules
from gpu_burnin.admission.view import Budget, Rules, View
from gpu_burnin.api.agent_note import Maintenance
from gpu_burnin.api.fabric_note import FabricRequest, fabric_text
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.record import Ask, Place
from gpu_burnin.api.rendezvous import Nic
from tests.support.admission_helpers import BOOT, NOW, make_node
from tests.support.decide_helpers import NAMES, RULES, SPEC, carried_out, changed, make_view, ready_view, seen, settled
from tests.support.decide_situations import CASES

ADMIT = replace(RULES, fabric=FabricRules(Admission.REQUIRED))
HOLD = replace(RULES, fabric=FabricRules(Admission.REQUIRED, alone=Alone.HOLD))
PASS = FabricProof(BOOT, "2026-11-21T11:59:00Z", FabricOutcome.PASSED, "run", ("gpu-2",), passes=1)
WITH_NIC = replace(SPEC, fabric=(Nic(0, "10.1.0.1"),), place=Place(leaf="leaf-7"))
END = NOW + timedelta(seconds=900)
SECOND = timedelta(seconds=1)


def waiting(rules: Rules = ADMIT, **changes: Any) -> View:
    """A node that has passed its own burn-in, as it is once all is written."""
    return settled(make_view(spec=WITH_NIC, **changes), rules=rules)


def proven(view: View, **changes: Any) -> View:
    return changed(view, status={"fabric": replace(PASS, **changes)})


def let_in(view: View, now: datetime = NOW, rules: Rules = ADMIT) -> bool:
    return seen(view, now, rules).ready


def under_test(view: View, until: datetime) -> View:
    """It is asked for a test with another node."""
    assert view.node is not None
    request = FabricRequest("id", "2026-11-21T12:00:00Z", until.strftime("%Y-%m-%dT%H:%M:%SZ"), "{}", {})
    note = {NAMES.fabric_test: fabric_text(request)}
    metadata = {**view.node["metadata"], "annotations": {**(view.node["metadata"].get("annotations") or {}), **note}}
    return replace(view, node={**view.node, "metadata": metadata})


def test_it_waits_for_a_test_with_another_node_and_says_until_when() -> None:
    found = seen(make_view(spec=WITH_NIC), rules=ADMIT)
    assert (found.state, found.code, found.ready, found.needs) == ("testing", FABRIC_WAITS, False, None)
    assert found.taints == {"preflight:NoSchedule", "preflight:NoExecute"} & found.taints
    assert found.decision.status.message == (
        "gpu-1: its own burn-in passed; it waits for a test with another node of leaf leaf-7 since "
        "2026-11-21T12:00:00Z, at the latest until 2026-11-21T12:15:00Z, then it is let in"
    )
    assert found.decision.status.next is not None
    assert (found.decision.status.next.what, found.decision.status.next.at) == ("let in", "2026-11-21T12:15:00Z")
    assert found.decision.wake_at == END and found.verdict == "pass"
    held = seen(make_view(), rules=HOLD).decision.status.message
    assert "then it is held" in held and "names no NIC" in held and "of leaf" not in held


@pytest.mark.parametrize("rules", [ADMIT, HOLD])
def test_a_pass_of_this_boot_lets_it_in_and_no_other_does(rules: Rules) -> None:
    view = waiting(rules)
    assert not let_in(view, rules=rules)
    assert let_in(proven(view), rules=rules)
    assert seen(proven(view), rules=rules).code == "PASS"
    assert not let_in(proven(view, boot_id="another"), rules=rules)
    assert not let_in(proven(view, tested_at="yesterday"), rules=rules)


def test_one_that_is_suspect_or_named_is_kept_out_beyond_the_deadline() -> None:
    view = waiting()
    for outcome, code in ((FabricOutcome.SUSPECT, "FABRIC_SUSPECT"), (FabricOutcome.NAMED, "FABRIC_NODE")):
        found = seen(proven(view, outcome=outcome, claim="node gpu-1: wrong data"), END + SECOND, ADMIT)
        assert (found.code, found.ready) == (code, False)
        assert "node gpu-1: wrong data" in found.decision.status.message


def test_at_the_deadline_the_policy_lets_a_lone_node_in_and_says_so_until_it_has_passed() -> None:
    view = waiting()
    assert not let_in(view, END - SECOND)
    found = seen(view, END, ADMIT)
    assert (found.state, found.code, found.ready, found.needs) == ("ready", FABRIC_ALONE, True, Budget.JOIN)
    words = "gpu-1: let in without a test with another node: none came about in 15 min"
    assert found.decision.status.message == words
    assert found.decision.status.transitions[-1].message == words
    # It is told for as long as it is so, whatever else is told of the node meanwhile.
    windowed = seen(changed(found.after, calendar=(Maintenance("calendar", "started"),)), END, ADMIT)
    assert windowed.code == "MAINTENANCE"
    assert seen(changed(windowed.after, calendar=()), END, ADMIT).code in (FABRIC_ALONE, "MAINTENANCE_OVER")
    assert seen(proven(found.after), END, ADMIT).code == "PASS"


def test_a_lone_node_that_is_held_stays_so_until_it_has_passed() -> None:
    found = seen(waiting(HOLD), END, HOLD)
    assert (found.state, found.code, found.ready) == ("testing", FABRIC_ALONE, False)
    assert "held, since none came about in 15 min" in found.decision.status.message
    much_later = seen(found.after, END + timedelta(days=3), HOLD)
    assert (much_later.code, much_later.ready) == (FABRIC_ALONE, False)
    assert let_in(proven(found.after), END, HOLD)


def test_the_deadline_is_of_the_record_and_no_look_moves_it() -> None:
    view = waiting()
    for minutes in range(15):
        now = NOW + timedelta(minutes=minutes)
        view = settled(view, now, ADMIT)
        assert view.record is not None and view.record.status.code == FABRIC_WAITS
        assert view.record.status.message.endswith("at the latest until 2026-11-21T12:15:00Z, then it is let in")
    assert let_in(view, END)


def test_the_node_that_is_let_in_alone_stays_so_where_the_node_was_not_written() -> None:
    before = waiting()
    decision = decide(before, ADMIT, END)
    assert before.record is not None
    # The ledger is written first; then the admitter dies.
    half = replace(before, record=replace(before.record, status=decision.status))
    assert let_in(half, END + SECOND)


def test_no_leave_to_join_keeps_the_deadline() -> None:
    view = waiting()
    decision = withheld(decide(view, ADMIT, END), "5 nodes a second", END + SECOND)
    after = carried_out(view, decision)
    assert after.record is not None and after.record.status.code == FABRIC_WAITS
    assert let_in(after, END + SECOND)


def test_a_test_or_a_window_at_the_deadline_is_waited_for() -> None:
    view = under_test(waiting(), END + timedelta(seconds=60))
    found = seen(view, END, ADMIT)
    assert (found.code, found.ready) == (FABRIC_WAITS, False)
    assert found.decision.status.next is not None
    assert found.decision.status.next.what == "judged by its test with other nodes"
    assert let_in(view, END + timedelta(seconds=75))
    window = changed(waiting(), calendar=(Maintenance("calendar", "started"),))
    assert not let_in(window, END)


def test_the_fleet_that_works_already_is_not_taken_out_by_the_policy() -> None:
    view = ready_view()
    assert decide(view, ADMIT, NOW).status == decide(view, RULES, NOW).status
    assert decide(view, ADMIT, NOW).node_patch is None


def test_after_a_boot_or_a_hold_it_waits_again() -> None:
    alone = seen(waiting(), END, ADMIT).after
    held = seen(changed(alone, spec={"hold": Ask("ann", "a reason", "2026-11-21T12:16:00Z")}), END, ADMIT).after
    found = seen(changed(held, spec={"hold": None}), END + timedelta(minutes=5), ADMIT)
    assert (found.code, found.ready) == (FABRIC_WAITS, False)
    assert "since 2026-11-21T12:20:00Z" in found.decision.status.message


def test_who_is_wanted_and_what_is_a_pass() -> None:
    assert all("gpu-1" in wanted("gpu-1", code) for code in (FABRIC_WAITS, FABRIC_ALONE))
    assert not wanted("gpu-1", "PASS")
    assert passed_at(PASS, BOOT) == datetime.fromisoformat("2026-11-21T11:59:00+00:00")
    assert passed_at(None, BOOT) is passed_at(PASS, "") is passed_at(replace(PASS, boot_id="x"), BOOT) is None
    assert passed_at(replace(PASS, outcome=FabricOutcome.SUSPECT), BOOT) is None
    assert passed_at(replace(PASS, failed_with=("gpu-3",)), BOOT) is None, "its newest test was none"


@pytest.mark.parametrize("name", CASES)
def test_every_situation_is_the_same_with_the_policy_where_the_node_has_passed(name: str) -> None:
    case = CASES[name]
    view = case.view()
    assert decide(view, replace(RULES, fabric=FabricRules()), case.now) == decide(view, RULES, case.now)
    if view.record is None or view.node is None:
        return
    boot = view.node["status"]["nodeInfo"]["bootID"] if "nodeInfo" in view.node["status"] else BOOT
    proof = replace(PASS, boot_id=boot, tested_at="2026-12-31T00:00:00Z")
    view = changed(view, status={"fabric": proof, "host_key": view.record.spec.identity.host_key})
    assert decide(view, ADMIT, case.now) == decide(view, RULES, case.now)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rules", [ADMIT, HOLD])
def test_in_every_situation_it_is_decided_once_and_only_more_is_kept_out(name: str, rules: Rules) -> None:
    case = CASES[name]
    with_policy, without = seen(case.view(), case.now, rules), seen(case.view(), case.now)
    assert without.ready or not with_policy.ready
    if not with_policy.code.startswith("FABRIC_"):
        assert (with_policy.state, with_policy.code) == (without.state, without.code)
    else:
        # Only what would be let in, or told as fit, waits.
        assert without.state in ("ready", "testing", "expiring")
    after = with_policy.after
    again = decide(after, rules, case.now)
    assert after.record is not None and again.status == after.record.status
    assert (again.node_patch, again.node_status_patch, again.needs, again.evict) == (None, None, None, ())


def test_a_new_node_has_its_own_burn_in_first() -> None:
    assert seen(make_view(None, node=make_node()), rules=ADMIT).code == "EVIDENCE_MISSING"
