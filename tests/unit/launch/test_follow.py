"""A job that is followed, and logs as they are now."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.client import ApiError
from gpu_burnin.api.names import Names
from gpu_burnin.api.remedies import KUEUE as KUEUE_WORDS
from gpu_burnin.launch import LaunchError, Outcome, follow
from gpu_burnin.launch.follow import follow_job
from gpu_burnin.launch.logs import Pod, lines_of, pod_of
from gpu_burnin.launch.objects import job_set
from gpu_burnin.launch.progress import stand_of
from gpu_burnin.launch.shown import nodes_of, show_logs
from gpu_burnin.system.clock import rfc3339
from tests.unit.launch.cluster import KUEUE, Cluster
from tests.unit.launch.examples import REQUEST

JOB = REQUEST.name
SETS = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/vision/jobsets/{JOB}"
PODS = "/api/v1/namespaces/vision/pods"
WORKLOAD = f"{KUEUE}/namespaces/vision/workloads/w"


def condition(kind: str, message: str = "", status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message}


def job(*conditions: dict[str, str], **status: Any) -> dict[str, Any]:
    made = job_set(REQUEST, Names())
    made["metadata"]["uid"] = "u1"
    return {**made, "status": {"conditions": list(conditions), **status}}


def workload(*conditions: dict[str, str], checks: list[dict[str, str]] | None = None) -> dict[str, Any]:
    metadata = {"name": "w", "labels": {"kueue.x-k8s.io/job-uid": "u1"}}
    return {"metadata": metadata, "status": {"conditions": list(conditions), "admissionChecks": checks or []}}


def pod(index: int, attempt: int = 0, *, phase: str = "Running", state: dict[str, Any] | None = None) -> dict[str, Any]:
    labels = {
        "jobset.sigs.k8s.io/jobset-name": JOB,
        "jobset.sigs.k8s.io/restart-attempt": str(attempt),
        "batch.kubernetes.io/job-completion-index": str(index),
    }
    container = {"name": "node", "state": {"running": {}} if state is None else state}
    return {
        "metadata": {"name": f"{JOB}-node-0-{index}-{attempt}", "labels": labels, "creationTimestamp": f"{attempt}"},
        "spec": {"nodeName": f"gpu{index}"},
        "status": {"phase": phase, "containerStatuses": [container]},
    }


def with_pods(*pods: dict[str, Any], job_set: dict[str, Any] | None = None) -> Cluster:
    made = Cluster({SETS: job_set or job()})
    for one in pods:
        made.objects[f"{PODS}/{one['metadata']['name']}"] = one
    return made


def crashed(index: int, code: int = 7, message: str = "Traceback\nKeyError: 3") -> dict[str, Any]:
    return pod(index, phase="Failed", state={"terminated": {"exitCode": code, "message": message}})


NO_CPU = (
    "couldn't assign flavors to pod set node: topology \"fleet\" doesn't allow to fit any of 2 pod(s). Total nodes: 4; "
    'excluded: resource "cpu": 2, resource "nvidia.com/gpu": 1, taint "muster.dev/quarantine:NoSchedule": 1'
)
NO_QUOTA = "couldn't assign flavors: insufficient unused quota for nvidia.com/gpu in flavor h100, 8 more needed"


@pytest.mark.parametrize(
    ("job_set", "of", "told"),
    [
        (job(), None, "it waits for its queue to see it"),
        (job(), workload(), f"it waits: Kueue has not looked at it yet: is Kueue up? ({KUEUE_WORDS})"),
        (job(), workload(condition("QuotaReserved", "no quota", "False")), "it waits: Kueue says: no quota"),
        (
            job(),
            workload(condition("QuotaReserved", NO_QUOTA, "False")),
            "it waits: it asks for 0 GPUs, and 8 of h100 have to become free first",
        ),
        (
            job(),
            workload(condition("QuotaReserved", NO_CPU, "False")),
            "it waits: the quota is there, and nodes for only 0 of 2 pods are free; passed over: 2 with too little cpu "
            "free, 1 full, 1 with taint muster.dev/quarantine:NoSchedule",
        ),
        (
            job(),
            workload(condition("Evicted", "preempted for audio"), condition("QuotaReserved", "no quota", "False")),
            "it was sent back to its queue: preempted for audio; it waits: Kueue says: no quota",
        ),
        (
            job(),
            workload(condition("QuotaReserved"), checks=[{"name": "verified", "state": "Pending", "message": "gpu3"}]),
            "it waits: it has its quota, and check verified has not let it go: gpu3",
        ),
        (job(), workload(condition("QuotaReserved"), condition("Admitted")), "it has its nodes"),
        (
            job(restarts=3, restartsCountTowardsMax=1),
            workload(condition("Admitted")),
            "it has its nodes (started again 3 times, of which 1 count; 3 may)",
        ),
        (job(condition("Completed")), None, "the job succeeded"),
        (job(condition("Failed", "too many")), None, "the job failed: too many"),
    ],
)
def test_how_a_job_stands(job_set: dict[str, Any], of: dict[str, Any] | None, told: str) -> None:
    assert stand_of(job_set, of).told == told


def test_a_job_that_was_just_made_is_no_cause_for_alarm() -> None:
    young = workload()
    young["metadata"]["creationTimestamp"] = rfc3339(datetime.now(UTC))
    assert stand_of(job(), young).told == "it waits: Kueue has not looked at it yet"


def followed(made: Cluster, end: Callable[[], dict[str, Any]], **options: Any) -> tuple[Outcome, list[str], list[str]]:
    """What became of a job that stands otherwise after each look."""
    lines: list[str] = []
    told: list[str] = []

    def take(sentence: str) -> None:
        told.append(sentence)
        made.objects[SETS] = end()

    outcome = follow_job(
        made.api, "vision", JOB, show=lambda pod, moment, line: lines.append(line), tell=take, look_s=0, **options
    )
    return outcome, lines, told


def test_a_job_is_followed_to_its_good_end() -> None:
    made = with_pods(pod(0), pod(1))
    made.logs[f"{PODS}/{JOB}-node-0-0-0/log"] = [[b"2026-11-27T18:00:00.1Z [0] one", b"2026-11-27T18:00:00.1Z [0] two"]]
    made.objects[f"{PODS}/{JOB}-node-0-0-0"] = pod(0, phase="Succeeded")
    outcome, lines, told = followed(made, lambda: job(condition("Completed")))
    assert outcome is Outcome.SUCCEEDED and lines == ["[0] one", "[0] two"]
    assert told == ["it waits for its queue to see it", "the job succeeded"]


def test_a_failed_job_says_which_pod_failed_first_and_why() -> None:
    made = with_pods(crashed(1))
    outcome, _, told = followed(made, lambda: job(condition("Failed", "too many restarts")))
    assert outcome is Outcome.FAILED
    assert told[1:] == [
        f"the pod {JOB}-node-0-1-0 on gpu1 ended with exit code 7: KeyError: 3",
        "the job failed: too many restarts",
    ]


def test_a_pod_that_cannot_start_is_told_once() -> None:
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}
    made = with_pods(pod(0, phase="Pending", state=waiting))
    looks = iter([job(restarts=1), job(restarts=2), *[job(condition("Completed"))] * 2])
    _, _, told = followed(made, lambda: next(looks))
    assert told.count(f"the pod {JOB}-node-0-0-0 waits: no such image") == 1


def test_a_job_that_is_not_there_is_said() -> None:
    with pytest.raises(LaunchError, match=f"vision has no job {JOB}, or it was deleted"):
        follow_job(Cluster().api, "vision", JOB, look_s=0)


def test_rights_that_are_missing_are_said_at_once_and_silence_after_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Cluster(breaks={SETS: ApiError("forbidden", 403)})
    with pytest.raises(ApiError, match="forbidden"):
        follow_job(made.api, "vision", JOB, look_s=0)
    made.breaks[SETS] = ApiError("no route to host")
    monkeypatch.setattr(follow, "_SILENCE_S", 0.01)
    told: list[str] = []
    assert follow_job(made.api, "vision", JOB, look_s=0, tell=told.append) is Outcome.UNCLEAR
    assert told == [f"it is not known what becomes of {JOB}: no route to host"]


def test_a_log_goes_on_where_the_connection_broke() -> None:
    made = with_pods(pod(0))
    name = f"{JOB}-node-0-0-0"
    first = [b"2026-11-27T18:00:00.1Z a", b"2026-11-27T18:00:01.2Z b", ApiError("reset")]
    again = [b"2026-11-27T18:00:01.2Z b", b"2026-11-27T18:00:01.3Z c", b"2026-11-27T18:00:01.3Z c"]
    made.logs[f"{PODS}/{name}/log"] = [first, again]
    ended = pod(0, phase="Succeeded", state={"terminated": {"exitCode": 0}})

    def wait(seconds: float) -> None:
        made.objects[f"{PODS}/{name}"] = ended

    lines = [text for _, text in lines_of(made.api, "vision", name, follow=True, wait=wait)]
    assert lines == ["a", "b", "c", "c"]
    assert "sinceTime=2026-11-27T18%3A00%3A01Z" in made.asked[1]


def test_a_log_that_never_comes_is_given_up() -> None:
    made = with_pods(pod(0))
    name = f"{JOB}-node-0-0-0"
    made.logs[f"{PODS}/{name}/log"] = [[ApiError("reset")] for _ in range(40)]
    with pytest.raises(ApiError, match="reset"):
        list(lines_of(made.api, "vision", name, follow=True, wait=lambda seconds: None))
    made.logs[f"{PODS}/{name}/log"] = [[ApiError("the node is gone", 500)]]
    with pytest.raises(ApiError, match="the node is gone"):
        list(lines_of(made.api, "vision", name, follow=True, wait=lambda seconds: None))


def shown(made: Cluster, indexes: list[int], tail: int | None = None) -> tuple[bool, list[str], list[str]]:
    lines: list[str] = []
    told: list[str] = []

    def show(pod: Pod, moment: str, line: str) -> None:
        lines.append(line)

    found = show_logs(made.api, "vision", JOB, indexes, show, told.append, tail=tail)
    return found, lines, told


def test_logs_are_those_of_the_newest_start_also_of_pods_that_crashed() -> None:
    made = with_pods(crashed(0), pod(1), pod(1, 1))
    made.logs[f"{PODS}/{JOB}-node-0-0-0/log"] = [[b"2026-11-27T18:00:00.1Z [0] crash"]]
    made.logs[f"{PODS}/{JOB}-node-0-1-1/log"] = [[b"2026-11-27T18:00:00.1Z [8] runs"]]
    assert shown(made, [0, 1], tail=5) == (
        True,
        ["[0] crash", "[8] runs"],
        [f"{JOB}-node-0-0-0 on gpu0 ended with exit code 7: KeyError: 3"],
    )
    assert all("tailLines=5" in asked for asked in made.asked)


def test_a_job_without_pods_says_what_it_waits_for() -> None:
    made = with_pods()
    made.objects[WORKLOAD] = workload(condition("QuotaReserved", "no quota", "False"))
    assert shown(made, [0, 1]) == (False, [], [f"{JOB} has no pods now: it waits: Kueue says: no quota"])
    made = with_pods(pod(0, phase="Pending", state={}))
    assert shown(made, [0]) == (False, [], [f"{JOB}-node-0-0-0 has not started: Pending"])


def test_a_rank_is_looked_for_on_its_node() -> None:
    made = with_pods()
    assert nodes_of(made.api, "vision", JOB, None, follow=True) == [0, 1]
    assert nodes_of(made.api, "vision", JOB, 3, follow=False) == [1]
    with pytest.raises(LaunchError, match="has 4 processes, 0 to 3, and no 4"):
        nodes_of(made.api, "vision", JOB, 4, follow=False)
    with pytest.raises(LaunchError, match="vision has no job other"):
        nodes_of(made.api, "vision", "other", None, follow=False)


def test_a_large_job_is_followed_by_a_rank() -> None:
    large = job()
    large["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"] = 33
    with pytest.raises(LaunchError, match="has 33 nodes, and 32 can be followed at once; give --rank"):
        nodes_of(with_pods(job_set=large).api, "vision", JOB, None, follow=True)


def test_a_job_of_others_is_left_to_kubectl() -> None:
    other = job()
    other["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"] = []
    with pytest.raises(LaunchError, match="was not made by muster run; use kubectl logs"):
        nodes_of(with_pods(job_set=other).api, "vision", JOB, None, follow=False)


def test_a_pod_says_what_it_waits_for() -> None:
    waiting = pod_of(pod(0, phase="Pending", state={"waiting": {"reason": "ContainerCreating"}}))
    assert (waiting.started, waiting.ended, waiting.reason) == (False, False, "ContainerCreating")
    ended = pod_of(crashed(1))
    assert (ended.started, ended.ended, ended.exit_code, ended.last_words) == (True, True, 7, "KeyError: 3")
