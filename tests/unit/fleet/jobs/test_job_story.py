"""`muster why JOB` against recorded objects: the first cause of each wait and end, where another one would be wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.api import record
from gpu_burnin.api.fabric_proof import FabricOutcome, FabricProof
from gpu_burnin.api.names import ADMITTER_USER
from gpu_burnin.api.waits import Why
from gpu_burnin.cli.muster import main as muster
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import End, Fabric, Nic, Node, Outcome, Result, Settings, SignedView, View
from gpu_burnin.fleet.fabric import results
from gpu_burnin.fleet.fabric.planner import next_round
from gpu_burnin.fleet.why import page, text
from gpu_burnin.fleet.why.entry import What
from gpu_burnin.fleet.why.of_fabric import of_run
from gpu_burnin.fleet.why.story import story_of
from gpu_burnin.fleet.why.told import Files, Story
from tests.support.fake_api import FakeApi, Refused
from tests.support.fleet_samples import NAMES, admission
from tests.support.page_reader import Parsed, problems
from tests.support.recorded_jobs import now_of, recorded, served

PAGE = Path(__file__).parents[4] / "docs/operations/why-a-job.md"
Change = Callable[[FakeApi], None]


def job_of(name: str) -> str:
    found = recorded(name)
    metadata = (found["jobsets"] or found["jobs"])[0]["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}"


def told_of(name: str, folder: Path, *others: str, change: Change = lambda api: None, subject: str = "") -> Story:
    """The story of a recording's job, two seconds after its last event."""
    with closing(served(name, *others)) as api:
        api.objects.setdefault("nodeadmissions", {})
        change(api)
        now = now_of(name) + timedelta(seconds=2)
        kube = KubeApi(api.kubeconfig(folder / "kubeconfig"))
        return story_of(kube, NAMES, subject or job_of(name), Files(), now - timedelta(days=7), now)


def first_of(told: Story) -> tuple[What, str]:
    assert told.cause.first is not None, text.render(told)
    return told.cause.first.what, told.cause.first.sentence


@pytest.mark.parametrize(
    ("name", "why", "words", "never"),
    [
        ("noqueue", "no_queue", "namespace vision has no queue fast; make the job anew", True),
        ("nine", "too_large", "asks for 72 GPUs at once, and its team can have 56 of h100-sxm5-80gb at most", True),
        ("rack5-topology", "too_large_for_place", "asks for 40 GPUs in one rack, and the largest rack has 32", True),
        ("rack4", "place", "its 4 pods have to fit in one rack, and no rack has room for more than 3 now", False),
        ("check-pending", "check", "(gpu-5), and check verified has not let it go: gpu-5: its proof at level", False),
        ("check-retry", "check_retry", "wants others: gpu-5 is suspect since", False),
        ("check-rejected", "check_rejected", "refused it for good: verified (its max-runtime-s is longer", True),
        ("held", "queue_closed", "its queue takes no jobs: ClusterQueue vision: ", False),
        (
            "image",
            "image",
            "its image cannot be had: registry.example/none:1 (ImagePullBackOff, 2 pods on gpu-1)",
            False,
        ),
        ("refused", "pod_refused", "refused by policy refuse-pods: a pod with GPUs in a team's namespace may", False),
        ("starting", "starting", "1 of its pods are being started on gpu-3", False),
    ],
)
def test_a_wait_is_its_own_first_cause(name: str, why: str, words: str, never: bool, tmp_path: Path) -> None:
    told = told_of(name, tmp_path)
    assert told.waits is not None and (told.waits.why, told.waits.never) == (why, never)
    assert words in first_of(told)[1] and len(told.cause.chain) == 1
    assert "To explain" not in text.render(told), "it is told once"
    assert told.stands.startswith(f"{job_of(name)}: {'will not start' if never else 'waits'}; ")


