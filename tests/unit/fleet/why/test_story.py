"""`muster why` against an API server of this process: what is read, in what order, and what is said of it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api import record
from gpu_burnin.api.agent_note import AgentNote, Maintenance, Warned, note_text
from gpu_burnin.api.attached import ATTACHED_CONFIG, ENROLLED_BY_AGENT, Attached, Mode, parse_gpu_nodes
from gpu_burnin.api.enrolment import Claim, Decision, EnrolmentSpec, enrolment_document
from gpu_burnin.api.names import ADMITTER_USER, SYSTEM_NAMESPACE
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import history
from gpu_burnin.fleet.why import story, text
from gpu_burnin.fleet.why.entry import What
from gpu_burnin.fleet.why.told import SCHEMA, Files, Story
from gpu_burnin.report import model
from tests.support.fake_api import FakeApi, refusing
from tests.support.fleet_samples import NAMES, admission, lease
from tests.support.sample_reports import faulty_8

NOW = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
PAGE = Path(__file__).parents[4] / "docs/operations/what-happened.md"
T0 = NOW - timedelta(minutes=30)


def at(seconds: float) -> str:
    return (T0 + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def event(about: str, reason: str, message: str, after_s: float, **more: Any) -> dict[str, Any]:
    kind, _, name = about.partition(" ")
    namespace = "train" if kind != "Node" else "default"
    return {
        "metadata": {"name": f"{name}.{reason}.{after_s}", "namespace": namespace, "creationTimestamp": at(after_s)},
        "involvedObject": {"kind": kind, "name": name, "namespace": namespace if kind != "Node" else ""},
        "reason": reason, "message": message, "firstTimestamp": at(after_s), "lastTimestamp": at(after_s), "count": 1,
        **more,
    }  # fmt: skip


def pod(name: str = "bert-0", node: str = "gpu-1", **status: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "train", "labels": {"job-name": "bert"}}
    return {"metadata": metadata, "spec": {"nodeName": node}, "status": {"startTime": at(-600), **status}}


def failed(after_s: float, exit_code: int = 137, reason: str = "Error") -> dict[str, Any]:
    ended = {"exitCode": exit_code, "reason": reason, "finishedAt": at(after_s)}
    return {"phase": "Failed", "containerStatuses": [{"name": "main", "state": {"terminated": ended}}]}


XID = "gpu-1: XID 79 on GPU 3: GPU has fallen off the bus"


def quarantined() -> dict[str, Any]:
    """As the admitter writes it of a node that had joined a minute before, and whose agent has revoked."""
    absent = record.Transition(at(-120), "new", "new", "NODE_ABSENT", "gpu-1: no Node object", ADMITTER_USER)
    joined = record.Transition(at(-60), "new", "ready", "PASS", "gpu-1: burn-in run 1 (quick) passed", ADMITTER_USER)
    step = record.Transition(at(3), "ready", "quarantined", "XID_FATAL", XID, ADMITTER_USER)
    test = record.Tested(1, "quick", "PASS", at(-90))
    steps = (absent, joined, step)
    status = record.Status(record.State.QUARANTINED, at(3), "XID_FATAL", XID, last_test=test, transitions=steps)
    return {**admission("gpu-1"), "status": record.status_document(status)}


@pytest.fixture
def api() -> Iterator[FakeApi]:
    server = FakeApi()
    server.put("nodeadmissions", quarantined())
    server.put("nodes", {"metadata": {"name": "gpu-1"}})
    server.put("pods", pod(**failed(40)))
    server.put("events", event("Pod bert-0", "MusterAskedToLeave", f"node gpu-1: {XID}", 5))
    server.put("events", event("Pod bert-0", "Killing", "Stopping container main", 10))
    server.objects["jobs"] = {}
    yield server
    server.close()


def story_for(api: FakeApi, folder: Path, subject: str, files: Files | None = None) -> Story:
    kube = KubeApi(api.kubeconfig(folder / "kubeconfig"))
    return story.story_of(kube, NAMES, subject, files or Files(), NOW - timedelta(days=7), NOW)


def run(api: FakeApi, folder: Path, *arguments: str) -> Result:
    kubeconfig = api.kubeconfig(folder / "kubeconfig")
    return CliRunner().invoke(muster.cli, ["why", *arguments, "--since", "36500d", "--kubeconfig", str(kubeconfig)])


def test_an_attached_cluster_has_no_state_directory(api: FakeApi, tmp_path: Path) -> None:
    of = Attached(Mode.ENFORCING, parse_gpu_nodes(("a=b",)), "0")
    metadata = {"name": ATTACHED_CONFIG, "namespace": SYSTEM_NAMESPACE}
    api.put("configmaps", {"metadata": metadata, "data": of.data()})
    for subject in ("gpu-1", "train/bert-0"):
        missing = " | ".join(story_for(api, tmp_path, subject).missing)
        assert "the node's report: `kubectl exec --namespace muster-system POD" in missing
        assert "--state" not in missing and "/var/log" not in missing
    # Who may not read which it is gets the words of both.
    api.before_read = refusing(403, "you may not", of="configmaps")
    missing = " | ".join(story_for(api, tmp_path, "gpu-1").missing)
    assert "give --state, the inventory's fleet_state_dir; where attached `kubectl exec" in missing


def test_a_record_that_cannot_be_read_or_seen_is_none_that_is_missing(api: FakeApi, tmp_path: Path) -> None:
    """Nobody is told to add, or to approve, a node that is in the ledger."""
    of = Attached(Mode.ENFORCING, parse_gpu_nodes(("a=b",)), "0")
    metadata = {"name": ATTACHED_CONFIG, "namespace": SYSTEM_NAMESPACE}
    api.put("configmaps", {"metadata": metadata, "data": of.data()})
    api.put("nodeadmissions", {**admission("gpu-1"), "status": {"state": "resting"}})
    told = story_for(api, tmp_path, "gpu-1")
    assert told.stands.startswith("gpu-1: its NodeAdmission cannot be read (state: none of ")
    assert "'resting'); use a muster of the cluster's version, or bring the definition to this one:" in told.stands
    assert "what the admitter did with gpu-1, since it has no NodeAdmission that can be read" in told.missing
    assert "use a muster of the cluster's version" in " ".join(story_for(api, tmp_path, "train/bert-0").missing)
    api.before_read = refusing(403, "you may not", of="nodeadmissions")
    assert story_for(api, tmp_path, "gpu-1").stands.startswith("gpu-1: your rights do not show how it stands; whoever")


def test_a_node_that_waits_for_approval_says_so(api: FakeApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attached node that has no NodeAdmission: no agent came, it waits, is not believed, was refused."""
    key = base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes(32)).decode()
    claim = Claim(
        "gpu-2", ENROLLED_BY_AGENT, f"ssh-ed25519 {key}", "a" * 32, f"{'0' * 8}-0000-0000-0000-{'0' * 12}", "", "0" * 64
    )
    api.put("nodes", {"metadata": {"name": "gpu-2"}})
    api.objects["nodeenrolments"] = {}
    built = "add it to the inventory and run site.yml, or delete its Node"
    assert story_for(api, tmp_path, "gpu-2").stands == f"gpu-2 has no NodeAdmission: {built}"
    of = Attached(Mode.OBSERVING, parse_gpu_nodes(("a=b",)), "0")
    metadata = {"name": ATTACHED_CONFIG, "namespace": SYSTEM_NAMESPACE}
    api.put("configmaps", {"metadata": metadata, "data": of.data()})
    assert "has no NodeAdmission: no agent has come from it: see that" in story_for(api, tmp_path, "gpu-2").stands
    spec = EnrolmentSpec(ENROLLED_BY_AGENT, "", claim.canonical().decode(), "signed")
    api.put("nodeenrolments", enrolment_document("gpu-2", spec, NAMES))
    untrue = story_for(api, tmp_path, "gpu-2").stands
    assert "what it claims cannot be believed" in untrue and claim.fingerprint not in untrue
    monkeypatch.setattr("gpu_burnin.api.enrolment.signature_holds", lambda *_: True)
    waits = f"its agent waits for approval, with the key {claim.fingerprint}: `muster attach approve gpu-2`"
    assert story_for(api, tmp_path, "gpu-2").stands == f"gpu-2 has no NodeAdmission: {waits}"
    for approved, words in ((False, "ann refused its agent"), (True, "its agent was approved by ann")):
        decided = replace(spec, decision=Decision(approved, "ann", "no such machine", at(0)))
        api.put("nodeenrolments", enrolment_document("gpu-2", decided, NAMES))
        assert words in story_for(api, tmp_path, "gpu-2").stands
    api.before_read = refusing(403, "you may not", of="nodeenrolments")
    assert "your rights show no NodeEnrolments" in story_for(api, tmp_path, "gpu-2").stands


