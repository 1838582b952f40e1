"""What a decision writes on the Node and into the record, beyond what the table of situations shows."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import decide, node_ttl_s, trim_node
from gpu_burnin.admission.decide.times import stamp
from gpu_burnin.admission.view import Budget, Evidence, Pod, Rules, View
from gpu_burnin.api.agent_note import AgentNote, read_request
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Accepted, Ask, Hardware, Identity, Transition, Use, new_steps, with_step
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, MACHINE, NOW, make_node
from tests.support.decide_helpers import (
    GPU_POD,
    HARDWARE,
    PASSED,
    RULES,
    SPEC,
    carried_out,
    changed,
    make_view,
    ready_view,
    seen,
    settled,
)
from tests.support.fake_api import apply_patch

PREFIX = "muster.node-restriction.kubernetes.io/"
HOUR = NOW + timedelta(hours=1)


def gpu_verified(view: View) -> Any:
    assert view.node is not None
    return next(c for c in view.node["status"]["conditions"] if c["type"] == "GPUVerified")


def test_a_pass_of_this_boot_is_admitted_with_one_patch_that_tests_the_version() -> None:
    node = make_node()
    decision = decide(make_view(node=node), RULES, NOW)
    assert decision.node_patch and decision.node_patch[0] == {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": "1",
    }
    after = apply_patch(node, decision.node_patch)
    assert after["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert after["metadata"]["labels"] == {
        "kubernetes.io/hostname": "gpu-1",
        f"{PREFIX}ready": "true",
        f"{PREFIX}verdict": "pass",
    }
    assert f'"bootID":"{BOOT}"' in after["metadata"]["annotations"]["muster.dev/admitted"]
    status = decision.status
    assert status.accepted == Accepted(
        5, BOOT, "1" * 64, PASSED.hardware_sha256, "standard", PASSED.finished_at, "2026-11-21T12:00:00Z",
        "2026-11-27T20:18:27Z", False, HARDWARE,
    )  # fmt: skip
    assert status.highest_sequence == 5
    assert (status.last_test and status.last_test.verdict, status.proofs) == ("PASS", {"standard": PASSED.finished_at})


def test_the_condition_is_added_and_the_others_stay() -> None:
    decision = decide(make_view(), RULES, NOW)
    after = apply_patch(make_node(), decision.node_status_patch or [])
    assert [c["type"] for c in after["status"]["conditions"]] == ["MemoryPressure", "Ready", "GPUVerified"]
    assert after["status"]["conditions"][:2] == make_node()["status"]["conditions"]
    said = after["status"]["conditions"][2]
    assert (said["status"], said["reason"]) == ("True", "PASS") and BOOT in said["message"]


def test_the_condition_is_changed_in_its_place() -> None:
    view = ready_view()
    assert view.node is not None
    conditions = list(view.node["status"]["conditions"])
    node = {**view.node, "status": {**view.node["status"], "conditions": [conditions[2], *conditions[:2]]}}
    after = seen(changed(replace(view, node=node), agent=AgentNote(BOOT2))).after
    assert after.node is not None
    assert [c["type"] for c in after.node["status"]["conditions"]] == ["GPUVerified", "MemoryPressure", "Ready"]
    assert gpu_verified(after)["reason"] == "REBOOTED"


def test_an_admitted_node_is_left_alone() -> None:
    decision = decide(ready_view(), RULES, HOUR)
    assert (decision.node_patch, decision.node_status_patch, decision.needs) == (None, None, None)
    assert decision.wake_at is not None and decision.wake_at > HOUR


def test_nothing_but_what_is_read_is_kept_of_a_node() -> None:
    node = make_node(annotations={"muster.dev/evidence": "e", "kubelet.io/x": "y" * 9999}, managedFields=[{}])
    node["metadata"]["labels"][f"{PREFIX}ready"] = "true"
    node["status"] |= {"images": [{"names": ["a"]}], "capacity": {"nvidia.com/gpu": "8"}}
    kept = trim_node(node)
    assert kept["metadata"] == {
        "name": "gpu-1",
        "resourceVersion": "1",
        "labels": {f"{PREFIX}ready": "true"},
        "annotations": {"muster.dev/evidence": "e"},
    }
    assert set(kept["status"]) == {"nodeInfo", "conditions", "capacity"}
    assert decide(make_view(node=kept), RULES, NOW) == decide(make_view(node=node), RULES, NOW)


def test_an_unknown_node_that_comes_back_in_the_same_boot_is_admitted_again() -> None:
    out = seen(ready_view(kubelet="Unknown")).after
    back = seen(changed(out, kubelet="True"))
    assert (back.state, back.needs, back.ready) == ("ready", Budget.JOIN, True)
    assert out.record and back.decision.status.accepted == out.record.status.accepted


def test_a_rebooted_node_is_admitted_with_a_new_pass_only() -> None:
    out = settled(ready_view(boot=BOOT2, agent=AgentNote(BOOT2)))
    assert not seen(out).ready
    back = seen(changed(out, statement=replace(PASSED, boot_id=BOOT2, sequence=6)))
    assert back.ready and back.decision.status.accepted and back.decision.status.accepted.boot_id == BOOT2


def test_what_has_changed_of_the_hardware_stands_in_the_status_as_long_as_the_admission() -> None:
    new = {**HARDWARE, "gpus": [["GPU-c", "3", "96.0"], ["GPU-b", "2", "96.0"]]}
    passed = replace(PASSED, boot_id=BOOT2, sequence=6, hardware_sha256="7" * 64)
    out = settled(ready_view(boot=BOOT2, agent=AgentNote(BOOT2)))
    back = settled(changed(out, statement=passed, hardware=new))
    for view in (back, settled(back, HOUR)):
        assert view.record is not None
        assert "since it was let in last: " in view.record.status.message and "GPU-c" in view.record.status.message
        assert gpu_verified(view)["message"] == view.record.status.message
    later = settled(changed(back, statement=replace(passed, sequence=7), hardware=new))
    assert later.record is not None and "let in last" not in later.record.status.message


def test_old_evidence_that_is_refused_names_the_command_that_works() -> None:
    failed = settled(make_view(replace(PASSED, sequence=6, verdict=Verdict.FAIL)))
    message = seen(changed(failed, statement=PASSED)).decision.status.message
    assert "muster node retest gpu-1" in message and "begins above 6" in message
    asked = seen(changed(failed, statement=PASSED, spec={"retest": Ask("ann", "x", "2026-11-21T11:59:00Z")})).after
    sent = seen(asked, NOW + timedelta(seconds=RULES.settle_s))
    assert read_request(sent.request).after == 6


def test_an_old_pass_does_not_replace_a_newer_fail() -> None:
    failed = settled(make_view(replace(PASSED, sequence=6, verdict=Verdict.FAIL)))
    for old in (PASSED, replace(PASSED, sequence=6, report_sha256="9" * 64)):
        found = seen(changed(failed, statement=old))
        assert (found.state, found.code, found.ready) == ("suspect", "EVIDENCE_REPLAYED", False)
    assert seen(changed(failed, statement=replace(PASSED, sequence=7))).ready


def test_a_fail_counts_even_while_the_hosts_clock_is_wrong() -> None:
    ahead = replace(PASSED, sequence=6, verdict=Verdict.FAIL, finished_at="2026-11-21T13:00:00Z")
    found = seen(make_view(ahead))
    assert (found.state, found.verdict) == ("quarantined", "fail")
    assert seen(changed(found.after, statement=PASSED)).code == "EVIDENCE_REPLAYED"


def test_a_machine_installed_anew_with_a_new_key_starts_its_sequence_again() -> None:
    view = settled(make_view(replace(PASSED, sequence=50)))
    new = {"identity": Identity("ssh-ed25519 BBBB", MACHINE)}
    found = seen(changed(view, spec=new, statement=replace(PASSED, sequence=1)))
    assert found.ready and found.decision.status.highest_sequence == 1
    # And the old key's evidence is nothing: it does not verify, and a node at work is out, within the brake.
    foreign = changed(view, spec=new, evidence=Evidence(None, {}, "EVIDENCE_SIGNATURE", "another key"))
    found = seen(foreign)
    assert (found.state, found.needs, found.decision.status.accepted) == ("suspect", Budget.GATE, None)


def test_simulated_evidence_is_labelled_where_it_is_allowed() -> None:
    spec = replace(SPEC, identity=replace(SPEC.identity, allow_simulated=True))
    view = settled(make_view(replace(PASSED, simulated=True), spec=spec))
    assert view.node and view.node["metadata"]["labels"][f"{PREFIX}simulated"] == "true"
    real = settled(changed(view, statement=replace(PASSED, sequence=6)))
    assert real.node and f"{PREFIX}simulated" not in real.node["metadata"]["labels"]


def test_another_domain_changes_taints_and_annotations() -> None:
    node = make_node()
    node["spec"]["taints"] = [{"key": "example.org/preflight", "effect": "NoSchedule"}]
    rules = Rules(names=Names("example.org"))
    decision = decide(make_view(node=node), rules, NOW)
    after = apply_patch(node, decision.node_patch or [])
    assert after["spec"]["taints"] == [] and "example.org/admitted" in after["metadata"]["annotations"]


def test_a_node_without_labels_and_taints_is_patched_too() -> None:
    node = make_node()
    del node["metadata"]["labels"], node["spec"]["taints"]
    found = seen(make_view(None, node=node))
    assert found.taints == {"preflight:NoSchedule"} and found.needs is Budget.GATE
    assert found.after.node and found.after.node["metadata"]["labels"] == {f"{PREFIX}verdict": "inconclusive"}


def test_taints_of_others_keep_their_place_and_time() -> None:
    node = make_node()
    foreign = {"key": "cloud.io/spot", "effect": "NoExecute", "timeAdded": "2026-11-01T00:00:00Z"}
    node["spec"]["taints"].insert(1, foreign)
    after = seen(make_view(replace(PASSED, verdict=Verdict.FAIL), node=node)).after
    assert after.node and after.node["spec"]["taints"][1] == foreign
    assert [t["key"].partition("/")[2] for t in after.node["spec"]["taints"]] == [
        "not-ready", "spot", "preflight", "preflight", "quarantine",
    ]  # fmt: skip


def test_a_taint_with_another_reason_is_put_anew() -> None:
    failed = replace(PASSED, verdict=Verdict.FAIL, sequence=6, code="GEMM_MISMATCH")
    view = settled(ready_view(statement=failed))
    worse = replace(failed, sequence=7, level="watch", code="GPU_LOST")
    found = seen(changed(view, statement=worse))
    assert found.taints == {"preflight:NoSchedule", "quarantine=GPU_LOST:NoSchedule", "quarantine=GPU_LOST:NoExecute"}


def test_the_time_of_the_last_change_stays_while_the_status_does() -> None:
    view = ready_view()
    first = gpu_verified(view)["lastTransitionTime"]
    newer = carried_out(
        changed(view, statement=replace(PASSED, sequence=6)),
        decide(changed(view, statement=replace(PASSED, sequence=6)), RULES, HOUR),
    )
    assert "run 6" in gpu_verified(newer)["message"] and gpu_verified(newer)["lastTransitionTime"] == first


def test_times_to_live_differ_by_node_and_are_stable() -> None:
    ttls = {node_ttl_s(f"gpu-{n}", 1000.0) for n in range(50)}
    assert len(ttls) > 40 and all(900 <= ttl <= 1000 for ttl in ttls)
    assert node_ttl_s("gpu-1", 1000.0) == node_ttl_s("gpu-1", 1000.0)


def test_use_is_counted_at_its_changes_alone() -> None:
    view = ready_view()
    assert view.record and view.record.status.use == Use("2026-11-21T12:00:00Z", "2026-11-21T12:00:00Z", False)
    assert decide(view, RULES, HOUR).status.use == view.record.status.use
    busy = carried_out(changed(view, pods=(GPU_POD,)), decide(changed(view, pods=(GPU_POD,)), RULES, HOUR))
    assert busy.record and busy.record.status.use
    assert (busy.record.status.use.busy, busy.record.status.use.idle_s) == (True, 3600.0)
    ended = (replace(GPU_POD, ended=True), Pod("kube-system", "proxy", "u2", daemon=True))
    idle = decide(changed(busy, pods=ended), RULES, HOUR + timedelta(seconds=90)).status.use
    assert idle == Use("2026-11-21T12:00:00Z", "2026-11-21T13:01:30Z", False, 3600.0, 90.0)


def test_only_the_newest_transitions_are_kept() -> None:
    view = ready_view()
    for turn in range(30):
        note = AgentNote(BOOT) if turn % 2 else None
        view = settled(changed(view, agent=note), NOW + timedelta(minutes=turn))
    assert view.record and len(view.record.status.transitions) == 20
    assert view.record.status.transitions[-1].at == "2026-11-21T12:29:00Z"


def test_the_newest_way_back_from_repair_is_kept_for_the_test_that_is_owed_since() -> None:
    steps: tuple[Transition, ...] = ()
    for minute in range(60):
        before, after = ("repairing", "testing") if minute in (3, 7) else ("ready", "testing")
        known, step = steps, Transition(stamp(NOW + timedelta(minutes=minute)), before, after, "TEST_DUE", "")
        steps = with_step(known, step)
        assert new_steps(known, steps) == [step]
    assert [step.at[14:16] for step in steps] == ["07", *(str(minute) for minute in range(41, 60))]


def test_a_fatal_fault_ends_its_work_only_when_no_pod_holds_any_more() -> None:
    lost = replace(PASSED, verdict=Verdict.FAIL, sequence=6, level="watch", code="GPU_LOST")
    holding = replace(GPU_POD, hold_until="2026-11-21T13:00:00Z")
    other = Pod("ml", "eval-0", "u2", gpus=1)
    found = seen(ready_view(statement=lost, pods=(holding, other)))
    assert found.evict == ("eval-0",) and "quarantine=GPU_LOST:NoExecute" not in found.taints
    assert found.decision.wake_at == HOUR
    after = seen(found.after, HOUR)
    assert after.evict == ("train-0",) and "quarantine=GPU_LOST:NoExecute" in after.taints


def test_a_revocation_is_no_test() -> None:
    lost = replace(PASSED, verdict=Verdict.FAIL, sequence=6, level="watch", code="XID_FATAL")
    status = decide(ready_view(statement=lost), RULES, NOW).status
    assert status.highest_sequence == 6 and status.last_test and status.last_test.sequence == 5


@pytest.mark.parametrize("amount", ["", "7k", "-8", "\uff18", "9" * 5000, "8.0"])
def test_an_amount_that_is_no_number_counts_as_none(amount: str) -> None:
    view = ready_view(spec={"hardware": Hardware(8)}, capacity="8", allocatable=amount)
    assert decide(view, RULES, NOW).status.code == "GPUS_MISSING"


PLUGIN = Hardware(8, offered=True)


@pytest.mark.parametrize(
    ("hardware", "amounts", "said"),
    [
        (PLUGIN, {}, "kubelet does not offer nvidia.com/gpu: its device plugin has not registered"),
        (PLUGIN, {"capacity": "8", "allocatable": "7"}, "kubelet offers 7 of 8 nvidia.com/gpu"),
        (PLUGIN, {"capacity": "16", "allocatable": "16"}, "kubelet offers 16 of 8 nvidia.com/gpu"),
        (PLUGIN, {"capacity": "8", "allocatable": "8"}, ""),
        (Hardware(8), {}, ""),
        (Hardware(8), {"capacity": "16", "allocatable": "16"}, ""),
        (Hardware(0, offered=True), {}, ""),
    ],
)
def test_with_a_device_plugin_in_the_inventory_a_node_comes_in_when_kubelet_offers_exactly_its_gpus(
    hardware: Hardware, amounts: dict[str, str], said: str
) -> None:
    view = changed(make_view(), spec={"hardware": hardware}, **amounts)
    found = decide(view, RULES, NOW)
    assert (found.status.code == "GPUS_MISSING") == bool(said)
    assert said in found.status.message
    assert found.status.request is None
    if said:
        assert found.status.state.value == "testing", "on its way: the play that lets nodes in waits"


@pytest.mark.parametrize(("amounts", "asked"), [({}, False), ({"capacity": "8", "allocatable": "7"}, True)])
def test_a_plugin_that_does_not_come_is_a_doubt_after_its_grace_and_a_test_asks_the_gpus_it_named(
    amounts: dict[str, str], asked: bool
) -> None:
    view = changed(make_view(), spec={"hardware": PLUGIN}, **amounts)
    states = {}
    for second in range(0, 600, 20):
        view = settled(view, NOW + timedelta(seconds=second))
        assert view.record
        states[view.record.status.since] = view.record.status.state.value
    assert list(states.values()) == ["testing", "suspect"], "it does not begin anew for ever"
    assert (view.record.status.request is not None) == asked
