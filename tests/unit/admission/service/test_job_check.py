"""The check as part of the admitter, against a fake API server: it holds, lets go, sends back, and fails closed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.admission.calendar import Window
from gpu_burnin.admission.jobs import check as checks
from gpu_burnin.admission.jobs import decide, service
from gpu_burnin.admission.jobs_config import JobsConfig, QueueConfig
from gpu_burnin.admission.schedule.rules import TestRules
from gpu_burnin.admission.service.queue import WorkQueue
from gpu_burnin.api.fabric_note import FabricAnswer, Part, fabric_text, read_fabric_request
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.system.clock import rfc3339_s
from gpu_burnin.types import Verdict
from tests.support.admission_helpers import BOOT
from tests.support.admitter_helpers import ASK, NAMES, Fleet, Working, settled, until, working
from tests.support.fake_api import FakeApi, Refused, refusing
from tests.support.job_helpers import admission_check, condition, workload

QUICK = JobsConfig({"vision": QueueConfig("quick")})
NO_TESTS = TestRules(nodes=0)


def now(seconds: float = 0.0) -> str:
    return rfc3339_s(datetime.now(UTC) + timedelta(seconds=seconds))


class Jobs:
    """What Kueue and people do to Workloads of namespace vision."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        api.objects |= {"workloads": {}, "admissionchecks": {}, "jobs": {}}
        api.put("admissionchecks", admission_check())

    def reserve(self, *nodes: str, name: str = "job-a", **changes: Any) -> None:
        """Quota is reserved and nodes are chosen."""
        self.api.put("workloads", workload(*nodes, name=name, **{"reserved_at": now(), **changes}))

    def check(self, name: str = "job-a") -> dict[str, Any]:
        found: dict[str, Any] = self.api.objects["workloads"][f"vision/{name}"]["status"]["admissionChecks"][1]
        return found

    def until(self, state: str, name: str = "job-a", words: str = "") -> dict[str, Any]:
        until(
            f"{state} of {name}",
            lambda: self.check(name)["state"] == state and words in self.check(name)["message"],
        )
        return self.check(name)

    def writes(self, name: str = "job-a") -> int:
        return len([path for path in self.api.writes() if path.endswith(f"workloads/{name}/status")])

    def events(self) -> str:
        return str(self.api.objects.get("events"))


@pytest.fixture
def jobs(api: FakeApi) -> Jobs:
    return Jobs(api)


def looked(admitter: Working) -> Callable[[], bool]:
    """Whether nothing waits to be judged."""

    def idle() -> bool:
        term = admitter.service.term
        return term is not None and not len(term.jobs.queue) and not len(term.queue)

    return idle


def has_started(admitter: Working, key: str = "vision/job-a") -> bool:
    """Whether the admitter knows that a job runs."""
    term = admitter.service.term
    job = term.jobs.workloads.get(key) if term is not None else None
    return job is not None and job.admitted


def reasons(admitter: Working, key: str = "vision/job-a") -> list[str]:
    """The reasons in the lines on a job."""
    return [line["reason"] for line in admitter.lines("message") if line.get("workload") == key]


def known_nodes(admitter: Working) -> tuple[str, ...]:
    """The nodes of job-a, as they were last looked at."""
    term = admitter.service.term
    return term.jobs.checker.nodes_of("vision/job-a") if term is not None else ()


def test_a_job_waits_for_a_node_and_starts_when_it_is_let_in(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path
) -> None:
    fleet.prove("gpu-1", "gpu-2")
    with working(api, tmp_path, jobs=QUICK, tests=NO_TESTS) as admitter:
        until("the admissions", lambda: fleet.ready("gpu-1") and fleet.ready("gpu-2"))
        fleet.publish("gpu-2", sequence=6, verdict=Verdict.INCONCLUSIVE, code="XID_SOURCE_MISSING")
        until("the doubt", lambda: fleet.status("gpu-2")["state"] == "suspect")
        jobs.reserve("gpu-1", "gpu-2")
        held = jobs.until("Pending", words="waits for gpu-2: suspect")
        assert "nodes are chosen again at" in held["message"]
        assert b"muster_admitter_jobs_waiting 1.0\n" in admitter.service.metrics.text()
        fleet.publish("gpu-2", sequence=7)
        ready = jobs.until("Ready")
        assert ready["message"] == "all 2 nodes are open, with proof of level quick or more"
        assert ready["lastTransitionTime"] >= held["lastTransitionTime"]
        item = api.objects["workloads"]["vision/job-a"]
        assert item["status"]["admissionChecks"][0] == {"name": "another", "state": "Ready"} | {
            "lastTransitionTime": "2026-11-21T11:59:00Z"
        }
        until("the metric", lambda: b"muster_admitter_jobs_waiting 0.0\n" in admitter.service.metrics.text())
        count = admitter.service.metrics.value
        assert count("job_verdicts", verdict="Ready", reason="VERIFIED") == 1
        assert count("job_verdicts", verdict="Pending", reason="NODE_STATE") == 1
        until("the lines", lambda: reasons(admitter) == ["NODE_STATE", "VERIFIED"])
        assert jobs.writes() == 2