def test_a_pod_that_was_killed_died_of_the_xid_and_not_of_the_last_message(api: FakeApi, tmp_path: Path) -> None:
    found = story_for(api, tmp_path, "train/bert-0")
    assert [one.what for one in found.cause.chain] == [What.QUARANTINED, What.DRAINED, What.ENDED]
    assert found.cause.first is not None and "XID 79 on GPU 3" in found.cause.first.sentence
    shown = text.render(found, 80)
    assert max(map(len, shown.splitlines())) <= 80
    told = " ".join(shown.split())
    assert ", by the admitter: XID_FATAL: ready to quarantined: gpu-1: XID 79 on GPU 3" in told
    assert told.index("First cause: ") < told.index("XID_FATAL: ready to quarantined") < told.index("What happened")
    assert [one.at for one in found.entries] == sorted(one.at for one in found.entries)


@pytest.mark.parametrize("subject", ["bert-0", "train/bert-0"])
def test_a_pod_is_found_with_and_without_its_namespace(subject: str, api: FakeApi, tmp_path: Path) -> None:
    assert story_for(api, tmp_path, subject).subject == "train/bert-0"


def test_a_pod_that_is_gone_is_told_from_its_events(api: FakeApi, tmp_path: Path) -> None:
    api.remove("pods", "train/bert-0")
    api.put("events", event("Pod bert-0", "Scheduled", "Successfully assigned train/bert-0 to gpu-1", -600))
    found = story_for(api, tmp_path, "train/bert-0")
    assert found.stands == "train/bert-0 is gone" and found.node == "gpu-1"
    assert found.cause.first is not None and found.cause.first.what is What.QUARANTINED


