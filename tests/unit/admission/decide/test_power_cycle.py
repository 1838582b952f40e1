"""A FAIL that asks for a power cycle or a repair: a PASS after a reboot is none, and who confirms it opens the node."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from gpu_burnin.admission.view import Budget, View
from gpu_burnin.api.agent_note import AgentNote
from gpu_burnin.api.evidence import WATCHED
from gpu_burnin.api.record import Ask, Hardware
from gpu_burnin.types import Action, Verdict
from tests.support.admission_helpers import BOOT2, NOW
from tests.support.decide_helpers import HARDWARE, PASSED, RULES, changed, make_view, ready_view, seen, settled

AT = NOW + timedelta(minutes=1)
BACK = NOW + timedelta(minutes=10)
LOST = replace(
    PASSED,
    sequence=6,
    verdict=Verdict.FAIL,
    level=WATCHED,
    code="XID_FATAL",
    message="XID 79 on GPU 0: GPU has fallen off the bus",
    action="power_cycle",
    finished_at="2026-11-21T12:00:30Z",
)
AGAIN = replace(PASSED, sequence=7, boot_id=BOOT2, finished_at="2026-11-21T12:08:00Z")
RETEST = Ask("ann", "it was off for a minute", "2026-11-21T12:05:00Z", power_cycled=True)


def faulty() -> View:
    """gpu-1 at work, then with the fault that its agent saw."""
    return settled(ready_view(statement=LOST), AT)


def rebooted(view: View, **changes: object) -> View:
    """After a boot whose burn-in passed."""
    return changed(view, boot=BOOT2, agent=AgentNote(BOOT2), statement=AGAIN, **changes)


def test_a_warm_reboot_and_a_pass_leave_it_out_with_the_command_that_is_wanted() -> None:
    found = seen(rebooted(faulty()), BACK)
    assert (found.state, found.code, found.ready, found.condition) == ("suspect", "POWER_CYCLE_OWED", False, "Unknown")
    assert found.decision.status.message == (
        "gpu-1: XID_FATAL asked for a power cycle at 2026-11-21T12:01:00Z, and a PASS after a reboot is none: power "
        "the machine off and on, then confirm it: muster node retest gpu-1 --power-cycled --reason REASON"
    )
    assert found.decision.status.next and "muster node retest --power-cycled" in found.decision.status.next.why
    # The admitter asks for no test that would not help, and looks no further.
    assert found.request == "" and settled(found.after, BACK) == found.after


@pytest.mark.parametrize(
    "changes",
    [
        {"retest": replace(RETEST, power_cycled=False)},
        {"retest": replace(RETEST, since="2026-11-21T11:59:00Z")},
        {"repair": replace(RETEST, since="2026-11-21T11:59:00Z")},
    ],
    ids=["a test alone", "confirmed before the fault", "the repair of another fault"],
)
def test_what_confirms_no_power_cycle_of_this_fault(changes: dict[str, Ask]) -> None:
    view = rebooted(faulty(), spec=changes)
    assert view.record is not None
    after = settled(view, BACK)
    assert after.record is not None and after.record.status.power_cycle is not None


def test_who_confirms_it_has_the_node_tested_and_let_in() -> None:
    asked = settled(rebooted(faulty(), spec={"retest": RETEST}), BACK)
    assert asked.record is not None and asked.record.status.power_cycle is None
    assert (asked.record.status.state, asked.record.status.code) == ("testing", "RETEST_ASKED")
    sent = settled(asked, BACK + timedelta(seconds=RULES.settle_s))
    proof = replace(AGAIN, sequence=8, finished_at="2026-11-21T12:14:00Z")
    back = seen(changed(sent, statement=proof), BACK + timedelta(minutes=5))
    assert (back.state, back.code, back.ready, back.needs) == ("ready", "PASS", True, Budget.JOIN)


def test_confirmed_before_its_burn_in_has_come_it_needs_no_more() -> None:
    retested = settled(changed(faulty(), spec={"retest": RETEST}), NOW + timedelta(minutes=6))
    assert retested.record is not None and retested.record.status.code == "XID_FATAL"
    found = seen(rebooted(retested), BACK)
    assert found.code != "POWER_CYCLE_OWED"


def test_the_repair_ladder_confirms_its_own() -> None:
    ladder = Ask("ann", "repair ladder: XID_FATAL", "2026-11-21T12:02:00Z")
    in_repair = settled(changed(faulty(), spec={"repair": ladder}), NOW + timedelta(minutes=3))
    done = settled(rebooted(in_repair, spec={"repair": replace(ladder, power_cycled=True)}), BACK)
    found = seen(changed(done, spec={"repair": None}), BACK + timedelta(minutes=1))
    assert (found.state, found.code, found.ready) == ("ready", "PASS", True)
    other = settled(rebooted(in_repair), BACK)
    found = seen(changed(other, spec={"repair": None}), BACK + timedelta(minutes=1))
    assert (found.code, found.ready) == ("POWER_CYCLE_OWED", False)


WRONG = replace(LOST, level="standard", code="GEMM_MISMATCH", message="GPU 0 computed a wrong product", action="repair")


def miscomputed() -> View:
    """gpu-1 at work, then with a wrong result in a test."""
    return settled(ready_view(statement=WRONG), AT)


def test_a_wrong_result_is_not_cleared_by_a_right_one() -> None:
    """What computes wrong once may compute right for days, also after a power cycle by the repair ladder."""
    ladder = Ask("ann", "repair ladder: GEMM_MISMATCH", "2026-11-21T12:02:00Z", power_cycled=True)
    in_repair = settled(changed(miscomputed(), spec={"repair": ladder}), NOW + timedelta(minutes=3))
    done = settled(rebooted(in_repair), BACK)
    found = seen(changed(done, spec={"repair": None}), BACK + timedelta(minutes=1))
    assert (found.state, found.code, found.ready) == ("suspect", "POWER_CYCLE_OWED", False)
    assert found.decision.status.message == (
        "gpu-1: GEMM_MISMATCH asked for a repair at 2026-11-21T12:01:00Z, and a PASS after a reboot is none: power the "
        "machine off and have the hardware that GEMM_MISMATCH names checked or replaced, then confirm it: muster node "
        "retest gpu-1 --power-cycled --reason REASON"
    )
    confirmed = settled(rebooted(miscomputed(), spec={"retest": RETEST}), BACK)
    assert confirmed.record is not None and confirmed.record.status.power_cycle is None


def test_a_power_cycle_asked_for_later_does_not_end_what_a_repair_is_owed_for() -> None:
    again = replace(LOST, sequence=7, boot_id=BOOT2, finished_at="2026-11-21T12:07:00Z")
    view = settled(changed(miscomputed(), boot=BOOT2, agent=AgentNote(BOOT2), statement=again), BACK)
    assert view.record is not None and (owed := view.record.status.power_cycle) is not None
    assert (owed.code, owed.action) == ("GEMM_MISMATCH", Action.REPAIR)
    repair = replace(WRONG, sequence=7, boot_id=BOOT2, finished_at="2026-11-21T12:07:00Z")
    view = settled(changed(faulty(), boot=BOOT2, agent=AgentNote(BOOT2), statement=repair), BACK)
    assert view.record is not None and (owed := view.record.status.power_cycle) is not None
    assert (owed.code, owed.action) == ("GEMM_MISMATCH", Action.REPAIR)


def test_a_fault_that_comes_again_asks_again() -> None:
    retested = settled(changed(faulty(), spec={"retest": RETEST}), NOW + timedelta(minutes=6))
    again = replace(LOST, sequence=7, boot_id=BOOT2, finished_at="2026-11-21T12:07:00Z")
    faulty_again = settled(changed(retested, boot=BOOT2, agent=AgentNote(BOOT2), statement=again), BACK)
    found = seen(changed(faulty_again, statement=replace(AGAIN, sequence=8)), BACK + timedelta(minutes=5))
    assert found.code == "POWER_CYCLE_OWED"


def test_a_host_that_was_installed_anew_has_the_same_gpus() -> None:
    key = replace(make_view().record.spec.identity, host_key="ssh-ed25519 BBBB")  # type: ignore[union-attr]
    found = seen(rebooted(faulty(), spec={"identity": key}), BACK)
    assert found.code == "POWER_CYCLE_OWED"


@pytest.mark.parametrize("action", ["", "reboot"])
def test_a_fail_that_asks_for_less_is_cleared_by_a_pass(action: str) -> None:
    """The statements of 0.2.0 name no action."""
    view = settled(ready_view(statement=replace(LOST, action=action)), AT)
    assert seen(rebooted(view), BACK).ready


GPUS = HARDWARE["gpus"]
COUNTED = replace(LOST, level="standard", code="GPU_COUNT", message="2 GPUs are present, 8 are expected")


@pytest.mark.parametrize(
    ("hardware", "expected", "code"),
    [
        ({}, 2, "PASS"),
        ({"driver": "590.2", "kernel": "6.8.0-50"}, 2, "PASS"),
        # One more, or another one, has come back by a warm reboot.
        ({"gpus": [*GPUS, ["GPU-c", "3", "96.0"]]}, 3, "POWER_CYCLE_OWED"),
        ({"gpus": [GPUS[0], ["GPU-c", "3", "96.0"]]}, 2, "POWER_CYCLE_OWED"),
        # Nobody says how many there are to be: as many as the bus shows, of which one may have fallen off meanwhile.
        ({}, 0, "POWER_CYCLE_OWED"),
        ({}, 8, "POWER_CYCLE_OWED"),
    ],
    ids=["corrected", "and another driver", "one came back", "another one", "no number", "the old number"],
)
def test_a_number_that_was_wrong_is_no_fault_of_the_hardware(
    hardware: dict[str, object], expected: int, code: str
) -> None:
    """The same GPUs pass, by what the node signed, and the inventory has their number now."""
    view = settled(ready_view(statement=COUNTED, spec={"hardware": Hardware(8)}), AT)
    assert view.record is not None and view.record.status.power_cycle is not None
    corrected = rebooted(view, spec={"hardware": Hardware(expected)}, hardware=HARDWARE | hardware)
    assert seen(corrected, BACK).code == code


def test_a_wrong_number_beside_a_fault_is_forgiven_and_the_fault_is_not() -> None:
    counted = replace(COUNTED, sequence=7, boot_id=BOOT2)
    view = settled(changed(faulty(), boot=BOOT2, agent=AgentNote(BOOT2), statement=counted), BACK)
    found = seen(changed(view, spec={"hardware": Hardware(2)}, statement=replace(AGAIN, sequence=8)), BACK)
    assert found.code == "POWER_CYCLE_OWED" and "XID_FATAL asked for" in found.decision.status.message
    later = settled(ready_view(statement=COUNTED), AT)
    lost = settled(changed(later, statement=replace(LOST, sequence=7)), AT)
    passed = seen(rebooted(lost, spec={"hardware": Hardware(2)}), BACK)
    assert passed.code != "PASS"
    of_agent = settled(ready_view(statement=replace(COUNTED, level=WATCHED)), AT)
    assert seen(rebooted(of_agent, spec={"hardware": Hardware(2)}), BACK).code == "POWER_CYCLE_OWED"


def test_it_can_be_switched_off_also_for_what_is_owed() -> None:
    found = seen(rebooted(faulty()), BACK, replace(RULES, confirm_power_cycle=False))
    assert (found.code, found.ready) == ("PASS", True) and found.decision.status.power_cycle is None


def test_a_node_that_has_left_the_cluster_owes_it_until_it_is_confirmed() -> None:
    gone = settled(replace(faulty(), node=None), BACK)
    assert gone.record is not None and gone.record.status.power_cycle is not None
    retested = settled(changed(gone, spec={"retest": RETEST}), BACK)
    assert retested.record is not None and retested.record.status.power_cycle is None
