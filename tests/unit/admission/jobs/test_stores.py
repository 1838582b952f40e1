"""What is kept of Workloads and AdmissionChecks, which jobs wait for which node, and the brake on sending jobs back."""

from __future__ import annotations

from typing import Any

from gpu_burnin.admission.jobs.brake import LEAST, SPAN_S, RetryBrake
from gpu_burnin.admission.jobs.owner import owner_path, seconds_of
from gpu_burnin.admission.jobs.stores import Checks, Workloads
from gpu_burnin.admission.jobs.workload import Owner
from gpu_burnin.api.names import Names
from tests.support.clocks import HandClock
from tests.support.fake_api import apply_patch
from tests.support.job_helpers import admission_check, condition, workload


def of_version(item: dict[str, Any], version: int) -> dict[str, Any]:
    return {**item, "metadata": {**item["metadata"], "resourceVersion": str(version)}}


def test_which_jobs_wait_for_a_node() -> None:
    store = Workloads()
    assert store.put(of_version(workload("gpu-1", "gpu-2"), 5)) == "vision/job-a"
    assert store.put(of_version(workload("gpu-2", name="job-b"), 6)) == "vision/job-b"
    assert sorted(store.waiting_for("gpu-2")) == ["vision/job-a", "vision/job-b"]
    assert store.waiting_for("gpu-1") == ["vision/job-a"]
    assert store.put(of_version(workload("gpu-3"), 7)) == "vision/job-a"
    assert (store.waiting_for("gpu-1"), store.waiting_for("gpu-3")) == ([], ["vision/job-a"])
    started = of_version(workload("gpu-3", conditions=[condition("Admitted")]), 8)
    assert store.put(started) == "vision/job-a"
    assert store.waiting_for("gpu-3") == [] and [one.key for one in store.not_started()] == ["vision/job-b"]
    assert store.drop("vision/job-b") == "vision/job-b"
    assert store.waiting_for("gpu-2") == [] and store.known() == {"vision/job-a"}


def test_only_what_matters_is_news_and_nothing_older() -> None:
    store = Workloads()
    item = workload("gpu-1")
    store.put(of_version(item, 5))
    assert store.put(of_version(item, 5)) == store.put(of_version(workload("gpu-9"), 4)) == ""
    assert store.put(of_version(item, 6)) == ""
    kept = store.get("vision/job-a")
    assert kept is not None and kept.version == "6"
    # An etcd that was restored counts from an older version.
    assert store.put(of_version(workload("gpu-9"), 4), listed=True) == "vision/job-a"


def test_a_late_answer_does_not_bring_back_what_has_gone() -> None:
    store = Workloads()
    store.put(of_version(workload("gpu-1"), 5))
    evicted = workload("gpu-1", conditions=[condition("Evicted")])
    assert store.put(of_version(evicted, 7)) == "vision/job-a"
    store.wrote(of_version(workload("gpu-1"), 6))
    assert store.get("vision/job-a") is None
    store.drop("vision/job-a")
    store.wrote(of_version(workload("gpu-1"), 6))
    assert store.get("vision/job-a") is None


def test_a_workload_that_cannot_be_read_is_left_alone() -> None:
    store = Workloads()
    broken = workload("gpu-1", topologyAssignment={"levels": ["kubernetes.io/hostname"], "slices": [{}]})
    assert store.put(of_version(broken, 5)) == ""
    assert store.get("vision/job-a") is None