def test_a_job_that_had_to_leave_names_whose_it_left_for(tmp_path: Path) -> None:
    """And not that it waits for quota, which is the last word on it."""
    told = told_of("preempted-after", tmp_path, "owner")
    what, said = first_of(told)
    assert what is What.PREEMPTED
    assert said == "it had to leave for audio/owner, which takes back its team's own quota"
    assert told.waits is not None and told.waits.why == "quota"
    assert "8 of h100-sxm5-80gb have to become free first" in told.waits.sentence


def test_who_may_not_read_the_other_team_s_jobs_is_told_the_team(tmp_path: Path) -> None:
    def no_audio(api: FakeApi) -> None:
        def refuse(path: str) -> None:
            if "/namespaces/audio/" in path:
                raise Refused(403, "forbidden")

        api.before_read = refuse

    assert (
        "for a job of team audio, which takes" in first_of(told_of("preempted", tmp_path, "owner", change=no_audio))[1]
    )


def test_a_preemption_is_told_once(tmp_path: Path) -> None:
    told = told_of("preempted", tmp_path)
    assert [one.what for one in told.entries].count(What.PREEMPTED) == 1


@pytest.mark.parametrize("name", ["podsready-timeout", "given-up"])
def test_pods_that_were_not_ready_in_time_are_explained_by_their_image(name: str, tmp_path: Path) -> None:
    told = told_of(name, tmp_path)
    what, said = first_of(told)
    assert what is What.IMAGE and "cannot have its image: ImagePullBackOff" in said
    assert told.waits is not None and told.waits.why == ("back_off" if name == "podsready-timeout" else "deactivated")


def test_a_queue_that_was_stopped_is_why_it_left_its_nodes(tmp_path: Path) -> None:
    what, said = first_of(told_of("stopped", tmp_path))
    assert what is What.EVICTED and said.endswith("Kueue took it off its nodes: The ClusterQueue is stopped")


def test_why_a_queue_is_closed_is_said_in_its_own_words(tmp_path: Path) -> None:
    def stopped(api: FakeApi) -> None:
        queue = api.objects["clusterqueues"]["vision"]
        message = "Can't admit new workloads: is stopped."
        queue["status"]["conditions"] = [{"type": "Active", "status": "False", "reason": "Stopped", "message": message}]

    assert first_of(told_of("held", tmp_path, change=stopped))[1].endswith(
        "vision: Can't admit new workloads: is stopped."
    )


def suspect(node: str, at: str, state: str, code: str, message: str) -> dict[str, Any]:
    step = record.Transition(at, "ready", state, code, message, ADMITTER_USER)
    status = record.Status(record.State(state), at, code, message, transitions=(step,))
    return {**admission(node), "status": record.status_document(status)}


def test_a_check_that_waits_is_explained_by_the_node_that_is_out(tmp_path: Path) -> None:
    silent = suspect("gpu-5", "2026-11-27T18:03:00Z", "suspect", "AGENT_SILENT", "gpu-5: the agent has not spoken")
    told = told_of("check-retry", tmp_path, change=lambda api: api.put("nodeadmissions", silent))
    what, said = first_of(told)
    assert what is What.DOUBTED and "AGENT_SILENT: ready to suspect: gpu-5: the agent has not spoken" in said
    assert "`muster why gpu-5`" in text.render(told)


def test_a_node_that_was_out_and_is_back_explains_no_wait(tmp_path: Path) -> None:
    """Its ledger still has the change of yesterday."""
    step = record.Transition("2026-11-26T18:00:00Z", "ready", "suspect", "AGENT_SILENT", "gpu-5: silent", ADMITTER_USER)
    back = record.Transition("2026-11-26T19:00:00Z", "suspect", "ready", "PASS", "gpu-5: passed", ADMITTER_USER)
    status = record.Status(record.State.READY, back.at, "PASS", back.message, transitions=(step, back))
    ready = {**admission("gpu-5"), "status": record.status_document(status)}
    told = told_of("check-pending", tmp_path, change=lambda api: api.put("nodeadmissions", ready))
    assert first_of(told)[0] is What.WAITS


def edit_pods(api: FakeApi, **status: Any) -> None:
    for key, pod in [*api.objects["pods"].items()]:
        pod["status"] = {"phase": "Pending", **status}
        pod["spec"].pop("nodeName", None)
        api.objects["pods"][key] = pod


