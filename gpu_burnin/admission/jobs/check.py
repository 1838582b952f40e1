"""Judges the jobs that wait for the check, one at a time, and writes what was found to their Workloads."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.admission.calendar import Window
from gpu_burnin.admission.client import KubeApi, Object
from gpu_burnin.admission.decide.times import later, stamp
from gpu_burnin.admission.decide.words import PAUSED
from gpu_burnin.admission.jobs.brake import RetryBrake
from gpu_burnin.admission.jobs.decide import (
    LOOK_AGAIN_S,
    NODES_LATER,
    Demand,
    NodeFacts,
    Reason,
    Verdict,
    back_off_s,
    blockers_of,
    decide,
    runtime_matters,
    unproven,
)
from gpu_burnin.admission.jobs.facts import FactsCache
from gpu_burnin.admission.jobs.owner import Runtimes
from gpu_burnin.admission.jobs.stores import Checks, Workloads
from gpu_burnin.admission.jobs.workload import CHECKS, Check, CheckState, Workload
from gpu_burnin.admission.jobs_config import JobsConfig, QueueConfig
from gpu_burnin.admission.schedule.pick import Choice
from gpu_burnin.admission.service.journal import COMPONENT, EventRecorder, Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.view import Patch
from gpu_burnin.api.jobs import API_VERSION
from gpu_burnin.api.record import State

# A word on what a job waits for is written again at most so often: another node is no news for each of its seconds.
SAY_EVERY_S = 15.0
# The admitter looks at a node within milliseconds of what it hears: a job waits so long without a word for it.
UNJUDGED_S, LOOK_SOON_S = 5.0, 0.5
# A level that a job found missing is asked for so long after it was last looked for.
TESTS_KEPT_S = 900.0
ALARM_EVERY_S = 60.0
BRAKE = "job_retry"


@dataclass
class _Job:
    """What is remembered of one job: `nodes` those that it has or waits for, `tests` what they lack.

    `gang` are those of its nodes that wait for a test with another node.
    """

    uid: str = ""
    since: datetime | None = None
    said_s: float = float("-inf")
    unjudged_s: float | None = None
    nodes: tuple[str, ...] = ()
    tests: tuple[tuple[str, str], ...] = ()
    tests_s: float = float("-inf")
    gang: frozenset[str] = frozenset()


@dataclass
class JobChecker:
    """Judges jobs. `stale` is why the caches may be old, "" where they are not; `paused` why the fleet is paused.

    Raises what the API client raises: after a Conflict it is done again.
    """

    api: KubeApi
    config: JobsConfig
    workloads: Workloads
    checks: Checks
    facts: FactsCache
    runtimes: Runtimes
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    calendar: Sequence[Window] = ()
    paused: Callable[[], str] = lambda: ""
    stale: Callable[[], str] = lambda: ""
    tests_open: Callable[[datetime], bool] = lambda now: True
    brake: RetryBrake = field(default_factory=RetryBrake)
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    monotonic_s: Callable[[], float] = time.monotonic
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _alarmed_s: float = float("-inf")

    def judge(self, key: str) -> datetime | None:
        """Judge one Workload and write it; when to look again though nothing changes."""
        workload = self.workloads.get(key)
        check = workload.check(self.checks.names) if workload is not None else None
        if workload is None or check is None:
            self._gone(key, workload)
            return None
        job = self._jobs.setdefault(key, _Job())
        job.uid = workload.uid
        if workload.admitted and not _owes_a_word(workload, check):
            return self._started(workload, job)
        job.nodes = workload.nodes
        if check.state not in (CheckState.PENDING, CheckState.READY):
            # Kueue takes the nodes back now, and asks anew when it has chosen others.
            job.since, job.gang = None, frozenset()
            return None
        job.since = None if check.state == CheckState.READY else workload.reserved_at or job.since or self.now()
        now = self.now()
        facts = self.facts.of(workload.nodes)
        verdict = self._verdict(workload, facts, now)
        if self._is_too_early(job, unjudged=verdict.reason is Reason.UNJUDGED_NODE):
            return later(now, LOOK_SOON_S)
        if workload.admitted and verdict.state is CheckState.PENDING and verdict.node:
            # It has begun, on nodes that nobody saw before: it does not wait on them.
            message = f"nodes are chosen again, because of {verdict.why}"
            verdict = replace(verdict, state=CheckState.RETRY, message=message)
        verdict = self._braked(workload, verdict, now)
        job.gang = frozenset(verdict.gang) if verdict.state is CheckState.PENDING else frozenset()
        if workload.admitted and verdict.state is CheckState.PENDING:
            return later(now, LOOK_AGAIN_S)
        if verdict.tests:
            job.tests, job.tests_s = verdict.tests, self.monotonic_s()
        self._tell(workload, check, verdict, job, now)
        return verdict.wake_at

    def keep_active(self, name: str) -> None:
        """Have an AdmissionCheck of ours say that somebody judges: Kueue stops the queues of one that does not."""
        check = self.checks.get(name)
        patch = (
            check.active_patch("Judged", "the admitter judges the nodes of jobs", stamp(self.now())) if check else None
        )
        if patch is not None:
            path = f"{CHECKS}/{name}/status?fieldManager={COMPONENT}"
            self.checks.put(self._patch(path, patch, f"write the status of the AdmissionCheck {name}"))
            self.journal.say(f"the AdmissionCheck {name} is active: jobs of queues that name it wait for its word")

    def waiting(self) -> list[datetime]:
        """Since when each job that waits for its nodes does."""
        return [job.since for job in list(self._jobs.values()) if job.since is not None]

    def nodes_of(self, key: str) -> tuple[str, ...]:
        """The nodes that a job has or waits for, as they were last looked at."""
        return job.nodes if (job := self._jobs.get(key)) is not None else ()

    def gang_wanted(self, key: str, node: str) -> str:
        """Why this node is to be tested with another one before the job starts, "" where it is not."""
        job = self._jobs.get(key)
        return f"the job {key} is to start on {node}" if job is not None and node in job.gang else ""

    def tests(self) -> list[Choice]:
        """The tests that jobs found missing, of nodes that may be tested now; the deepest of each."""
        now, since_s, found = self.now(), self.monotonic_s() - TESTS_KEPT_S, dict[str, str]()
        if not self.tests_open(now):
            return []
        for job in list(self._jobs.values()):
            if job.tests_s >= since_s:
                found |= dict(job.tests)
        facts = self.facts.of(found)
        able = (name for name, one in facts.items() if one.state is State.READY and one.idle and not one.test)
        return [
            Choice(name, found[name], f"{found[name]} test for a job: {lack[1]}")
            for name in able
            if (lack := unproven(facts[name], found[name], now)) is not None
        ]

    def _verdict(self, workload: Workload, facts: dict[str, NodeFacts], now: datetime) -> Verdict:
        if why := self.stale():
            return Verdict(CheckState.PENDING, Reason.STALE, why, wake_at=later(now, LOOK_AGAIN_S))
        matters = runtime_matters(workload, facts, self.calendar, now)
        runs_s = self.runtimes.of(workload) if matters else None
        return decide(workload, facts, self.calendar, self._demand(workload, now), now, runs_s)

    def _is_too_early(self, job: _Job, *, unjudged: bool) -> bool:
        """Whether a node is about to be looked at, which is worth no word."""
        if not unjudged:
            job.unjudged_s = None
            return False
        if job.unjudged_s is None:
            job.unjudged_s = self.monotonic_s()
        return self.monotonic_s() < job.unjudged_s + UNJUDGED_S

    def _demand(self, workload: Workload, now: datetime) -> Demand:
        # A queue that is not in the configuration (yet) asks what a queue asks where nothing is said.
        queue = self.config.queues.get(workload.queue, QueueConfig())
        # Of one node nothing goes through the fabric; where nodes are chosen last, the job is on them already.
        asked = queue.gang_test and len(workload.nodes) > 1 and not workload.admitted
        gang_age_s = self.config.gang_age_s if asked else None
        return Demand(queue.level, self.config.window_s, self.config.wait_s, self.tests_open(now), gang_age_s)

    def _braked(self, workload: Workload, verdict: Verdict, now: datetime) -> Verdict:
        """The verdict, or Pending where too many would be Retry: a wrong belief must not empty the queues."""
        if verdict.state is not CheckState.RETRY:
            return verdict
        why = f"{PAUSED}: {paused}" if (paused := self.paused()) else self.brake.why(workload.queue)
        if not why:
            return verdict
        self.metrics.add("brake_denials", {"brake": BRAKE})
        now_s = self.monotonic_s()
        if not self.paused() and now_s >= self._alarmed_s + ALARM_EVERY_S:
            self._alarmed_s = now_s
            self.journal.say(
                f"{workload.key} and maybe other jobs keep their nodes and do not start: {why}; look at `muster "
                "status`: nodes that fail at once often have one cause",
                brake=BRAKE,
                workload=workload.key,
            )
        message = f"waits, and keeps its nodes for now ({why}), because of {verdict.why}"
        again = later(now, LOOK_AGAIN_S)
        return replace(verdict, state=CheckState.PENDING, reason=Reason.BRAKE, message=message, wake_at=again)

    def _tell(self, workload: Workload, check: Check, verdict: Verdict, job: _Job, now: datetime) -> None:
        """Write a verdict that is news."""
        now_s, changed = self.monotonic_s(), check.state != verdict.state
        late = workload.admitted and check.message == NODES_LATER
        if not changed and ((verdict.state is CheckState.READY and not late) or check.message == verdict.message):
            return
        if not (changed or late) and now_s < job.said_s + SAY_EVERY_S:
            return
        value: dict[str, Any] = {
            "name": check.name,
            "state": str(verdict.state),
            "lastTransitionTime": stamp(now) if changed or not check.since else check.since,
            "message": verdict.message,
        }
        if check.retries:
            value["retryCount"] = check.retries
        if verdict.state is CheckState.RETRY:
            value["requeueAfterSeconds"] = back_off_s(check.retries)
        patch: Patch = [
            # Of this version alone: Kueue may have taken the nodes back, or started the job.
            {"op": "test", "path": "/metadata/resourceVersion", "value": workload.version},
            {"op": "replace", "path": f"/status/admissionChecks/{check.place}", "value": value},
        ]
        path = f"{workload.path}/status?fieldManager={COMPONENT}"
        self.workloads.wrote(self._patch(path, patch, f"write the check {check.name} of {workload.key}"))
        job.said_s = now_s
        if changed or verdict.state is CheckState.PENDING:
            self.metrics.add("job_verdicts", {"verdict": str(verdict.state), "reason": str(verdict.reason)})
        if changed:
            self._changed(workload, check, verdict, job)
        self.journal.say(
            f"{workload.key}: {verdict.state}: {verdict.message}", workload=workload.key, reason=str(verdict.reason)
        )

    def _changed(self, workload: Workload, check: Check, verdict: Verdict, job: _Job) -> None:
        """What follows from a check that is in another state now."""
        if verdict.state is CheckState.PENDING:
            return
        job.since = None
        if verdict.reason is not Reason.NO_GPUS:
            self.brake.wrote(workload.queue, retry=verdict.state is CheckState.RETRY)
        if verdict.state is CheckState.RETRY:
            self._event(workload, "MusterRetry", f"{check.name}: {verdict.message}")

    def _started(self, workload: Workload, job: _Job) -> datetime | None:
        """A job that runs is not judged again. Where Kueue gives it another node, that one is looked at and told of."""
        now, added = self.now(), set(workload.nodes) - set(job.nodes) if job.nodes and workload.gpus else set[str]()
        job.since, job.tests, job.gang = None, (), frozenset()
        self.runtimes.forget(workload.uid)
        facts = self.facts.of(added)
        unjudged = bool(self.stale()) or not all(one.judged for one in facts.values())
        if added and unjudged:
            return later(now, LOOK_SOON_S if self._is_too_early(job, unjudged=True) else LOOK_AGAIN_S)
        self._is_too_early(job, unjudged=False)
        job.nodes, demand = workload.nodes, self._demand(workload, now)
        for one in blockers_of(workload, facts, self.calendar, demand, now, now, only=added):
            message = (
                f"Kueue gave the running job the node {one.node}, on which it would not have been started: "
                f"{one.words}; it runs on, and is asked to leave as all work there when the node is closed"
            )
            self.metrics.add("job_verdicts", {"verdict": "Replaced", "reason": str(one.reason)})
            self.journal.say(f"{workload.key}: {message}", workload=workload.key, node=one.node)
            self._event(workload, "MusterReplacedNode", message)
        return None

    def _event(self, workload: Workload, reason: str, message: str) -> None:
        reference = {"apiVersion": API_VERSION, "kind": "Workload", "namespace": workload.namespace}
        reference |= {"name": workload.name, "uid": workload.uid}
        self.recorder.alarm(workload.namespace, reference, reason, message)

    def _gone(self, key: str, workload: Workload | None) -> None:
        """No reservation any more, or no check of ours: what was asked to be tested for it is still wanted."""
        job = self._jobs.get(key)
        if job is None:
            return
        job.since, job.nodes, job.gang = None, (), frozenset()
        self.runtimes.forget(job.uid)
        if workload is not None or key not in self.workloads.known() or not job.tests:
            self._jobs.pop(key, None)

    def _patch(self, path: str, patch: Patch, what: str) -> Object:
        began_s = self.monotonic_s()
        try:
            return self.api.patch(path, patch, what)
        finally:
            self.metrics.patched(self.monotonic_s() - began_s)


def _owes_a_word(workload: Workload, check: Check) -> bool:
    """Whether it was let go before there were nodes to judge, and has them now."""
    return check.state == CheckState.READY and check.message == NODES_LATER and bool(workload.nodes)