def test_the_check_is_kept_active(api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path) -> None:
    def active() -> str:
        found = api.objects["admissionchecks"]["verified"].get("status") or {}
        return "".join(one["status"] for one in found.get("conditions") or [])

    with working(api, tmp_path, jobs=QUICK):
        until("the condition", lambda: active() == "True")
        api.merge("admissionchecks", "verified", {"status": {"conditions": [{"type": "Active", "status": "False"}]}})
        until("the condition again", lambda: active() == "True")


def test_a_job_is_sent_back_with_a_reason_and_left_alone_then(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path
) -> None:
    fleet.prove("gpu-1")
    fleet.ask("gpu-1", hold=ASK)
    with working(api, tmp_path, jobs=QUICK) as admitter:
        until("the hold", lambda: fleet.status("gpu-1").get("state") == "held")
        jobs.reserve("gpu-1")
        sent = jobs.until("Retry")
        assert sent["message"].startswith("nodes are chosen again, because of gpu-1: held (HELD")
        assert sent["requeueAfterSeconds"] == 5
        until("the event", lambda: "MusterRetry" in jobs.events())
        assert "'kind': 'Workload', 'namespace': 'vision', 'name': 'job-a'" in jobs.events()
        # Kueue takes the nodes back, and counts.
        evicted = workload("gpu-1", conditions=[condition("Evicted")], reserved_at=now())
        api.put("workloads", evicted)
        until("the look", looked(admitter))
        written = jobs.writes()
        fleet.ask("gpu-1", hold=None)
        until("the admission", lambda: fleet.ready("gpu-1"))
        until("the look", looked(admitter))
        assert jobs.writes() == written and jobs.check()["state"] == "Pending"
        again = workload("gpu-1", reserved_at=now())
        again["status"]["admissionChecks"][1] |= {"retryCount": 1, "requeueAfterSeconds": 5}
        api.put("workloads", again)
        assert jobs.until("Ready")["retryCount"] == 1
        assert "requeueAfterSeconds" not in jobs.check()


def test_a_job_waits_no_longer_than_it_may(api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path) -> None:
    fleet.provision("gpu-1")
    fleet.register("gpu-1")
    with working(api, tmp_path, jobs=JobsConfig({"vision": QueueConfig("quick")}, wait_s=10)):
        until("the look", lambda: fleet.status("gpu-1"))
        jobs.reserve("gpu-1", reserved_at=now(-11))
        assert "after 10 s, because of gpu-1" in jobs.until("Retry")["message"]


def test_a_job_that_has_started_is_not_judged_again(api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path) -> None:
    fleet.prove("gpu-1", "gpu-2", "gpu-3")
    with working(api, tmp_path, jobs=QUICK) as admitter:
        until("the admissions", lambda: all(fleet.ready(name) for name in fleet.names))
        jobs.reserve("gpu-1", "gpu-2")
        jobs.until("Ready")
        written = jobs.writes()
        started = {"state": "Ready", "conditions": [condition("Admitted")]}
        jobs.reserve("gpu-1", "gpu-2", **started)
        until("the start", lambda: has_started(admitter))
        until("the look", looked(admitter))
        fleet.ask("gpu-2", hold=ASK)
        until("the hold", lambda: fleet.status("gpu-2")["state"] == "held")
        until("the look", looked(admitter))
        # Kueue gives it another node for one of its own: a good one is no news, another one is told.
        jobs.reserve("gpu-1", "gpu-3", **started)
        until("the look", lambda: known_nodes(admitter) == ("gpu-1", "gpu-3"))
        assert "MusterReplacedNode" not in jobs.events()
        jobs.reserve("gpu-1", "gpu-2", **started)
        until("the event", lambda: "MusterReplacedNode" in jobs.events())
        assert jobs.writes() == written
        assert admitter.service.metrics.value("job_verdicts", verdict="Replaced", reason="NODE_STATE") == 1