def test_pods_that_no_node_takes_name_the_node_that_kueue_chose(tmp_path: Path) -> None:
    """The words are those of a scheduler of 1.36.3, of nodes that were full."""
    message = (
        "0/8 nodes are available: 1 Insufficient nvidia.com/gpu, 1 node(s) had untolerated taint(s), 6 node(s) didn't "
        "match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/8 nodes are available: ..."
    )
    told_at = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

    def change(api: FakeApi) -> None:
        edit_pods(api, conditions=[{**told_at, "lastTransitionTime": "2026-11-27T18:15:20Z"}])

    told = told_of("image", tmp_path, change=change)
    assert told.waits is not None and told.waits.why == "unplaced"
    assert "2 of its pods have no node, which may only run on gpu-1" in told.waits.sentence
    assert "1 Insufficient nvidia.com/gpu" in told.waits.sentence and "claims" not in told.waits.sentence


def test_a_native_gang_is_explained_by_the_pod_that_has_no_place(tmp_path: Path) -> None:
    """The words are those of a scheduler of 1.36.3; the others have a place, and no node is at fault for them."""
    peers = (
        "pod group is unschedulable, waiting for minCount pods from a gang to be scheduled, one or more plugins asked"
    )
    taint = "0/3 nodes are available: 1 node(s) had untolerated taint(s). no new claims to deallocate, preemption: ..."
    told_at = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}

    def change(api: FakeApi) -> None:
        edit_pods(api)
        for number, pod in enumerate(
            sorted(api.objects["pods"].values(), key=lambda one: str(one["metadata"]["name"]))
        ):
            pod["status"]["conditions"] = [{**told_at, "message": taint if number else peers}]
            pod["spec"]["nodeSelector"] = {"kubernetes.io/hostname": f"gpu-{number}"}

    told = told_of("image", tmp_path, change=change)
    assert told.waits is not None and told.waits.why == "unplaced" and told.waits.nodes == ("gpu-1",)
    assert "has no node, which may only run on gpu-1: 0/3 nodes are available: 1 node(s) had" in told.waits.sentence
    assert told.waits.sentence.endswith("untolerated taint(s); 1 more of its gang waits for that")


def test_pods_that_wait_for_ungating_say_whose_gate_it_is(tmp_path: Path) -> None:
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "lastTransitionTime": None}

    def change(api: FakeApi) -> None:
        edit_pods(api, conditions=[gated])
        for pod in api.objects["pods"].values():
            pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/topology"}]

    told = told_of("image", tmp_path, change=change)
    assert told.waits is not None and told.waits.why == "gated"
    assert "Kueue has not taken their gate away (kueue.x-k8s.io/topology)" in told.waits.sentence


@pytest.mark.parametrize(
    ("name", "what", "words"),
    [
        ("crash", What.EXITED, "crash-1-rddsf ended with exit code 1 (Error)"),
        ("oom", What.OUT_OF_MEMORY, "ended with exit code 137 (OOMKilled)"),
        ("deadline", What.DEADLINE, "Job was active longer than specified deadline"),
        ("jobset-failed", What.EXITED, "train-ranks-0-0-pj8lt ended with exit code 1 (Error)"),
        ("node-taint", What.DRAINED, "Marking for deletion Pod vision/lost-0-dpgrj"),
        ("node-taint-after", What.DRAINED, "Marking for deletion Pod vision/lost-0-dpgrj"),
    ],
)
def test_an_end_is_explained_by_the_pod_that_ended_first(name: str, what: What, words: str, tmp_path: Path) -> None:
    """The job's own words are the same for all: that it has reached its limit of failures."""
    told = told_of(name, tmp_path)
    found = first_of(told)
    assert found[0] is what and words in found[1]
    assert told.waits is None


def on(node: str, at: str) -> dict[str, Any]:
    xid = f"{node}: XID 79 on GPU 3: GPU has fallen off the bus"
    return suspect(node, at, "quarantined", "XID_FATAL", xid)