def test_a_job_is_explained_by_the_pod_that_ended_first(api: FakeApi, tmp_path: Path) -> None:
    api.put("jobs", {"metadata": {"name": "bert", "namespace": "train"}})
    api.put("pods", pod("bert-1", "gpu-2", **failed(90, 1)))
    found = story_for(api, tmp_path, "bert")
    assert found.kind == "job" and found.node == "gpu-1"
    assert found.cause.effect is not None and found.cause.effect.pod == "train/bert-0"
    assert "2 failed" in found.stands


def test_a_job_whose_pod_was_evicted_is_explained_by_the_pod_that_is_gone(api: FakeApi, tmp_path: Path) -> None:
    """The API server has no pod of it any more: the job's own events name it, and its events say where it was."""
    failed_job = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "the limit"}
    api.put("jobs", {"metadata": {"name": "bert", "namespace": "train"}, "status": {"conditions": [failed_job]}})
    api.put("events", event("Job bert", "SuccessfulCreate", "Created pod: bert-0", -600))
    api.put("events", event("Pod bert-0", "Scheduled", "Successfully assigned train/bert-0 to gpu-1", -600))
    api.put("events", event("Pod other", "Killing", "Stopping container main", 1))
    api.remove("pods", "train/bert-0")
    for job_is_gone in (False, True):
        if job_is_gone:
            api.remove("jobs", "train/bert")
        found = story_for(api, tmp_path, "train/bert")
        assert found.kind == "job" and found.node == "gpu-1"
        said = "" if job_is_gone else "failed (BackoffLimitExceeded: the limit); "
        assert found.stands == f"train/bert: {said}pods: 1 gone"
        assert [one.what for one in found.cause.chain] == [What.QUARANTINED, What.DRAINED, What.ENDED]
        assert found.cause.effect is not None and found.cause.effect.pod == "train/bert-0"


def test_a_name_of_several_jobs_is_asked_for_again(api: FakeApi, tmp_path: Path) -> None:
    for namespace in ("train", "other"):
        api.put("jobs", {"metadata": {"name": "bert", "namespace": namespace}})
    with pytest.raises(GpuBurninError, match="other/bert, train/bert"):
        story_for(api, tmp_path, "bert")


