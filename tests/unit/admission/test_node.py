"""The admission rules, without an API server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpu_burnin.admission.decide import CODES
from gpu_burnin.admission.ledger import Admission, Entry
from gpu_burnin.admission.node import Act, Evidence, Policy, decide, node_ttl_s
from gpu_burnin.node.evidence import Statement
from gpu_burnin.node.evidence_codes import CODES as EVIDENCE_CODES
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT, BOOT2, NOW, STATEMENT, make_node
from tests.support.fake_api import apply_patch
from tests.support.report_helpers import HARDWARE_SHA256

POLICY = Policy()
PREFIX = "muster.node-restriction.kubernetes.io/"
ENTRY = Entry("ssh-ed25519 AAAA")
ADMITTED = Entry("k", 5, "1" * 64, Admission(BOOT, 5, "1" * 64, HARDWARE_SHA256, "2026-11-21T12:00:00Z"))


def preflight(node: Any) -> set[str]:
    return {t["effect"] for t in node["spec"]["taints"] if t["key"] == "muster.dev/preflight"}


def admitted_node() -> Any:
    """gpu-1 after its admission."""
    node = make_node()
    decision = decide(node, Evidence(STATEMENT), ENTRY, POLICY, NOW)
    assert decision.patch and decision.status_patch
    return apply_patch(apply_patch(node, decision.patch), decision.status_patch)


def gpu_verified(node: Any) -> Any:
    return next(c for c in node["status"]["conditions"] if c["type"] == "GPUVerified")


def test_a_pass_of_this_boot_is_admitted_with_one_patch_that_tests_the_version() -> None:
    node = make_node()
    decision = decide(node, Evidence(STATEMENT), ENTRY, POLICY, NOW)
    assert decision.action is Act.ADMIT and decision.finding.ready
    assert decision.patch and decision.patch[0] == {
        "op": "test",
        "path": "/metadata/resourceVersion",
        "value": "1",
    }
    after = apply_patch(node, decision.patch)
    assert after["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
    assert after["metadata"]["labels"] == {
        "kubernetes.io/hostname": "gpu-1",
        f"{PREFIX}ready": "true",
        f"{PREFIX}verdict": "pass",
    }
    assert f'"boot_id":"{BOOT}"' in after["metadata"]["annotations"]["muster.dev/admitted"]
    entry = decision.entry
    assert entry.admitted == Admission(BOOT, 5, "1" * 64, HARDWARE_SHA256, "2026-11-21T12:00:00Z")
    assert entry.highest_sequence == 5


def test_the_condition_is_added_and_the_others_stay() -> None:
    decision = decide(make_node(), Evidence(STATEMENT), ENTRY, POLICY, NOW)
    after = apply_patch(make_node(), decision.status_patch or [])
    assert [c["type"] for c in after["status"]["conditions"]] == ["MemoryPressure", "Ready", "GPUVerified"]
    said = gpu_verified(after)
    assert (said["status"], said["reason"]) == ("True", "PASS") and BOOT in said["message"]


def test_an_admitted_node_is_left_alone() -> None:
    decision = decide(admitted_node(), Evidence(STATEMENT), ADMITTED, POLICY, NOW + timedelta(hours=1))
    assert decision.action is Act.NOTHING and decision.finding.ready
    assert decision.patch is None and decision.status_patch is None


@pytest.mark.parametrize(
    ("evidence", "verdict", "code", "status"),
    [
        (Evidence(), "inconclusive", "EVIDENCE_MISSING", "Unknown"),
        (Evidence(replace(STATEMENT, verdict=Verdict.FAIL)), "fail", "FAIL", "False"),
        (Evidence(replace(STATEMENT, verdict=Verdict.INCONCLUSIVE)), "inconclusive", "INCONCLUSIVE", "Unknown"),
        (Evidence(replace(STATEMENT, boot_id=BOOT2)), "inconclusive", "EVIDENCE_BOOT", "Unknown"),
        (Evidence(replace(STATEMENT, simulated=True)), "inconclusive", "EVIDENCE_SIMULATED", "Unknown"),
        (Evidence(replace(STATEMENT, finished_at="2026-11-01T00:00:00Z")), "expired", "EVIDENCE_EXPIRED", "Unknown"),
        (Evidence(replace(STATEMENT, finished_at="2026-11-21T12:05:00Z")), "inconclusive", "EVIDENCE_SKEW", "Unknown"),
        (Evidence(None, "EVIDENCE_SIGNATURE", "bad"), "inconclusive", "EVIDENCE_SIGNATURE", "Unknown"),
        (Evidence(STATEMENT, "EVIDENCE_REPLAYED", "old"), "inconclusive", "EVIDENCE_REPLAYED", "Unknown"),
    ],
)
def test_everything_else_is_held(evidence: Evidence, verdict: str, code: str, status: str) -> None:
    node = make_node()
    decision = decide(node, evidence, ENTRY, POLICY, NOW)
    assert decision.action is Act.HOLD and not decision.finding.ready
    after = apply_patch(apply_patch(node, decision.patch or []), decision.status_patch or [])
    assert preflight(after) == {"NoSchedule", "NoExecute"}
    assert f"{PREFIX}ready" not in after["metadata"]["labels"]
    assert after["metadata"]["labels"][f"{PREFIX}verdict"] == verdict
    assert (gpu_verified(after)["status"], gpu_verified(after)["reason"]) == (status, code)
    assert code in {*CODES, *EVIDENCE_CODES, *Verdict}
    again = decide(after, evidence, decision.entry, POLICY, NOW + timedelta(minutes=1))
    assert again.action is Act.NOTHING and not again.finding.ready


def test_a_node_whose_own_gate_is_closed_is_held_and_gated_again_whatever_it_has_published() -> None:
    closed = replace(POLICY, gate_closed="run 6 has begun and left no evidence")
    decision = decide(make_node(), Evidence(STATEMENT), ENTRY, closed, NOW)
    assert (decision.action, decision.finding.code) == (Act.HOLD, "GATE_CLOSED")
    assert "run 6 has begun" in decision.finding.message
    decision = decide(admitted_node(), Evidence(STATEMENT), ADMITTED, closed, NOW)
    assert decision.action is Act.RETAINT
    assert preflight(apply_patch(admitted_node(), decision.patch or [])) == {"NoSchedule"}
    # What the evidence says is told first.
    failed = Evidence(replace(STATEMENT, verdict=Verdict.FAIL))
    assert decide(make_node(), failed, ENTRY, closed, NOW).finding.code == "FAIL"


@pytest.mark.parametrize("ready", ["Unknown", None])
def test_a_node_that_does_not_report_is_not_admitted(ready: str | None) -> None:
    node = make_node(ready=ready or "True")
    if ready is None:
        node["status"]["conditions"] = []
    assert not decide(node, Evidence(STATEMENT), ENTRY, POLICY, NOW).finding.ready


def test_a_node_that_is_not_ready_for_other_reasons_is_admitted() -> None:
    # Its own not-ready taint keeps pods away; the evidence is as good.
    assert decide(make_node(ready="False"), Evidence(STATEMENT), ENTRY, POLICY, NOW).action is Act.ADMIT


def retainted(node: Any, statement: Statement, entry: Entry = ADMITTED) -> Any:
    decision = decide(node, Evidence(statement), entry, POLICY, NOW)
    assert decision.action is Act.RETAINT
    after = apply_patch(node, decision.patch or [])
    assert f"{PREFIX}ready" not in after["metadata"]["labels"]
    return after


def test_an_unknown_node_gets_noschedule_only_since_work_may_still_run() -> None:
    node = admitted_node()
    node["status"]["conditions"][1]["status"] = "Unknown"
    assert preflight(retainted(node, STATEMENT)) == {"NoSchedule"}


def test_an_unknown_node_that_comes_back_in_the_same_boot_is_admitted_again() -> None:
    node = admitted_node()
    node["spec"]["taints"].append({"key": "muster.dev/preflight", "effect": "NoSchedule"})
    decision = decide(node, Evidence(STATEMENT), ADMITTED, POLICY, NOW)
    assert decision.action is Act.ADMIT
    assert decision.entry == ADMITTED


def test_a_rebooted_node_gets_both_taints() -> None:
    node = admitted_node()
    node["status"]["nodeInfo"]["bootID"] = BOOT2
    assert preflight(retainted(node, STATEMENT)) == {"NoSchedule", "NoExecute"}


def test_a_reboot_that_only_the_evidence_knows_of_is_seen() -> None:
    # The gate refuses the status of a new boot, and kubelet's lease keeps the node Ready.
    newer = replace(STATEMENT, boot_id=BOOT2, sequence=6)
    assert preflight(retainted(admitted_node(), newer)) == {"NoSchedule", "NoExecute"}


def test_a_rebooted_node_is_admitted_with_a_new_pass_only() -> None:
    node = make_node(boot=BOOT2)
    assert not decide(node, Evidence(STATEMENT), ADMITTED, POLICY, NOW).finding.ready
    newer = replace(STATEMENT, boot_id=BOOT2, sequence=6)
    decision = decide(node, Evidence(newer), ADMITTED, POLICY, NOW)
    assert decision.action is Act.ADMIT and decision.entry.admitted and decision.entry.admitted.boot_id == BOOT2


def test_a_later_fail_of_the_same_boot_closes_the_gate() -> None:
    fail = replace(STATEMENT, verdict=Verdict.FAIL, sequence=6)
    after = retainted(admitted_node(), fail)
    assert preflight(after) == {"NoSchedule"}
    assert after["metadata"]["labels"][f"{PREFIX}verdict"] == "fail"


def test_simulated_evidence_is_labelled_where_it_is_allowed() -> None:
    node = make_node()
    allowed = replace(POLICY, allow_simulated=True)
    decision = decide(node, Evidence(replace(STATEMENT, simulated=True)), ENTRY, allowed, NOW)
    assert decision.action is Act.ADMIT
    after = apply_patch(node, decision.patch or [])
    assert after["metadata"]["labels"][f"{PREFIX}simulated"] == "true"
    real = decide(after, Evidence(STATEMENT), ENTRY, allowed, NOW)
    assert f"{PREFIX}simulated" not in apply_patch(after, real.patch or [])["metadata"]["labels"]


def test_another_domain_changes_taint_and_annotation() -> None:
    node = make_node()
    node["spec"]["taints"] = [{"key": "example.org/preflight", "effect": "NoSchedule"}]
    decision = decide(node, Evidence(STATEMENT), ENTRY, replace(POLICY, domain="example.org"), NOW)
    after = apply_patch(node, decision.patch or [])
    assert after["spec"]["taints"] == [] and "example.org/admitted" in after["metadata"]["annotations"]


def test_a_node_without_labels_and_taints_is_patched_too() -> None:
    node = make_node()
    del node["metadata"]["labels"], node["spec"]["taints"]
    after = apply_patch(node, decide(node, Evidence(), ENTRY, POLICY, NOW).patch or [])
    assert preflight(after) == {"NoSchedule"}
    assert after["metadata"]["labels"] == {f"{PREFIX}verdict": "inconclusive"}


def test_the_time_of_the_last_change_stays_while_the_status_does() -> None:
    node = admitted_node()
    first = gpu_verified(node)["lastTransitionTime"]
    newer = replace(STATEMENT, sequence=6)
    decision = decide(node, Evidence(newer), ADMITTED, POLICY, NOW + timedelta(hours=1))
    said = gpu_verified(apply_patch(node, decision.status_patch or []))
    assert "run 6" in said["message"] and said["lastTransitionTime"] == first


def test_times_to_live_differ_by_node_and_are_stable() -> None:
    ttls = {node_ttl_s(f"gpu-{n}", 1000.0) for n in range(50)}
    assert len(ttls) > 40 and all(900 <= ttl <= 1000 for ttl in ttls)
    assert node_ttl_s("gpu-1", 1000.0) == node_ttl_s("gpu-1", 1000.0)