@pytest.mark.parametrize("name", ["node-taint", "node-taint-after"])
def test_a_node_in_quarantine_is_named_with_its_xid_and_gpu(name: str, tmp_path: Path) -> None:
    node = recorded("node-taint")["pods"][0]["spec"]["nodeName"]
    told = told_of(name, tmp_path, change=lambda api: api.put("nodeadmissions", on(node, "2026-11-27T18:14:52Z")))
    what, said = first_of(told)
    assert what is What.QUARANTINED and "XID 79 on GPU 3" in said and told.node == node


def test_a_rank_that_ended_for_another_s_node_is_explained_by_that_node(tmp_path: Path) -> None:
    """Rank 1 ends first, with an exit code of its own: NCCL has lost rank 0, whose node is in quarantine just after."""
    nodes = {pod["metadata"]["name"][:7]: pod["spec"]["nodeName"] for pod in recorded("crash")["pods"]}
    assert nodes["crash-0"] != nodes["crash-1"]
    lost = on(nodes["crash-0"], "2026-11-27T18:13:34Z")
    told = told_of("crash", tmp_path, change=lambda api: api.put("nodeadmissions", lost))
    what, said = first_of(told)
    assert what is What.QUARANTINED and f"{nodes['crash-0']}: XID 79" in said
    far = on(nodes["crash-0"], "2026-11-27T17:13:34Z")
    assert first_of(told_of("crash", tmp_path, change=lambda api: api.put("nodeadmissions", far)))[0] is What.EXITED
    other = on("gpu-7", "2026-11-27T18:13:34Z")
    assert first_of(told_of("crash", tmp_path, change=lambda api: api.put("nodeadmissions", other)))[0] is What.EXITED


def test_a_job_that_asked_to_be_started_again_is_told_so(tmp_path: Path) -> None:
    def change(api: FakeApi) -> None:
        for pod in api.objects["pods"].values():
            for one in pod["status"].get("containerStatuses") or []:
                if ended := one["state"].get("terminated"):
                    ended["exitCode"] = 42

    what, said = first_of(told_of("crash", tmp_path, change=change))
    assert what is What.EXITED and "exit code 42 (Error): it saved its work and asks to be started again" in said


def test_restarts_are_counted_and_a_pod_that_is_gone_is_told_from_its_job(tmp_path: Path) -> None:
    """JobSet's rules read the exit code in the words of the Job's podFailurePolicy."""
    policy = {
        "metadata": {"name": "e", "namespace": "vision", "creationTimestamp": "2026-11-27T18:14:12Z"},
        "involvedObject": {"kind": "Job", "name": "train-ranks-0", "namespace": "vision"},
        "reason": "PodFailurePolicy", "type": "Warning", "lastTimestamp": "2026-11-27T18:14:13Z",
        "message": "Container main for pod vision/train-ranks-0-1-85jxh failed with exit code 42 matching FailJob rule "
        "at index 0",
    }  # fmt: skip
    told = told_of("jobset-restart1", tmp_path, change=lambda api: api.put("events", policy))
    assert "runs; started again 1 time (1 of at most 1 count)" in told.stands
    what, said = first_of(told)
    assert what is What.EXITED and "train-ranks-0-1-85jxh failed with exit code 42" in said


def test_a_job_that_runs_or_ended_well_has_nothing_to_explain(tmp_path: Path) -> None:
    def well(api: FakeApi) -> None:
        (jobset,) = api.objects["jobsets"].values()
        done = {"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": "jobset completed"}
        jobset["status"]["conditions"] = [{**done, "lastTransitionTime": "2026-11-27T18:14:30Z"}]

    told = told_of("jobset-failed", tmp_path, change=well)
    assert told.cause.effect is None and "ended well (AllJobsCompleted: jobset completed)" in told.stands
    assert "does not wait, and no end of a pod needs explaining" in " ".join(text.render(told).split())