def test_a_check_is_kept_active_and_what_others_say_of_it_stays() -> None:
    changes: list[int] = []
    checks = Checks(Names().verified_check, lambda: changes.append(1))
    assert checks.put(of_version(admission_check("other", "someone/else"), 1)) == ""
    assert checks.put(of_version(admission_check(), 2)) == "verified"
    assert (checks.names, len(changes)) == (frozenset({"verified"}), 1)
    found = checks.get("verified")
    assert found is not None
    patch = found.active_patch("Judged", "words", "2026-11-21T12:00:00Z")
    assert patch is not None
    made = apply_patch(of_version(admission_check(), 2), patch)
    active = {"type": "Active", "status": "True", "reason": "Judged", "message": "words", "observedGeneration": 1}
    assert made["status"] == {"conditions": [{**active, "lastTransitionTime": "2026-11-21T12:00:00Z"}]}
    checks.put(of_version(made, 3))
    again = checks.get("verified")
    assert again is not None and again.active_patch("Judged", "words", "2026-11-21T13:00:00Z") is None
    other = {"type": "Else", "status": "True"}
    for before, since in (("False", "2026-11-21T13:00:00Z"), ("True", "2026-11-21T12:00:00Z")):
        old = {**made["status"]["conditions"][0], "status": before, "message": "old"}
        item = of_version({**made, "status": {"conditions": [old, other]}}, 4)
        checks.put(item, listed=True)
        kept = checks.get("verified")
        patch = kept.active_patch("Judged", "words", "2026-11-21T13:00:00Z") if kept is not None else None
        assert patch is not None
        assert apply_patch(item, patch)["status"]["conditions"] == [other, {**active, "lastTransitionTime": since}]
    # The answer to a write of ours may come after the watch has brought what followed it.
    assert checks.put(of_version(admission_check(), 3)) == ""
    kept = checks.get("verified")
    assert kept is not None and kept.version == "4"
    checks.drop("verified")
    assert (checks.names, len(changes)) == (frozenset(), 2)


def test_the_brake_lets_some_go_and_half_of_many() -> None:
    clock = HandClock()
    brake = RetryBrake(clock.monotonic)
    for _ in range(LEAST):
        assert not brake.why("vision")
        brake.wrote("vision", retry=True)
    told = "5 of the last 5 jobs that were judged were sent back to their queues, 5 of them of vision"
    assert brake.why("vision") == told
    for _ in range(6):
        brake.wrote("vision", retry=False)
    assert not brake.why("vision")
    brake.wrote("vision", retry=True)
    assert brake.why("vision")
    clock.now_s += SPAN_S
    assert not brake.why("vision")


def test_a_team_that_uses_up_the_brake_leaves_the_others_their_share() -> None:
    clock = HandClock()
    brake = RetryBrake(clock.monotonic)

    def sent_back(team: str, most: int) -> int:
        for number in range(most):
            if brake.why(team):
                return number
            brake.wrote(team, retry=True)
        return most

    assert sent_back("vision", 100) == LEAST
    # Two teams have half of them each, the third comes when two have taken theirs.
    assert sent_back("audio", 100) == 2
    assert sent_back("text", 100) == 1
    # And nobody has more by coming again.
    assert sent_back("vision", 1) == sent_back("audio", 1) == sent_back("text", 1) == 0


def test_all_teams_together_are_not_sent_back_at_once() -> None:
    """A wrong belief about all nodes: each of many teams has one job back in its queue, and the others wait."""
    brake = RetryBrake(HandClock().monotonic)
    teams = [f"team-{number % 20}" for number in range(200)]
    sent = [team for team in teams if not brake.why(team) and (brake.wrote(team, retry=True) or True)]
    assert len(sent) == len(set(sent)) == 20


def test_where_the_owner_is_and_what_is_a_number_of_seconds() -> None:
    assert owner_path("vision", Owner("batch/v1", "Job", "a")) == "/apis/batch/v1/namespaces/vision/jobs/a"
    jobset = owner_path("vision", Owner("jobset.x-k8s.io/v1alpha2", "JobSet", "a"))
    assert jobset == "/apis/jobset.x-k8s.io/v1alpha2/namespaces/vision/jobsets/a"
    assert owner_path("vision", Owner("v1", "Pod", "a")) is None
    assert [seconds_of(text) for text in ("7200", " 60 ", "0")] == [7200.0, 60.0, 0.0]
    assert [seconds_of(text) for text in ("2h", "-1", "1.5", "", "9" * 12)] == [None] * 5