def test_a_word_that_another_check_outlives_is_taken_back(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path
) -> None:
    fleet.prove("gpu-1")
    with working(api, tmp_path, jobs=QUICK, tests=NO_TESTS):
        until("the admission", lambda: fleet.ready("gpu-1"))
        jobs.reserve("gpu-1")
        jobs.until("Ready")
        fleet.publish("gpu-1", sequence=6, verdict=Verdict.INCONCLUSIVE, code="XID_SOURCE_MISSING")
        jobs.until("Pending", words="waits for gpu-1")


def test_too_many_are_not_sent_back_at_once_nor_any_while_the_fleet_is_paused(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path
) -> None:
    fleet.prove("gpu-1")
    fleet.ask("gpu-1", hold=ASK)
    names = [f"job-{number}" for number in range(8)]
    pause = {
        "metadata": {"namespace": SYSTEM_NAMESPACE, "name": "muster-pause"},
        "data": {"who": "ada", "why": "power"},
    }
    with working(api, tmp_path, jobs=QUICK) as admitter:
        until("the hold", lambda: fleet.status("gpu-1").get("state") == "held")
        api.put("configmaps", pause)
        until("the pause", lambda: admitter.service.term and admitter.service.term.pause.why())
        jobs.reserve("gpu-1", name="paused")
        said = jobs.until("Pending", "paused", words="keeps its nodes for now")["message"]
        assert "the fleet is paused: by ada" in said and "because of gpu-1: held" in said
        api.remove("workloads", "vision/paused")
        until("its end", lambda: admitter.service.term and not admitter.service.term.jobs.workloads.known())
        api.remove("configmaps", f"{SYSTEM_NAMESPACE}/muster-pause")
        until("the end of the pause", lambda: not (admitter.service.term and admitter.service.term.pause.why()))
        for name in names:
            jobs.reserve("gpu-1", name=name)
        until("the words", lambda: all(jobs.check(name)["message"] for name in names))
        kept = [name for name in names if jobs.check(name)["state"] == "Pending"]
        assert len(kept) == 3
        assert "5 of the last 5 jobs that were judged were sent back" in jobs.check(kept[0])["message"]
        assert admitter.service.metrics.value("brake_denials", brake="job_retry") >= 4
        assert len([text for text in admitter.messages() if "keep their nodes and do not start" in text]) == 1


def test_a_job_is_let_go_of_the_version_alone_that_was_judged(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path
) -> None:
    """Kueue chooses other nodes between the look and the write."""
    fleet.prove("gpu-1", "gpu-2")
    fleet.ask("gpu-2", hold=ASK)
    changed: list[str] = []

    def choose_others(path: str) -> None:
        if path.endswith("/workloads/job-a/status") and not changed:
            changed.append(path)
            jobs.reserve("gpu-2")

    with working(api, tmp_path, jobs=QUICK):
        until("the states", lambda: fleet.ready("gpu-1") and fleet.status("gpu-2").get("state") == "held")
        api.before_write = choose_others
        jobs.reserve("gpu-1")
        assert "gpu-2: held" in jobs.until("Retry")["message"]