def test_the_last_lines_of_the_rank_that_failed_are_shown_without_what_steers_a_terminal(tmp_path: Path) -> None:
    asked: list[str] = []

    def change(api: FakeApi) -> None:
        answer = api.answer

        def with_log(method: str, path: str, query: dict[str, list[str]], body: Any) -> Any:
            if path.endswith("/log"):
                asked.append(f"{path} {query}")
                return [f"step {number}" for number in range(30)] + ["\x1b[31mloss is NaN"]
            return answer(method, path, query, body)

        api.answer = with_log  # type: ignore[method-assign]

    told = told_of("crash", tmp_path, change=change)
    assert "crash-1-rddsf/log" in asked[0] and "'tailLines': ['20']" in asked[0] and "limitBytes" in asked[0]
    assert told.log is not None and told.log.pod == "vision/crash-1-rddsf" and told.log.container == "main"
    assert "\x1b" not in text.render(told) and "NaN" in text.render(told)
    shown = page.render(told)
    assert problems(shown) == [] and "Last lines of vision/crash-1-rddsf" in Parsed(shown).text


def test_a_log_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    def change(api: FakeApi) -> None:
        def refuse(path: str) -> None:
            if path.endswith("/log"):
                raise Refused(500, "dial tcp 198.18.0.9:10250: no route to host")

        api.before_read = refuse

    told = told_of("crash", tmp_path, change=change)
    assert told.log is None and any("the log of vision/crash-1-rddsf" in one for one in told.missing)


def named(node: str, at: str, outcome: FabricOutcome = FabricOutcome.NAMED) -> dict[str, Any]:
    proof = FabricProof("b", at, outcome, "r", ("gpu-9",), failures=3, claim=f"cable of {node} on rail 2: wrong data")
    return {**admission(node), "status": record.status_document(record.Status(record.State.READY, fabric=proof))}


def test_the_fabric_s_part_is_told_with_its_time_and_nothing_where_nothing_is_known(tmp_path: Path) -> None:
    assert told_of("crash", tmp_path).fabric == ()
    nodes = sorted({pod["spec"]["nodeName"] for pod in recorded("crash")["pods"]})
    ended = told_of("crash", tmp_path).cause.chain[-1].at

    def at(minutes: float) -> str:
        return (ended + timedelta(minutes=minutes)).isoformat().replace("+00:00", "Z")

    def change(api: FakeApi) -> None:
        api.put("nodeadmissions", named(nodes[0], at(40)))
        api.put("nodeadmissions", named(nodes[1], at(-120), FabricOutcome.SUSPECT))
        # A pass, and a node of another job, are no part of it.
        for other, outcome in ((nodes[2] if len(nodes) > 2 else "gpu-98", FabricOutcome.PASSED), ("gpu-99", "named")):
            api.put("nodeadmissions", named(other, at(1), FabricOutcome(outcome)))

    told = told_of("crash", tmp_path, change=change)
    first, second = told.fabric
    assert first.startswith(f"{nodes[0]} was named by tests with other nodes at ")
    assert first.endswith(f", 40 min after its end: cable of {nodes[0]} on rail 2: wrong data")
    assert f"{nodes[1]} was made a suspect by" in second and ", 2 h before its end: " in second
    assert "Tests between nodes:" in text.render(told, 100) and "Tests between nodes" in page.render(told)
    assert told.to_json()["fabric"] == [first, second]
    # It is no cause: the exit code stays that.
    assert first_of(told)[0] is What.EXITED