def test_a_node_says_what_took_it_out_of_service(api: FakeApi, tmp_path: Path) -> None:
    found = story_for(api, tmp_path, "gpu-1")
    assert found.kind == "node" and found.stands.startswith(f"gpu-1 is quarantined since {at(3)} (XID_FATAL")
    assert [one.what for one in found.cause.chain] == [What.QUARANTINED]
    told = " ".join(text.render(found).split())
    assert f"First cause: {T0 + timedelta(seconds=3):%Y-%m-%d %H:%M:%S}, by the admitter: XID_FATAL" in told


def test_a_play_before_a_fault_is_no_cause_of_it(api: FakeApi, tmp_path: Path) -> None:
    """site.yml has just made the node: that it changed something did not throw a GPU off the bus."""
    play = history.Play("r", "site.yml", "Keep time", "ann", "", False, at(-240), at(-200))
    history.record(tmp_path / history.FILE, play, {"gpu-1": history.Result(changed=3)}, at(-9999999))
    found = story_for(api, tmp_path, "gpu-1", Files(tmp_path))
    assert any(one.source == "play" for one in found.entries)
    assert [one.what for one in found.cause.chain] == [What.QUARANTINED]


def rebooted() -> dict[str, Any]:
    """As the admitter writes it of a node that works and shows another boot."""
    step = record.Transition(at(3), "ready", "suspect", "REBOOTED", "gpu-1: another boot", ADMITTER_USER)
    proof = record.Tested(1, "quick", "PASS", at(-90))
    status = record.Status(
        record.State.SUSPECT, at(3), "REBOOTED", "gpu-1: another boot", last_test=proof, transitions=(step,)
    )
    return {**admission("gpu-1"), "status": record.status_document(status)}


@pytest.mark.parametrize("boots", [False, True])
def test_a_play_is_the_cause_of_a_reboot_where_a_task_of_it_had_the_machine_boot(
    boots: bool, api: FakeApi, tmp_path: Path
) -> None:
    api.put("nodeadmissions", rebooted())
    play = history.Play("r", "site.yml", "Driver", "ann", "", False, at(-240), at(-20 if not boots else 60))
    result = history.Result(changed=3)
    if boots:
        result.reboot("Reboot a few hosts at a time", at(-30))
    history.record(tmp_path / history.FILE, play, {"gpu-1": result}, at(-9999999))
    shown = " ".join(text.render(story_for(api, tmp_path, "gpu-1", Files(tmp_path))).split())
    if boots:
        assert "site.yml, play 'Driver', task \"Reboot a few hosts at a time\" had gpu-1 boot (by ann). What" in shown
        assert "Before it" not in shown
    else:
        assert "by the admitter: REBOOTED: ready to suspect: gpu-1: another boot. Before it: " in shown
        assert "by the history of plays: site.yml, play 'Driver': 3 changed (by ann). Nothing shows that" in shown


def test_what_comes_at_each_start_of_a_kubelet_is_one_line(api: FakeApi, tmp_path: Path) -> None:
    """Also between the lines that matter, in their time; a warning that says more is told as it is."""
    kubelet = {"source": {"component": "kubelet", "host": "gpu-1"}}
    for number in range(40):
        reason = ("Starting", "NodeHasSufficientMemory", "NodeHasNoDiskPressure")[number % 3]
        api.put("events", event("Node gpu-1", reason, "x", number - 20, **kubelet))
    api.put("events", event("Node gpu-1", "InvalidDiskCapacity", "x", -19, type="Warning", **kubelet))
    api.put("events", event("Node gpu-1", "ContainerGCFailed", "no room", 30, type="Warning", **kubelet))
    lines = run(api, tmp_path, "gpu-1").stdout.splitlines()
    folded = [line for line in lines if "of routine, to" in line]
    assert len(folded) == 2 and "24 of routine, to" in folded[0] and "17 of routine, to" in folded[1], folded
    assert any("ContainerGCFailed: no room" in line for line in lines)
    assert sum("NodeHasSufficientMemory: x" in line for line in lines) == 0
    lines = run(api, tmp_path, "gpu-1", "--all", "--html", str(tmp_path / "page.html")).stdout.splitlines()
    assert sum("NodeHasSufficientMemory: x" in line for line in lines) == 13
    assert (tmp_path / "page.html").read_text().count("NodeHasSufficientMemory: x") == 13


