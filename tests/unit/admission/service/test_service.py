"""The service as a whole against a fake API server: admission, revocation, trouble of one node, brakes, outages."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.client import node_path
from gpu_burnin.admission.service import term as terms
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.service import Service
from gpu_burnin.admission.service.term import Term
from gpu_burnin.api.names import READY_LABEL, SYSTEM_NAMESPACE
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT2
from tests.support.admitter_helpers import ASK, NAMES, Fleet, until, working
from tests.support.csr_helpers import client_csr
from tests.support.fake_api import FakeApi, refusing


def test_a_pass_lets_a_node_in_and_a_fail_takes_it_out(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.provision("gpu-1")
    fleet.register("gpu-1")
    with working(api, tmp_path) as admitter:
        until("the look", lambda: fleet.status("gpu-1"))
        assert not fleet.ready("gpu-1")
        fleet.publish("gpu-1")
        until("the admission", lambda: fleet.ready("gpu-1"))
        assert fleet.status("gpu-1")["state"] == "ready"
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL, code="GEMM_MISMATCH")
        until("the revocation", lambda: fleet.status("gpu-1")["state"] == "quarantined")
        until("the taint", lambda: "quarantine:NoSchedule" in fleet.taints("gpu-1"))
        assert not fleet.ready("gpu-1")
        last = admitter.lines("transition")[-1]
        assert (last["node"], last["from"], last["to"], last["code"]) == (
            "gpu-1",
            "ready",
            "quarantined",
            "GEMM_MISMATCH",
        )
        changes = len(admitter.lines("transition"))
        until("the events", lambda: len(api.objects.get("events", {})) == changes)
        numbers = {"from": "ready", "to": "quarantined", "code": "GEMM_MISMATCH"}
        assert admitter.service.metrics.value("transitions", **numbers) == 1


def test_what_somebody_else_takes_away_is_put_back_and_told_once(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1", "gpu-2")
    with working(api, tmp_path) as admitter:
        until("the admissions", lambda: fleet.ready("gpu-1") and fleet.ready("gpu-2"))
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the quarantine", lambda: fleet.status("gpu-1")["state"] == "quarantined")
        until("the taint", lambda: any("quarantine" in taint for taint in fleet.taints("gpu-1")))
        count = admitter.service.metrics.value
        assert count("foreign_changes") == 0
        api.merge("nodes", "gpu-1", {"spec": {"taints": []}, "metadata": {"labels": {READY_LABEL: "true"}}})
        until("the taint again", lambda: any("quarantine" in taint for taint in fleet.taints("gpu-1")))
        until("the label's end", lambda: not fleet.ready("gpu-1"))
        until("the event", lambda: "MusterForeignChange" in str(api.objects.get("events")))
        # The work of every day goes on, and is nobody else's.
        fleet.ask("gpu-2", hold=ASK)
        until("the other's hold", lambda: fleet.status("gpu-2")["state"] == "held" and not fleet.ready("gpu-2"))
        reported = [text for text in admitter.messages() if "somebody else" in text]
        assert count("foreign_changes") == len(reported) == 1
        assert (
            "gpu-1: somebody else took away taint muster.dev/preflight:NoSchedule, taint muster.dev/quarantine"
            in reported[0]
        )
        assert f"and added label {READY_LABEL}=true, which the gate lets nobody but the admitter do" in reported[0]


def test_a_new_boot_shuts_the_node_until_its_own_pass(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    with working(api, tmp_path):
        until("the admission", lambda: fleet.ready("gpu-1"))
        node = api.nodes["gpu-1"]
        api.put_node(
            {**node, "status": {**node["status"], "nodeInfo": {**node["status"]["nodeInfo"], "bootID": BOOT2}}}
        )
        until("the taint", lambda: fleet.taints("gpu-1") >= {"preflight:NoSchedule", "preflight:NoExecute"})
        fleet.publish("gpu-1", sequence=6)
        until("the admission", lambda: fleet.ready("gpu-1"))
        assert fleet.status("gpu-1")["accepted"]["bootID"] == BOOT2


def test_a_hold_and_a_pause_keep_a_node_as_they_say(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    pause: dict[str, Any] = {"metadata": {"namespace": SYSTEM_NAMESPACE, "name": "muster-pause"}}
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        fleet.ask("gpu-1", hold=ASK)
        until("the hold", lambda: fleet.status("gpu-1")["state"] == "held" and not fleet.ready("gpu-1"))
        api.put("configmaps", {**pause, "data": {"who": "ada", "why": "power work", "until": ""}})
        until("the pause", lambda: admitter.service.term and admitter.service.term.pause.why())
        fleet.ask("gpu-1", hold=None)
        until("what waits", lambda: "power work" in str(fleet.status("gpu-1").get("next")))
        assert not fleet.ready("gpu-1")
        api.remove("configmaps", f"{SYSTEM_NAMESPACE}/muster-pause")
        until("the admission", lambda: fleet.ready("gpu-1"))


@pytest.mark.slow
def test_a_node_that_is_rewritten_all_the_time_is_alone_in_its_trouble(
    api: FakeApi, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terms, "_FIGHT", 2)
    fleet.prove("bad", "good")
    rewrites = iter(range(10**6))

    def rewrite(path: str) -> None:
        if path == "/api/v1/nodes/bad":
            node = api.nodes["bad"]
            annotations = {**node["metadata"]["annotations"], "x": str(next(rewrites))}
            api.put_node({**node, "metadata": {**node["metadata"], "annotations": annotations}})

    api.before_write = rewrite
    with working(api, tmp_path) as admitter:
        until("the admission of the good one", lambda: fleet.ready("good"))
        until("a word on the bad one", lambda: any("kept changing" in text for text in admitter.messages()))
        assert not fleet.ready("bad")
        assert b"muster_admitter_delayed_nodes 1.0\n" in admitter.service.metrics.text()
        api.before_write = lambda path: None
        until("the admission of the bad one", lambda: fleet.ready("bad"))
        assert len([text for text in admitter.messages() if "kept changing" in text]) == 1


def test_a_ledger_that_does_not_keep_what_is_written_opens_no_node(
    api: FakeApi, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older CRD: the API server prunes the fields that it does not know."""
    fleet.prove("gpu-1")
    written = api._write

    def prune(method: str, resource: str, old: dict[str, Any], subresource: str, body: Any) -> dict[str, Any]:
        if resource == "nodeadmissions":
            body = [body[0], {**body[1], "value": {k: v for k, v in body[1]["value"].items() if k != "proofs"}}]
        return written(method, resource, old, subresource, body)

    monkeypatch.setattr(api, "_write", prune)
    with working(api, tmp_path) as admitter:
        until("the word", lambda: any("its CRD is of another version" in text for text in admitter.messages()))
        assert "preflight:NoSchedule" in fleet.taints("gpu-1")


