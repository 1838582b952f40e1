"""The way of a test that the admitter asks for: taint, settle, request, answer, back to work."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide
from gpu_burnin.admission.decide.retest import before_others_until
from gpu_burnin.admission.service.cache import Records
from gpu_burnin.admission.view import Budget, Evidence, View
from gpu_burnin.api.agent_note import AgentNote, Answer, Maintenance, Revoking, Warned, read_request
from gpu_burnin.api.evidence import Statement
from gpu_burnin.api.record import Ask, BootTests, Hardware
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, NOW
from tests.support.decide_helpers import GPU_POD, PASSED, RULES, Seen, changed, make_view, ready_view, seen, settled

SETTLED = NOW + timedelta(seconds=RULES.settle_s)
RESULT = replace(PASSED, level="quick", sequence=6, finished_at="2026-11-21T12:02:00Z")
DONE = NOW + timedelta(minutes=3)
OVERDUE = SETTLED + timedelta(seconds=60 + RULES.request_timeout_s + 1)
ASK = Ask("ann", "new fan", "2026-11-21T11:59:00Z")


def waiting() -> View:
    """gpu-1 with the testing taint, before the request is sent."""
    return seen(ready_view(test="quick", test_why="its proof is the oldest")).after


def view_with_request(**changes: Any) -> View:
    """gpu-1 with the request on its Node."""
    return changed(seen(waiting(), SETTLED).after, test="", **changes)


def request_id(view: View) -> str:
    assert view.record is not None and view.record.status.request is not None
    return view.record.status.request.id


def shown(found: Seen) -> tuple[str, str, set[str], bool, Budget | None]:
    return found.state, found.code, set(found.taints), found.ready, found.needs


def test_the_taint_comes_first_and_the_request_after_pods_on_their_way_have_shown() -> None:
    first = seen(ready_view(test="quick"))
    assert shown(first) == ("testing", "TEST_DUE", {"testing:NoSchedule"}, True, Budget.TEST)
    assert first.request == "" and first.decision.wake_at == SETTLED
    assert seen(first.after, SETTLED - timedelta(seconds=1)).request == ""
    second = seen(first.after, SETTLED)
    assert shown(second) == ("testing", "TEST_DUE", {"testing:NoSchedule"}, True, None)
    ask = read_request(second.request)
    assert (ask.level, ask.id) == ("quick", request_id(second.after))
    assert "gpu-1" in second.decision.status.message
    assert second.decision.status.next and second.decision.status.next.what == "judged by its test"


def test_a_pass_ends_the_test_and_the_node_was_ready_all_the_time() -> None:
    found = seen(view_with_request(statement=RESULT), DONE)
    assert shown(found) == ("ready", "PASS", set(), True, None)
    assert found.request == "" and found.decision.status.request is None
    status = found.decision.status
    assert status.accepted and status.accepted.sequence == 6
    assert status.proofs == {"standard": PASSED.finished_at, "quick": RESULT.finished_at}
    assert [(t.before, t.after) for t in status.transitions] == [
        ("new", "ready"),
        ("ready", "testing"),
        ("testing", "ready"),
    ]


def test_a_choice_of_the_schedule_is_served_by_the_answer_that_has_just_come() -> None:
    found = seen(changed(view_with_request(statement=RESULT), test="quick"), DONE)
    assert shown(found) == ("ready", "PASS", set(), True, None)
    assert found.decision.status.request is None


def test_a_fail_in_a_test_puts_the_node_in_quarantine() -> None:
    found = seen(view_with_request(statement=replace(RESULT, verdict=Verdict.FAIL)), DONE)
    assert shown(found) == (
        "quarantined",
        "FAIL",
        {"preflight:NoSchedule", "quarantine=FAIL:NoSchedule"},
        False,
        Budget.GATE,
    )
    assert found.request == ""
    # No lower level makes good what failed: the proof of the level asked for is gone.
    better = changed(found.after, statement=replace(RESULT, sequence=7, finished_at="2026-11-21T12:02:30Z"))
    assert shown(seen(better, DONE))[:2] == ("testing", "EVIDENCE_LEVEL")
    standard = replace(RESULT, sequence=7, level="standard", finished_at="2026-11-21T12:02:30Z")
    assert shown(seen(changed(found.after, statement=standard), DONE)) == (
        "ready",
        "PASS",
        set(),
        True,
        Budget.JOIN,
    )


def test_evidence_of_before_the_request_is_no_answer() -> None:
    assert shown(seen(view_with_request(), DONE))[0] == "testing"


def test_a_pass_of_a_lower_level_is_no_answer() -> None:
    view = seen(seen(ready_view(test="standard")).after, SETTLED).after
    found = seen(changed(view, statement=RESULT), DONE)
    assert found.state == "testing" and request_id(found.after) == request_id(view)


def test_a_pod_that_came_before_the_request_ends_the_test() -> None:
    found = seen(changed(waiting(), pods=(GPU_POD,)), SETTLED)
    assert shown(found) == ("ready", "PASS", set(), True, None)
    assert found.request == "" and found.decision.status.request is None
    after = found.decision.status.next
    assert after and after.what == "asked for a test again" and "pod" in after.why


def test_a_request_of_which_nobody_can_read_when_it_began_has_an_end() -> None:
    record = waiting().record
    assert record is not None and record.status.request is not None
    request = replace(record.status.request, since="yesterday")
    torn = replace(record, status=replace(record.status, request=request))
    found = seen(changed(waiting(), record=torn, test=""), SETTLED)
    assert found.request == "" and found.decision.status.request is None
    kept = {"status": {"state": "testing", "request": {"level": "quick", "since": "yesterday"}}}
    records = Records(RULES.names, RULES)
    records.put({"metadata": {"name": "gpu-1", "resourceVersion": "1"}, **kept})
    assert records.under_test() == set()


@pytest.mark.parametrize(
    ("since", "until", "first"),
    [
        ("2026-11-21T11:59:00Z", "", True),
        ("2026-11-21T11:59:00Z", "2026-11-21T11:59:30Z", False),
        ("2026-11-21T10:59:00Z", "2026-11-22T12:00:00Z", False),
        ("2026-11-21T11:59:00Z", "some day", True),
        ("yesterday", "", False),
        ("yesterday", "2026-11-22T12:00:00Z", False),
        ("", "", False),
    ],
)
def test_a_test_that_a_person_asks_for_is_before_those_with_others_for_an_hour(
    since: str, until: str, *, first: bool
) -> None:
    """One whose begin nobody can read would be for ever."""
    assert (before_others_until({"since": since, "until": until}) > NOW) == first


def test_an_agent_that_is_busy_is_asked_again_later() -> None:
    view = view_with_request()
    note = AgentNote(BOOT, request=Answer(request_id(view), "refused", "pid 12 computes on GPU 3"))
    found = seen(changed(view, agent=note, test="quick"), DONE)
    assert shown(found) == ("ready", "PASS", set(), True, None) and found.request == ""
    planned = found.decision.status.next
    assert planned and "pid 12" in planned.why and planned.at == "2026-11-21T12:18:00Z"
    assert shown(seen(found.after, DONE + timedelta(minutes=10)))[0] == "ready"
    assert shown(seen(found.after, DONE + timedelta(minutes=16)))[0] == "testing"


def test_an_agent_that_refuses_no_more_is_asked_at_once() -> None:
    """As one whose driver has come: its refusal is gone from its note."""
    view = view_with_request()
    note = AgentNote(BOOT, request=Answer(request_id(view), "refused", "no library of the driver is yet below /driver"))
    refused = seen(changed(view, agent=note, test="quick"), DONE).after
    later = DONE + timedelta(seconds=20)
    assert shown(seen(refused, later))[0] == "ready"
    assert shown(seen(changed(refused, agent=AgentNote(BOOT)), later))[0] == "testing"


def test_an_answer_to_another_request_is_none() -> None:
    note = AgentNote(BOOT, request=Answer("an older one", "refused", "busy"))
    assert shown(seen(view_with_request(agent=note), DONE))[0] == "testing"


def test_a_request_without_a_result_is_a_doubt_until_one_comes() -> None:
    view = view_with_request()
    assert shown(seen(view, OVERDUE - timedelta(seconds=2)))[0] == "testing"
    found = seen(view, OVERDUE)
    assert shown(found) == ("suspect", "REQUEST_UNANSWERED", {"preflight:NoSchedule"}, False, Budget.GATE)
    assert found.request != ""
    late = changed(found.after, statement=replace(RESULT, finished_at="2026-11-21T13:02:00Z"))
    assert shown(seen(late, OVERDUE + timedelta(minutes=1))) == ("ready", "PASS", set(), True, Budget.JOIN)


def test_a_person_can_ask_anew_for_what_was_not_answered() -> None:
    doubted = settled(view_with_request(), OVERDUE)
    found = seen(changed(doubted, spec={"retest": ASK}), OVERDUE)
    assert found.decision.status.request and "ann" in found.decision.status.request.why


def test_a_reboot_ends_the_request() -> None:
    found = seen(view_with_request(agent=AgentNote(BOOT2)), DONE)
    assert shown(found)[:2] == ("testing", "REBOOTED") and found.request == "" and not found.ready
    assert found.decision.status.request is None


def test_what_a_person_asks_for_is_done_once() -> None:
    view = settled(ready_view(spec={"retest": ASK}))
    view = settled(changed(view), SETTLED)
    assert view.record and view.record.status.state == "testing" and view.record.status.retested == ""
    standard = replace(RESULT, level="standard")
    found = seen(changed(view, statement=standard), DONE)
    assert shown(found) == ("ready", "PASS", set(), True, None)
    assert found.decision.status.retested == ASK.since
    assert shown(seen(found.after, DONE + timedelta(hours=1)))[0] == "ready"
    new = replace(ASK, since="2026-11-21T12:30:00Z")
    assert shown(seen(changed(found.after, spec={"retest": new}), DONE + timedelta(hours=1)))[0] == "testing"


def test_what_the_agent_warned_of_is_over_after_a_test() -> None:
    note = AgentNote(BOOT, warnings=(Warned("XID_SUSPECT", "xid 13", "2026-11-21T11:58:00Z"),))
    view = settled(settled(ready_view(agent=note)), SETTLED)
    assert view.record and view.record.status.state == "testing"
    after = settled(changed(view, statement=replace(RESULT, level="standard")), DONE)
    assert after.record and (after.record.status.state, after.record.status.code) == ("ready", "PASS")


def test_a_test_of_a_lower_level_does_not_end_what_the_agent_warned_of() -> None:
    note = AgentNote(BOOT, warnings=(Warned("XID_SUSPECT", "xid 13", "2026-11-21T12:01:00Z"),))
    found = seen(ready_view(agent=note, statement=RESULT), DONE)
    assert shown(found)[:2] == ("testing", "AGENT_WARNED") and found.ready
    request = found.decision.status.request
    assert request is not None and request.level == "standard"


def test_after_maintenance_a_busy_node_works_on_and_is_tested_when_it_is_idle() -> None:
    notice = Maintenance("azure", "scheduled", "2026-11-21T12:30:00Z", "2026-11-21T13:30:00Z", "Reboot")
    view = settled(ready_view(agent=AgentNote(BOOT, maintenance=notice), pods=(GPU_POD,)))
    over = changed(view, agent=AgentNote(BOOT))
    found = seen(over, DONE)
    assert shown(found) == ("ready", "MAINTENANCE_OVER", set(), True, None)
    by_hand = seen(changed(found.after, statement=replace(RESULT, finished_at="2026-11-21T12:04:00Z")), DONE)
    assert shown(by_hand)[1] == "MAINTENANCE_OVER", "a lower level than its own ends nothing"
    idle = seen(changed(found.after, pods=()), DONE)
    assert shown(idle) == ("testing", "MAINTENANCE_OVER", {"testing:NoSchedule"}, True, Budget.TEST)
    sent = settled(idle.after, DONE + timedelta(seconds=6))
    result = replace(RESULT, level="standard", finished_at="2026-11-21T12:08:00Z")
    back = seen(changed(sent, statement=result), DONE + timedelta(minutes=6))
    assert shown(back) == ("ready", "PASS", set(), True, None)
    assert [t.code for t in back.decision.status.transitions].count("MAINTENANCE") == 1


def test_a_window_that_has_begun_is_not_over_because_its_source_is_silent() -> None:
    notice = Maintenance("azure", "started")
    view = settled(ready_view(agent=AgentNote(BOOT, maintenance=notice)))
    silent = changed(view, agent=AgentNote(BOOT, maintenance=Maintenance("azure", "unknown", message="no answer")))
    assert shown(seen(silent, DONE)) == ("ready", "MAINTENANCE", {"maintenance:NoSchedule"}, True, None)


def test_no_test_begins_in_a_window_that_opened_meanwhile() -> None:
    note = AgentNote(BOOT, maintenance=Maintenance("azure", "started"))
    found = seen(changed(waiting(), agent=note), SETTLED)
    assert shown(found) == ("ready", "MAINTENANCE", {"maintenance:NoSchedule"}, True, None) and found.request == ""


def test_an_inconclusive_node_is_tested_again_but_not_without_end() -> None:
    unsure = replace(PASSED, verdict=Verdict.INCONCLUSIVE, sequence=6, finished_at="2026-11-21T11:30:00Z")
    view = settled(settled(ready_view(statement=unsure)), SETTLED)
    assert view.record and view.record.status.request
    again = replace(unsure, sequence=7, finished_at="2026-11-21T12:02:00Z")
    found = seen(changed(view, statement=again), DONE)
    assert shown(found)[:2] == ("suspect", "INCONCLUSIVE") and found.request == ""
    assert found.decision.status.request is None
    assert found.decision.wake_at and found.decision.wake_at > DONE + timedelta(minutes=30)
    later = seen(found.after, DONE + timedelta(hours=1))
    assert later.decision.status.request is not None


def test_a_boot_that_stays_inconclusive_is_tested_twice_and_then_a_persons() -> None:
    unsure = replace(
        PASSED, verdict=Verdict.INCONCLUSIVE, boot_id=BOOT2, sequence=6, finished_at="2026-11-21T11:30:00Z"
    )
    view, now, asks = ready_view(statement=unsure, agent=AgentNote(BOOT2), kubelet="Unknown"), SETTLED, 0
    for sequence in range(7, 10):
        view = settled(view, now)
        assert view.record
        asks += view.record.status.request is not None
        now += timedelta(minutes=30)
        finished = now.isoformat().replace("+00:00", "Z")
        if view.record.status.request is not None:
            view = settled(changed(view, statement=replace(unsure, sequence=sequence, finished_at=finished)), now)
        now += timedelta(hours=2)
    found = seen(view, now)
    assert asks == 2 and found.decision.status.request is None
    assert shown(found)[:2] == ("suspect", "BOOT_UNDECIDED")
    assert found.decision.status.next and "muster node retest" in found.decision.status.next.why
    # A person's word is served, and the next boot begins anew.
    since = now.isoformat().replace("+00:00", "Z")
    person = seen(changed(found.after, spec={"retest": Ask("ann", "cable", since, level="standard")}), now)
    assert person.decision.status.request is not None
    third = "c" * 8 + BOOT2[8:]
    other = replace(unsure, boot_id=third, sequence=20)
    again = seen(changed(found.after, statement=other, agent=AgentNote(third)), now)
    assert again.decision.status.boot_tests == BootTests(third, 1)


def test_hardware_that_changed_in_a_boot_is_good_once_it_was_tested_after_that_was_told() -> None:
    other = replace(PASSED, sequence=6, hardware_sha256="4" * 64)
    hardware = {"gpus": [["GPU-a", "1", "96.0"], ["GPU-c", "3", "96.0"]], "driver": "581.2", "kernel": "6.8.0-45"}
    found = seen(ready_view(statement=other, hardware=hardware))
    assert shown(found)[:2] == ("suspect", "HARDWARE_CHANGED")
    for words in ("driver 580.1 -> 581.2", "GPU-b", "GPU-c"):
        assert words in found.decision.status.message
    sent = settled(found.after, SETTLED)
    proof = replace(other, sequence=7, finished_at="2026-11-21T12:02:00Z")
    back = seen(changed(sent, statement=proof, hardware=hardware), DONE)
    assert shown(back) == ("ready", "PASS", set(), True, Budget.JOIN)
    assert back.decision.status.accepted and back.decision.status.accepted.hardware_sha256 == "4" * 64
    # The join may have to wait: the doubt does not come back meanwhile.
    assert shown(seen(changed(sent, statement=proof, hardware=hardware), DONE + timedelta(minutes=5)))[0] == "ready"


def test_hardware_that_changed_between_boots_is_named_when_the_node_is_let_in() -> None:
    view = settled(ready_view(agent=AgentNote(BOOT2)))
    proof = replace(PASSED, sequence=6, boot_id=BOOT2, hardware_sha256="4" * 64)
    hardware = {"gpus": [["GPU-a", "1", "96.0"], ["GPU-c", "3", "96.0"]], "driver": "580.1", "kernel": "6.8.0-45"}
    found = seen(changed(view, boot=BOOT2, statement=proof, hardware=hardware))
    assert shown(found) == ("ready", "PASS", set(), True, Budget.JOIN)
    newest = found.decision.status.transitions[-1].message
    assert "GPU-b" in newest and "GPU-c" in newest


def test_a_node_comes_back_from_repair_with_a_test() -> None:
    view = settled(ready_view(spec={"repair": ASK}))
    repaired = seen(changed(view, spec={"repair": None}), DONE)
    assert shown(repaired)[:2] == ("testing", "REPAIRED") and not repaired.ready
    sent = settled(repaired.after, DONE + timedelta(seconds=6))
    result = replace(RESULT, level="standard", finished_at="2026-11-21T12:08:00Z")
    back = seen(changed(sent, statement=result), DONE + timedelta(minutes=6))
    assert shown(back) == ("ready", "PASS", set(), True, Budget.JOIN)


def test_after_a_repair_a_pass_of_a_lower_level_is_not_made_good_by_the_proof_of_before_it() -> None:
    """A technician runs a quick test by hand, in the same boot and on hardware with the same numbers."""
    repaired = seen(changed(settled(ready_view(spec={"repair": ASK})), spec={"repair": None}), DONE)
    by_hand = replace(RESULT, finished_at="2026-11-21T12:02:30Z")
    found = seen(changed(repaired.after, statement=by_hand), DONE)
    assert shown(found)[:2] == ("testing", "EVIDENCE_LEVEL") and not found.ready
    status = found.decision.status
    assert status.proofs == {"quick": by_hand.finished_at}
    assert status.request is not None and status.request.level == "standard"


def test_a_repair_that_was_given_up_has_cleared_nothing() -> None:
    """Its BMC did not answer, or work was on a GPU: the fault stays until a test says something newer."""
    bad = replace(PASSED, sequence=6, verdict=Verdict.FAIL, code="XID_FATAL", finished_at="2026-11-21T11:58:00Z")
    faulty = settled(ready_view(statement=bad))
    in_repair = seen(changed(faulty, spec={"repair": ASK}))
    assert shown(in_repair)[:2] == ("repairing", "REPAIRING")
    given_up = seen(changed(settled(in_repair.after), spec={"repair": None}), DONE)
    assert shown(given_up)[:2] == ("quarantined", "XID_FATAL") and given_up.request == ""
    passed = replace(PASSED, sequence=7, finished_at="2026-11-21T12:02:00Z")
    assert seen(changed(given_up.after, statement=passed), DONE).ready


@pytest.mark.parametrize(("finished", "code"), [("2026-11-21T12:02:00Z", "PASS"), ("2026-11-21T11:59:00Z", "REPAIRED")])
def test_a_driver_that_was_changed_in_repair_is_meant(finished: str, code: str) -> None:
    """Its test in the same boot is enough; evidence of before the repair is none."""
    hardware = {"gpus": [["GPU-a", "1", "96.0"], ["GPU-b", "2", "96.0"]], "driver": "581.2", "kernel": "6.8.0-45"}
    view = settled(ready_view(spec={"repair": ASK}))
    tested = replace(PASSED, sequence=6, hardware_sha256="4" * 64, finished_at=finished)
    back = seen(changed(view, spec={"repair": None}, statement=tested, hardware=hardware), DONE)
    assert shown(back)[1] == code and back.ready == (code == "PASS")
    # Once it is let in, the next change in this boot is a doubt again.
    other = replace(tested, sequence=7, hardware_sha256="5" * 64)
    again = seen(changed(back.after, statement=other, hardware={**hardware, "driver": "582.0"}), DONE)
    assert shown(again)[1] == ("HARDWARE_CHANGED" if code == "PASS" else "REPAIRED")


def test_a_node_that_publishes_nothing_in_its_boot_is_asked_after_its_own_burn_in_had_time() -> None:
    view = settled(ready_view(boot=BOOT2, agent=AgentNote(BOOT2)))
    assert view.record and view.record.status.request is None
    hour = NOW + timedelta(seconds=RULES.request_timeout_s + 301)
    found = seen(view, hour)
    assert shown(found)[:2] == ("testing", "EVIDENCE_BOOT")
    assert found.decision.status.request is not None
    assert seen(found.after, hour + timedelta(seconds=6)).request != ""


def test_gpus_that_come_back_let_the_node_in_again() -> None:
    view = ready_view(spec={"hardware": Hardware(8)}, capacity="8", allocatable="0")
    waits = decide(view, RULES, NOW)
    assert waits.wake_at == NOW + timedelta(seconds=RULES.gpus_grace_s)
    out = settled(settled(view), NOW + timedelta(seconds=121))
    assert out.record and out.record.status.code == "GPUS_MISSING"
    back = seen(changed(out, allocatable="8"), NOW + timedelta(seconds=150))
    assert shown(back) == ("ready", "PASS", set(), True, Budget.JOIN)


def test_the_first_pass_is_of_the_level_that_is_asked_for_and_others_keep_it() -> None:
    view = make_view(replace(PASSED, level="quick"))
    assert shown(seen(view))[:2] == ("testing", "EVIDENCE_LEVEL")
    admitted = settled(make_view(replace(PASSED, level="extended")))
    assert admitted.record and admitted.record.status.state == "ready"
    assert shown(seen(changed(admitted, statement=RESULT), DONE))[:2] == ("ready", "PASS")


def test_evidence_that_is_withdrawn_while_the_test_runs_ends_nothing() -> None:
    view = view_with_request(evidence=Evidence())
    assert shown(seen(view, DONE)) == ("testing", "TEST_DUE", {"testing:NoSchedule"}, True, None)
    assert shown(seen(view, OVERDUE))[:2] == ("suspect", "EVIDENCE_MISSING")
    assert shown(seen(changed(view, agent=AgentNote(BOOT2)), DONE))[:3] == (
        "testing",
        "REBOOTED",
        {"preflight:NoSchedule", "preflight:NoExecute"},
    )
    # Nobody is let in by it: a node that is out waits for evidence.
    out = settled(view_with_request(kubelet="Unknown"), DONE)
    assert shown(seen(changed(out, kubelet="True", evidence=Evidence()), DONE))[3] is False


def test_what_the_agent_revoked_is_told_with_its_time_and_what_comes_next() -> None:
    said = replace(
        PASSED, verdict=Verdict.FAIL, sequence=6, level="watch", code="XID_FATAL", message="XID 79 on GPU 3."
    )
    status = seen(ready_view(statement=said)).decision.status
    assert status.message == f"gpu-1: XID 79 on GPU 3, seen by its agent at {said.finished_at}"
    assert status.next and "playbooks/repair.yml does what was found asks for" in status.next.why


def test_a_revocation_that_waits_for_our_own_test_counts_at_once() -> None:
    note = AgentNote(BOOT, revoking=Revoking("XID_FATAL", "XID 79 on 0000:81:00.0"))
    found = seen(view_with_request(evidence=Evidence(), agent=note), DONE)
    assert shown(found) == ("suspect", "XID_FATAL", {"preflight:NoSchedule"}, False, Budget.GATE)
    assert "XID 79" in found.decision.status.message and found.decision.status.request is not None
    # Of a boot that is over, or with a code that could be none of a taint's.
    assert shown(seen(view_with_request(agent=replace(note, boot_id=BOOT2)), DONE))[1] != "XID_FATAL"
    odd = replace(note, revoking=Revoking("no code", "text"))
    assert shown(seen(view_with_request(evidence=Evidence(), agent=odd), DONE))[:2] == ("suspect", "FAIL")


@pytest.mark.parametrize(
    "worthless",
    [
        replace(PASSED, simulated=True),
        replace(PASSED, finished_at="2026-11-21T12:05:00Z"),
        replace(PASSED, node="gpu-2"),
        replace(PASSED, verdict=Verdict.INCONCLUSIVE),
    ],
    ids=["simulated", "of the future", "of another node", "inconclusive"],
)
def test_what_is_no_proof_proves_no_level_for_a_quicker_run(worthless: Statement) -> None:
    view = settled(make_view(worthless))
    assert shown(seen(changed(view, statement=RESULT), DONE))[:2] == ("testing", "EVIDENCE_LEVEL")


def test_the_proof_of_other_hardware_is_none_of_this() -> None:
    view = settled(ready_view(agent=AgentNote(BOOT2)))
    other = replace(RESULT, boot_id=BOOT2, hardware_sha256="4" * 64)
    assert shown(seen(changed(view, boot=BOOT2, statement=other), DONE))[:2] == ("testing", "EVIDENCE_LEVEL")
    same = replace(RESULT, boot_id=BOOT2)
    assert shown(seen(changed(view, boot=BOOT2, statement=same), DONE))[:2] == ("ready", "PASS")