def test_nothing_is_let_go_while_nobody_leads_or_nobody_is_heard(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.prove("gpu-1")
    with working(api, tmp_path, jobs=QUICK):
        until("the admission", lambda: fleet.ready("gpu-1"))
    jobs.reserve("gpu-1")
    assert jobs.check()["state"] == "Pending"
    monkeypatch.setattr(service, "WATCH_SILENCE_S", -1.0)
    with working(api, tmp_path, "api-2", jobs=QUICK):
        jobs.until("Pending", words="has not heard of the nodes")
        monkeypatch.setattr(service, "WATCH_SILENCE_S", 150.0)
        monkeypatch.setattr(decide, "LOOK_AGAIN_S", 0.1)
        fleet.ask("gpu-1", hold=ASK)
        jobs.until("Retry", words="gpu-1: held")


def test_what_the_leader_before_has_written_is_no_word_of_this_one(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger says ready, and the node's newer evidence is not judged yet."""
    fleet.prove("gpu-1")
    with working(api, tmp_path, jobs=QUICK):
        until("the admission", lambda: fleet.ready("gpu-1"))
    jobs.reserve("gpu-1")
    monkeypatch.setattr(checks, "UNJUDGED_S", 0.1)
    monkeypatch.setattr(checks, "LOOK_SOON_S", 0.1)
    with monkeypatch.context() as slow:
        slow.setattr(WorkQueue, "settled", lambda *_: False)
        with working(api, tmp_path, "api-2", jobs=QUICK):
            jobs.until("Pending", words="gpu-1: the admitter has not judged yet what it has heard of it")
    fleet.publish("gpu-1", sequence=6, verdict=Verdict.INCONCLUSIVE, code="XID_SOURCE_MISSING")
    with working(api, tmp_path, "api-3", jobs=QUICK, tests=NO_TESTS):
        jobs.until("Pending", words="waits for gpu-1: suspect")
        states = [body[1]["value"]["state"] for path, body in api.bodies if path.endswith("job-a/status")]
        assert set(states) == {"Pending"}


def test_a_cluster_without_kueue_admits_its_nodes(api: FakeApi, fleet: Fleet, tmp_path: Path) -> None:
    api.unknown = {"workloads", "admissionchecks"}
    fleet.prove("gpu-1")
    with working(api, tmp_path, jobs=QUICK) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        until(
            "the words", lambda: len([text for text in admitter.messages() if "does not know workloads" in text]) == 1
        )
        assert not admitter.service.unhealthy()
    api.unknown = set()
    requests = len(api.requests)
    with working(api, tmp_path, "api-2") as admitter:
        until("the leadership", lambda: any("leads:" in text for text in admitter.messages()))
        assert not [path for _, path, _ in api.requests[requests:] if "kueue" in path]
        assert b"\nmuster_admitter_jobs_waiting " not in admitter.service.metrics.text()


def test_a_window_counts_for_as_long_as_the_job_says(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begins = datetime.now(UTC) + timedelta(hours=3)
    calendar = (Window(frozenset({"gpu-1"}), begins, begins + timedelta(hours=1)),)
    fleet.prove("gpu-1")
    with working(api, tmp_path, jobs=QUICK, calendar=calendar) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        for name, text, state in (
            ("a", "86400", "Retry"),
            ("b", "600", "Ready"),
            ("c", "soon", "Ready"),
            ("d", None, "Ready"),
        ):
            annotations = {} if text is None else {NAMES.max_runtime: text}
            api.put("jobs", {"metadata": {"namespace": "vision", "name": name, "annotations": annotations}})
            item = workload("gpu-1", name=f"job-{name}", reserved_at=now())
            item["metadata"]["ownerReferences"][0]["name"] = name
            api.put("workloads", item)
            assert jobs.until(state, f"job-{name}")["state"] == state
        assert "maintenance (maintenance) is announced" in jobs.check("job-a")["message"]
        (said,) = [text for text in admitter.messages() if "no number of seconds" in text]
        assert said.startswith("vision/job-c: its annotation muster.dev/max-runtime-s is 'soon'")
        # Who owns it cannot be read: nothing is guessed.
        api.before_read = refusing(403, "forbidden", of="/jobs/")
        item = workload("gpu-1", name="job-e", reserved_at=now())
        api.put("workloads", item)
        until("the trouble", lambda: any("read how long vision/job-e runs" in text for text in admitter.messages()))
        assert jobs.check("job-e")["state"] == "Pending"


def test_a_level_that_is_missing_is_tested_for_the_job(api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path) -> None:
    fleet.prove("gpu-1")
    config = JobsConfig({"vision": QueueConfig("standard")})
    with working(api, tmp_path, jobs=config, tests=TestRules(quick_every_s=0, extended_every_s=0)) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        jobs.reserve("gpu-1")
        jobs.until("Pending", words="gpu-1: it has no proof of level standard; a test is asked for")
        term = admitter.service.term
        assert term is not None
        (choice,) = term.jobs.tests()
        assert (choice.name, choice.level) == ("gpu-1", "standard")
        assert choice.why == "standard test for a job: it has no proof of level standard"
        term.turns.schedule(datetime.now(UTC))
        until("the request", lambda: (fleet.status("gpu-1").get("request") or {}).get("level") == "standard")
        until("the end of the choice", lambda: term.jobs.tests() == [])
        fleet.publish("gpu-1", sequence=6, level="standard")
        jobs.until("Ready")


def test_trouble_of_one_job_is_its_own(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet.prove("gpu-1")
    real = checks.decide

    def faulty(one: Any, *rest: Any) -> Any:
        if one.name == "bad":
            raise RuntimeError("a fault")
        return real(one, *rest)

    def refuse(path: str) -> None:
        if "refused" in path:
            raise Refused(403, "not yours")

    monkeypatch.setattr(checks, "decide", faulty)
    api.before_write = refuse
    with working(api, tmp_path, jobs=QUICK) as admitter:
        until("the admission", lambda: fleet.ready("gpu-1"))
        for name in ("bad", "refused", "good"):
            jobs.reserve("gpu-1", name=name)
        jobs.until("Ready", "good")
        until("the words", lambda: any("vision/bad: a fault of muster itself" in text for text in admitter.messages()))
        until("the words", lambda: any(text.startswith("vision/refused: ") for text in admitter.messages()))
        assert jobs.check("bad")["state"] == jobs.check("refused")["state"] == "Pending"
        assert not admitter.service.unhealthy()


@pytest.mark.parametrize("good", [True, False])
def test_a_job_that_was_let_go_without_nodes_is_judged_once_when_it_has_them(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path, good: bool
) -> None:
    """As with a ProvisioningRequest check in the same queue: Kueue chooses nodes when all checks are Ready."""
    fleet.prove("gpu-1", "gpu-2")
    with working(api, tmp_path, jobs=QUICK, tests=NO_TESTS):
        until("the admissions", lambda: fleet.ready("gpu-1") and fleet.ready("gpu-2"))
        if not good:
            fleet.ask("gpu-2", hold=ASK)
            until("the hold", lambda: fleet.status("gpu-2")["state"] == "held")
        jobs.reserve(delayedTopologyRequest="Pending")
        later = jobs.until("Ready", words="and they are judged then")
        begun = workload("1", "2", conditions=[condition("Admitted")], state="Ready")
        begun["status"]["admissionChecks"][1]["message"] = later["message"]
        api.put("workloads", begun)
        if good:
            jobs.until("Ready", words="all 2 nodes are open")
            fleet.ask("gpu-2", hold=ASK)
            until("the hold", lambda: fleet.status("gpu-2")["state"] == "held")
            # A job that runs is not judged again.
            assert settled(lambda: jobs.check()["state"] == "Ready", 0.5)
        else:
            back = jobs.until("Retry", words="nodes are chosen again, because of gpu-2: held")
            assert back["requeueAfterSeconds"] == 5


def test_a_gang_waits_for_tests_between_its_nodes_and_starts_when_they_have_passed(
    api: FakeApi, fleet: Fleet, jobs: Jobs, tmp_path: Path
) -> None:
    fleet.prove("gpu-1", "gpu-2")
    gang = JobsConfig({"vision": QueueConfig("quick", gang_test=True)})
    for name in ("gpu-1", "gpu-2"):
        nics = [{"rail": 0, "address": f"10.1.0.{name[-1]}"}]
        api.merge("nodeadmissions", name, {"spec": {"fabric": nics}})
    with working(api, tmp_path, jobs=gang, tests=NO_TESTS) as admitter:
        until("the admissions", lambda: fleet.ready("gpu-1") and fleet.ready("gpu-2"))
        jobs.reserve("gpu-1", "gpu-2")
        jobs.until(
            "Pending",
            words="it has passed no test with another node in this boot, or one failed since; such a test is asked for",
        )
        until("the test of both", lambda: all(request_of(api, name) for name in ("gpu-1", "gpu-2")))
        assert request_of(api, "gpu-1") == request_of(api, "gpu-2")
        term = admitter.service.term
        assert term is not None and term.jobs.gang_wanted("gpu-3") == ""
        for name in ("gpu-1", "gpu-2"):
            proof = {"bootID": BOOT, "testedAt": now(), "outcome": "passed", "run": "r", "passes": 1}
            api.merge("nodeadmissions", name, {"status": {"fabric": proof}})
        # That test comes to nothing, and what the ledger has counts.
        answer = FabricAnswer(request_of(api, "gpu-1"), Part.REFUSED, BOOT, why="another test")
        api.merge("nodes", "gpu-1", {"metadata": {"annotations": {NAMES.fabric: fabric_text(answer)}}})
        assert jobs.until("Ready")["message"].endswith("or more and a fresh pass with another node")
        assert term.jobs.gang_wanted("gpu-1") == ""


def request_of(api: FakeApi, name: str) -> str:
    """The test with another node that a Node is asked for, "" for none."""
    text = (api.nodes[name]["metadata"].get("annotations") or {}).get(NAMES.fabric_test)
    return read_fabric_request(text).id if text else ""