def test_claims_of_the_newest_run_are_told_of_the_job_s_nodes_alone(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    site = Fabric(tuple(Node(f"gpu-{number}", "leaf-1", nics=(Nic(0, f"10.1.0.{number}"),)) for number in range(1, 9)))
    made = results.begin(site, Settings())
    while not isinstance(following := next_round(results.state_of(made)), End):
        found = [
            Result(
                test.id,
                tuple(
                    SignedView(View(test.id, name, "1", Outcome.WRONG if "gpu-3" in test.members else Outcome.OK, 1e9))
                    for name in test.members
                ),
            )
            for test in following.tests
        ]
        made = results.with_round(made, following, found)
    results.write(path, made)
    end = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    [told] = of_run(path, {"gpu-3", "gpu-4"}, end - timedelta(hours=1), end)
    assert "1 h after its end: node gpu-3: " in told and told.endswith(" (of the job: gpu-3)")
    assert of_run(path, {"gpu-4"}, None, end) == []
    assert of_run(tmp_path / "none.json", {"gpu-3"}, None, end) == []
    assert "2 min ago: " in of_run(path, {"gpu-3"}, None, end + timedelta(minutes=2))[0]
    path.write_text("{")
    with pytest.raises(GpuBurninError, match=r"run\.json is no file of"):
        of_run(path, {"gpu-3"}, None, end)


def test_few_rights_leave_out_nodes_and_say_so(tmp_path: Path) -> None:
    def member(api: FakeApi) -> None:
        def refuse(path: str) -> None:
            if "/namespaces/vision/" not in path and "/clusterqueues" not in path:
                raise Refused(403, "forbidden")

        api.before_read = refuse

    told = told_of("node-taint", tmp_path, change=member)
    assert first_of(told)[0] is What.DRAINED
    assert any("your rights show no nodes" in one and "`muster why gpu-" in one for one in told.missing)
    with pytest.raises(
        GpuBurninError, match="does not let you look for jobsets in all namespaces; give NAMESPACE/lost"
    ):
        told_of("node-taint", tmp_path, change=member, subject="lost")


def test_a_name_that_is_a_node_and_a_job_is_asked_for_again(tmp_path: Path) -> None:
    def change(api: FakeApi) -> None:
        api.put("nodes", {"metadata": {"name": "crash"}})

    with pytest.raises(GpuBurninError, match=r"crash is a node and a job \(vision/crash\); give node/crash, or"):
        told_of("crash", tmp_path, change=change, subject="crash")
    assert told_of("crash", tmp_path, change=change, subject="node/crash").kind == "node"
    assert told_of("crash", tmp_path, change=change, subject="vision/crash").kind == "job"


@pytest.mark.parametrize("arguments", [["crash"], ["vision/crash"], ["crash", "--team", "vision"]])
def test_the_command_takes_a_job_and_prints_it_for_programs(arguments: list[str], tmp_path: Path) -> None:
    with closing(served("crash")) as api:
        api.objects["nodeadmissions"] = {}
        options = ["--since", "36500d", "--json", "--kubeconfig", str(api.kubeconfig(tmp_path / "kubeconfig"))]
        done = CliRunner().invoke(muster.cli, ["why", *arguments, *options])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["subject"] == "vision/crash" and told["kind"] == "job" and told["waits"] is None
    assert told["first_cause"]["what"] == "exited" and told["log"]["container"] == "main"


def test_a_wait_is_there_for_programs(tmp_path: Path) -> None:
    told = told_of("nine", tmp_path).to_json()
    assert told["waits"]["why"] == "too_large" and told["waits"]["never"] and told["waits"]["nodes"] == []
    assert datetime.fromisoformat(told["first_cause"]["at"]).astimezone(UTC).year == 2026


def test_what_each_pod_of_a_gang_goes_through_is_folded(tmp_path: Path) -> None:
    told = told_of("preempted-after", tmp_path)
    shown = text.render(told)
    assert "SuccessfulCreate (6)" in shown and shown.count("was deleted by the controller") == 0
    assert text.render(told, all_of_them=True).count("was deleted by the controller") == 6


def test_the_page_of_the_docs_shows_what_is_said(tmp_path: Path) -> None:
    blocks = PAGE.read_text().split("```")[1::2]
    shown = next(block[4:].strip("\n") for block in blocks if block.startswith("text\nvision/borrower: "))
    told = text.render(told_of("preempted-after", tmp_path, "owner"), 80)
    assert told.startswith(f"{shown}\n\nWhat happened")


def test_the_page_of_the_docs_explains_each_word_of_a_wait() -> None:
    table = PAGE.read_text().split("## Why it waits")[1].split("## ")[0]
    assert {word for word in Why if f"`{word}`" not in table} == set()