def test_an_ask_of_the_second_is_not_taken_for_the_change_that_it_led_to(api: FakeApi, tmp_path: Path) -> None:
    node = quarantined()
    node["spec"] = {**node.get("spec", {}), "hold": {"who": "ann", "why": "loud fan", "since": at(3), "until": ""}}
    api.put("nodeadmissions", node)
    assert [one.what for one in story_for(api, tmp_path, "gpu-1").cause.chain] == [What.QUARANTINED]


def test_a_node_that_never_came_in_says_what_its_burn_in_found(api: FakeApi, tmp_path: Path) -> None:
    """The cluster does not hear of it: its kubelet does not start. The report on the controller knows."""
    api.put("nodeadmissions", admission("gpu-1", "new", code="NODE_ABSENT"))
    assert story_for(api, tmp_path, "gpu-1", Files(tmp_path)).cause.effect is None
    report, _ = faulty_8()
    (tmp_path / "reports/gpu-1").mkdir(parents=True)
    (tmp_path / "reports/gpu-1/report.json").write_text(json.dumps(model.document(report)))
    found = story_for(api, tmp_path, "gpu-1", Files(tmp_path))
    first = found.cause.first
    assert first is not None and (first.source, first.code) == ("report", report.reasons[0].code)
    assert "First cause: " in text.render(found)


def test_a_change_is_shown_once(api: FakeApi, tmp_path: Path) -> None:
    """The admitter's event of a change that its record has too is there for programs alone."""
    for after_s, quiet in ((3, True), (600, False)):
        said = event("Node gpu-1", "MusterQuarantined", f"XID_FATAL: {XID}", after_s)
        api.put("events", {**said, "source": {"component": "muster-admitter"}})
        found = [one for one in story_for(api, tmp_path, "gpu-1").entries if one.at == T0 + timedelta(seconds=after_s)]
        assert [one.quiet for one in found if one.source == "event"] == [quiet]


def test_a_release_in_the_second_of_an_ask_is_shown(api: FakeApi, tmp_path: Path) -> None:
    """Neither has a code: they are no two tellers of one thing."""
    ask = {"who": "ann", "why": "loud fan", "since": at(7), "until": ""}
    api.put("nodeadmissions", {**admission("gpu-1"), "spec": {"retest": ask}})
    api.put("events", event("Node gpu-1", "Released", "ann: new fan", 7))
    told = [one for one in story_for(api, tmp_path, "gpu-1").entries if one.at == T0 + timedelta(seconds=7)]
    assert {one.source for one in told} == {"admission", "event"} and not any(one.quiet for one in told)


def test_out_of_memory_is_what_kubelet_says_itself(api: FakeApi, tmp_path: Path) -> None:
    api.put("pods", pod(**failed(2, 137, "OOMKilled")))
    found = story_for(api, tmp_path, "train/bert-0")
    assert found.cause.first is not None and found.cause.first.what is What.OUT_OF_MEMORY


def test_nothing_known_is_said_with_what_was_not_looked_at(api: FakeApi, tmp_path: Path) -> None:
    api.put("nodeadmissions", admission("gpu-1"))
    api.objects["events"].clear()
    found = story_for(api, tmp_path, "train/bert-0")
    assert found.cause.first is None
    told = " ".join(text.render(found).split())
    assert "First cause: not known." in told
    for missing in ("give --state", "give --audit FILE", "the agent has left no note", "older events"):
        assert missing in told


def test_running_and_ready_are_said(api: FakeApi, tmp_path: Path) -> None:
    api.put("pods", pod(phase="Running"))
    api.objects["events"].clear()
    assert "No end of it is known." in text.render(story_for(api, tmp_path, "train/bert-0"))
    api.put("nodeadmissions", admission("gpu-1"))
    assert "Nothing took it out of service" in text.render(story_for(api, tmp_path, "gpu-1"))


def test_nobody_known_is_an_error_that_says_what_to_give(api: FakeApi, tmp_path: Path) -> None:
    for subject in ("none", "train/none"):
        with pytest.raises(GpuBurninError, match="no node, pod or job of this name"):
            story_for(api, tmp_path, subject)
    second = pod(**failed(40))
    second["metadata"] = {"name": "bert-0", "namespace": "other"}
    api.put("pods", second)
    with pytest.raises(GpuBurninError, match="other/bert-0, train/bert-0"):
        story_for(api, tmp_path, "bert-0")