@pytest.mark.slow
def test_it_ends_when_a_part_of_it_has_ended(
    api: FakeApi, fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would renew its Lease for ever, and nobody would do the rest."""
    ended: list[GpuBurninError] = []
    run = Service.run

    def caught(service: Service) -> None:
        try:
            run(service)
        except GpuBurninError as error:
            ended.append(error)

    monkeypatch.setattr(Service, "run", caught)
    fleet.prove("gpu-1")
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        monkeypatch.setattr(Term, "dead_threads", lambda term: ["watch-pods"])
        until("the end", lambda: bool(ended))
        assert "api-1: threads that ended: watch-pods" in str(ended[0]) and ended[0].exit_code == 3
        assert admitter.messages()[-1].endswith("the admitter has ended")


def test_without_the_crd_it_waits_and_says_what_brings_it(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    api.unknown.add("nodeadmissions")
    with working(api, tmp_path) as admitter:
        until("the word", lambda: any("does not know nodeadmissions" in text for text in admitter.messages()))
        assert not fleet.ready("gpu-1") and admitter.service.unhealthy() == ""
        api.unknown.clear()
        until("the admission", lambda: fleet.ready("gpu-1"))


def test_a_record_that_cannot_be_read_is_told_and_the_others_go_on(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("good")
    fleet.register("bad")
    api.put("nodeadmissions", {"metadata": {"name": "bad"}, "spec": {}, "status": {"state": "odd"}})
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("good"))
        until("the word", lambda: any("bad: its NodeAdmission cannot be read" in t for t in admitter.messages()))
        assert "preflight:NoSchedule" in fleet.taints("bad")


@pytest.mark.slow
def test_of_many_doubts_at_once_a_share_is_carried_out_and_it_says_so(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    names = [f"gpu-{number}" for number in range(10)]
    fleet.prove(*names)
    with working(api, tmp_path, joins_per_s=1000) as admitter:
        until("the admissions", lambda: all(map(fleet.ready, names)))
        for name in names:
            fleet.publish(name, sequence=6, verdict=Verdict.INCONCLUSIVE)
        # The labels of the two follow their ledgers, while the ledgers of the others are written beside them.
        until(
            "the limit",
            lambda: (
                [fleet.status(n).get("next", {}).get("what") for n in names].count("taken from work") == 8
                and sum(map(fleet.ready, names)) == 8
            ),
        )
        assert any("many nodes at once" in text for text in admitter.messages())
        until("the event", lambda: "MusterBrake" in str(api.objects.get("events")))
        assert admitter.service.metrics.value("brake_denials", brake="gate") >= 8


def test_what_should_wait_for_its_turn_to_join_waits(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    names = [f"gpu-{number}" for number in range(6)]
    fleet.prove(*names)
    with working(api, tmp_path, joins_per_s=0.01):
        # The label of the one follows its ledger, while the ledgers of the others are written beside it.
        until(
            "the one and the wait of the others",
            lambda: (
                [fleet.status(n).get("next", {}).get("what") for n in names].count("let in") == 5
                and sum(map(fleet.ready, names)) == 1
            ),
        )


@pytest.mark.slow
def test_an_api_server_that_goes_away_loses_nothing(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")

    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        api.before_read = api.before_write = refusing(503, "the server is unavailable")
        api.cut_watches()
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the word", lambda: any("unavailable" in text for text in admitter.messages()))
        assert fleet.ready("gpu-1") and admitter.service.unhealthy() == ""
        api.before_read = api.before_write = lambda path: None
        until("the revocation", lambda: fleet.status("gpu-1")["state"] == "quarantined", 60)


@pytest.mark.slow
def test_of_two_one_leads_and_the_other_follows_at_once_when_it_ends(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.prove("gpu-1")
    with working(api, tmp_path, "api-2") as second:
        until("the admission", lambda: fleet.ready("gpu-1"))
        with working(api, tmp_path, "api-1") as first:
            until("its start", lambda: first.messages())
            assert first.service.term is None and second.service.leadership.held()
            second.service.stop()
            until("the takeover", lambda: first.service.leadership.held())
            fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
            until("the revocation", lambda: fleet.status("gpu-1")["state"] == "quarantined")


def test_a_term_that_is_over_writes_nothing_though_the_process_leads_again(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    fleet.prove("gpu-1")
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        term = admitter.service.term
        assert term is not None
        term.api.patch(node_path("gpu-1"), [{"op": "add", "path": "/metadata/labels/x", "value": "1"}])
        term.stop()
        assert admitter.service.leadership.held()
        with pytest.raises(NotLeader):
            term.api.patch(node_path("gpu-1"), [{"op": "add", "path": "/metadata/labels/x", "value": "2"}])


def test_certificates_of_known_nodes_are_approved_and_others_told(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    api.put("certificatesigningrequests", client_csr())
    with working(api, tmp_path) as admitter:
        until("the refusal", lambda: any("is left pending" in text for text in admitter.messages()))
        assert not api.csrs["csr-client"].get("status", {}).get("conditions")
        fleet.provision("gpu-1")
        until("the record", lambda: "gpu-1" in admitter.service.term.records)  # type: ignore[union-attr]
        api.put("certificatesigningrequests", client_csr())
        until("the approval", lambda: api.csrs["csr-client"].get("status", {}).get("conditions"))
        until("its count", lambda: admitter.service.metrics.value("csrs", result="approved") == 1)
        # Requests that are approved or gone leave nothing behind, however many come in a year.
        term = admitter.service.term
        assert term is not None
        api.put("certificatesigningrequests", client_csr("csr-odd", request="AAAA"))
        until("the second refusal", lambda: "csr-odd" in term._approver._said)
        api.remove("certificatesigningrequests", "csr-odd")
        until("that both are forgotten", lambda: not term._approver._said)
        until("its credit", lambda: not term._csr_queue._credit)
        assert not [about for about in term._told if about.startswith("csr/")]


def test_health_and_metrics_are_served(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    fleet.provision("gpu-2")
    with working(api, tmp_path) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        until("a word on the other", lambda: "status" in api.objects["nodeadmissions"]["gpu-2"])
        port = admitter.messages()[0].rpartition(":")[2]

        def read(path: str) -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
                return str(answer.read().decode())

        assert (read("/healthz"), read("/leaderz")) == ("ok\n", "leader\n")
        text = read("/metrics")
        for line in (
            "muster_admitter_leader 1.0",
            'muster_admitter_nodes{state="ready"} 1.0',
            'muster_admitter_held{reason="NODE_ABSENT"} 1.0',
            "muster_admitter_proof_expires_soon 0.0",
            "muster_admitter_joins_total 1.0",
            # There before the first: an increase is seen between two samples alone.
            "muster_admitter_foreign_changes_total 0.0",
            *(
                f'muster_admitter_brake_denials_total{{brake="{budget}"}} 0.0'
                for budget in ("join", "gate", "expire", "test")
            ),
            'muster_admitter_evidence_verified_total{result="authentic"} 1.0',
            'muster_admitter_lists_total{resource="nodes"} 1.0',
        ):
            assert f"\n{line}\n" in text
        assert text.endswith("# EOF\n") and "muster_admitter_patch_seconds_count" in text


def test_a_pod_that_holds_is_told_and_left_until_its_hold_is_gone(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    def pod(name: str, **annotations: str) -> None:
        metadata = {"namespace": "jobs", "name": name, "uid": f"uid-{name}", "annotations": annotations}
        api.put("pods", {"metadata": metadata, "spec": {"nodeName": "gpu-1"}, "status": {"phase": "Running"}})

    def reported() -> dict[str, str]:
        events = [(event["involvedObject"], event["message"]) for event in api.objects.get("events", {}).values()]
        return {about["name"]: message for about, message in events if about["kind"] == "Pod"}

    fleet.provision("gpu-1")
    fleet.register("gpu-1")
    fleet.publish("gpu-1")
    with working(api, tmp_path):
        until("the admission", lambda: fleet.ready("gpu-1"))
        pod("free")
        pod("train", **{NAMES.hold_until: "checkpoint"})
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.FAIL)
        until("the eviction", lambda: "jobs/free" not in api.objects["pods"])
        until("both events", lambda: set(reported()) == {"free", "train"})
        assert "is left until its checkpoint, at most to" in reported()["train"]
        assert "jobs/train" in api.objects["pods"]
        assert NAMES.leave in api.nodes["gpu-1"]["metadata"]["annotations"]
        pod("train")
        until("its eviction", lambda: "jobs/train" not in api.objects["pods"])


def test_documentation_rules_and_dashboards_name_numbers_that_there_are(
    api: FakeApi, fleet: Fleet, tmp_path: Path
) -> None:
    top = Path(__file__).resolve().parents[4]
    monitoring = top / "roles/fleet_monitoring/files"
    kinds = {
        "documentation": [top / "docs/operations/standing-admission.md"],
        "rules": sorted((monitoring / "rules").glob("*.yml")),
        "dashboards": sorted((monitoring / "dashboards").glob("*.json")),
    }
    with working(api, tmp_path) as admitter:
        there = set(re.findall(r"# TYPE (\S+)", admitter.service.metrics.text().decode()))
    assert there
    for kind, files in kinds.items():
        text = "\n".join(path.read_text(encoding="utf-8") for path in files)
        named = {
            re.sub(r"_(total|bucket|count|sum)$", "", name)
            for name in re.findall(r"muster_admitter_[a-z_]+[a-z]", text)
        }
        assert named and named <= there, kind