def test_the_agent_s_warnings_and_maintenance_are_in_the_line(api: FakeApi, tmp_path: Path) -> None:
    window = Maintenance("azure", "scheduled", at(-60), at(3600), "Reboot", message="host update")
    note = AgentNote("b", warnings=(Warned("XID_SUSPECT", "XID 63 on GPU 1", at(-120)),), maintenance=window)
    api.put("nodes", {"metadata": {"name": "gpu-1", "annotations": {NAMES.agent: note_text(note)}}})
    found = {one.what: one for one in story_for(api, tmp_path, "gpu-1").entries if one.source == "agent"}
    assert found[What.XID].code == "XID_SUSPECT"
    assert "azure maintenance, Reboot, scheduled, host update" in found[What.MAINTENANCE].message
    api.put("nodes", {"metadata": {"name": "gpu-1", "annotations": {NAMES.agent: "{"}}})
    assert any("the note cannot be read" in one for one in story_for(api, tmp_path, "gpu-1").missing)


def test_clocks_that_differ_are_told(api: FakeApi, tmp_path: Path) -> None:
    for number in range(3):
        late = event("Node gpu-1", f"Seen{number}", "x", number, source={"component": "kubelet", "host": "gpu-1"})
        late["firstTimestamp"] = at(number + 42)
        api.put("events", late)
    assert "the clock of gpu-1 is 42 s ahead of that of the API servers" in story_for(api, tmp_path, "gpu-1").clocks[0]
    api.put("leases", lease("api-1", (NOW + timedelta(seconds=90)).isoformat()))
    assert "90 s or more behind" in story_for(api, tmp_path, "gpu-1").clocks[1]


def test_plays_and_a_broken_report_do_not_hide_each_other(api: FakeApi, tmp_path: Path) -> None:
    state = tmp_path / "state"
    (state / "reports/gpu-1").mkdir(parents=True)
    (state / "reports/gpu-1/report.json").write_text("{")
    play = history.Play("r", "site.yml", "Driver", "ann", "", False, at(-300), at(-200))
    history.record(state / history.FILE, play, {"gpu-1": history.Result(changed=3)}, at(-9999999))
    found = story_for(api, tmp_path, "gpu-1", Files(state))
    [entry] = [one for one in found.entries if one.source == "play"]
    assert entry.sentence == "site.yml, play 'Driver': 3 changed (by ann)"
    assert any("report.json" in one for one in found.missing)
    (state / history.FILE).write_bytes(b"broken" * 1000)
    found = story_for(api, tmp_path, "gpu-1", Files(state))
    assert any("the history of plays cannot be read" in one for one in found.missing)


def test_json_and_page_have_the_same(api: FakeApi, tmp_path: Path) -> None:
    api.put("events", event("Pod bert-0", "Odd", "<script>alert(1)</script>", 1))
    done = run(api, tmp_path, "train/bert-0", "--json", "--html", str(tmp_path / "page.html"))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["schema"] == SCHEMA and told["first_cause"]["code"] == "XID_FATAL"
    assert [one["what"] for one in told["chain"]] == ["quarantined", "drained", "ended"]
    page = (tmp_path / "page.html").read_text()
    assert "<script>" not in page and "XID 79 on GPU 3" in page and "led to it" in page
    # A badge of a cluster that is only observed says no more than is true.
    assert "</svg> finding</span>" in page and "</svg> quarantined</span>" not in page
    assert "First cause:" in run(api, tmp_path, "train/bert-0").stdout


def test_the_page_of_the_docs_shows_what_is_said(api: FakeApi, tmp_path: Path) -> None:
    blocks = PAGE.read_text().split("```")[1::2]
    shown = next(block[4:].strip("\n") for block in blocks if block.startswith("text\ntrain/bert-0: "))
    assert shown == text.render(story_for(api, tmp_path, "train/bert-0"), 80).strip("\n")


def test_the_state_beside_the_kubeconfig_is_found(api: FakeApi, tmp_path: Path) -> None:
    state = tmp_path / "prod"
    (state / "kubeconfig").mkdir(parents=True)
    kubeconfig = api.kubeconfig(state / "kubeconfig/admin.kubeconfig")
    for marked, says in ((False, "give --state"), (True, "no report can be read")):
        if marked:
            (state / "known_hosts").touch()
        done = CliRunner().invoke(muster.cli, ["why", "gpu-1", "--kubeconfig", str(kubeconfig)])
        assert says in " ".join(done.stdout.split())
