"""The check beside the admitter's other work: its watches, its queue, the thread that judges. The leader's alone."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Protocol

from gpu_burnin.admission.client import WATCH_SILENCE_S, ApiError, Conflict, KubeApi, NotFound, Object
from gpu_burnin.admission.jobs.check import JobChecker
from gpu_burnin.admission.jobs.facts import FactsCache
from gpu_burnin.admission.jobs.owner import Runtimes
from gpu_burnin.admission.jobs.stores import Checks, Workloads
from gpu_burnin.admission.jobs.workload import CHECKS, WORKLOADS, path_of
from gpu_burnin.admission.jobs_config import JobsConfig
from gpu_burnin.admission.schedule.pick import Choice
from gpu_burnin.admission.service.cache import Feed, Nodes, Pods, Records
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.pause import Pause
from gpu_burnin.admission.service.queue import WorkQueue
from gpu_burnin.admission.service.reflector import Reflector
from gpu_burnin.admission.service.verify import Verifier
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.api.jobs import GROUP

# Nobody waits for these: a fleet without Kueue's CRDs admits its nodes all the same.
WATCHES = ("workloads", "admissionchecks")
# A job waits for its word, so that trouble is tried again soon.
_MOST_DELAY_S = 30.0


class Known(Protocol):
    """What the term knows of the fleet, and what it tells. `queue` has the nodes that it is to look at.

    `reflectors` are its watches by name.
    """

    api: KubeApi
    nodes: Nodes
    records: Records
    pods: Pods
    queue: WorkQueue
    pause: Pause
    journal: Journal
    recorder: EventRecorder
    metrics: Metrics
    reflectors: Mapping[str, Reflector]


class JobCheck:
    """Watches from the start of a term; judges from `run` on. Does nothing where the fleet has no teams (`on`)."""

    def __init__(self, config: AdmitterConfig, known: Known, verifier: Verifier) -> None:
        self.on = config.jobs is not None
        self.api, self._known, self._tests = known.api, known, config.tests
        self.queue, self.workloads = WorkQueue(), Workloads()
        self._looked_at: set[str] = set()
        self.checks = Checks(config.names.verified_check, self._checks_changed)
        self.checker = JobChecker(
            self.api,
            config.jobs or JobsConfig(),
            self.workloads,
            self.checks,
            FactsCache(config.names, known.nodes, known.records, known.pods, verifier.agent, self._is_judged),
            Runtimes(self.api, config.names.max_runtime, known.journal.say),
            known.journal,
            known.recorder,
            known.metrics,
            config.calendar,
            known.pause.why,
            self._stale,
            self._tests_open,
        )
        self._told: dict[str, str] = {}

    def reflectors(self, wait: Callable[[float], object]) -> dict[str, Reflector]:
        """The watches of what Kueue has."""
        if not self.on:
            return {}
        journal, metrics = self._known.journal, self._known.metrics

        def of(path: str, what: str, store: Workloads | Checks) -> Reflector:
            missing = (
                f"{self.api.server}: it does not know {what} ({GROUP}), so no job is judged, and those of queues with "
                "the check do not start; run site.yml, which brings Kueue and its CustomResourceDefinitions"
            )
            feed = Feed(store, self.queue.add)
            return Reflector(self.api, path, what, feed, journal.say, metrics, missing=missing, wait=wait)

        workloads, checks = WATCHES
        return {workloads: of(WORKLOADS, workloads, self.workloads), checks: of(CHECKS, checks, self.checks)}

    def run(self) -> None:
        """Judge until closed."""
        while (key := self.queue.get()) is not None:
            if self._once(key):
                self.queue.done(key)

    def close(self) -> None:
        """Judge no more."""
        self.queue.close()

    def node_looked_at(self, name: str) -> None:
        """The admitter has decided on a node: the jobs that wait for it are judged again."""
        self._looked_at.add(name)
        self.queue.add_all(self.workloads.waiting_for(name))
        if name not in self._known.records:
            self._looked_at.discard(name)
            self.checker.facts.forget(name)

    def tests(self) -> list[Choice]:
        """Tests that jobs need."""
        return self.checker.tests()

    def gang_wanted(self, name: str) -> str:
        """Why a node is to be tested with another one for a job that waits for it, "" where none does."""
        keys = self.workloads.waiting_for(name) if self.on else ()
        return next((why for key in keys if (why := self.checker.gang_wanted(key, name))), "")

    def waiting_s(self) -> list[float]:
        """For how long each job that waits for its nodes does."""
        now = datetime.now(UTC)
        return [max(0.0, (now - since).total_seconds()) for since in self.checker.waiting()]

    def _look(self, key: str) -> datetime | None:
        """Look at one Workload, or at an AdmissionCheck, whose key has no namespace; when to look again."""
        if "/" in key:
            return self.checker.judge(key)
        self.checker.keep_active(key)
        return None

    def _once(self, key: str) -> bool:
        """Whether the look was not in vain."""
        try:
            wake_at = self._look(key)
        except NotLeader:
            self.queue.fail(key)
        except Conflict:
            self._in_vain(key, "conflict")
            self._refresh(key)
        except ApiError as error:
            self._in_vain(key, "api")
            if not isinstance(error, NotFound):
                self._log_once(key, f"{key}: {error}")
        except Exception as error:
            self._in_vain(key, "fault")
            self._log_once(key, f"{key}: a fault of muster itself ({error!r})", traceback=traceback.format_exc())
        else:
            self.queue.reset_backoff(key)
            self._told.pop(key, None)
            if "/" in key and self.workloads.get(key) is None:
                self.queue.forget(key)
            delay_s = None if wake_at is None else max(0.0, (wake_at - datetime.now(UTC)).total_seconds())
            self.queue.add_at(key, None if delay_s is None else time.monotonic() + delay_s)
            return True
        return False

    def _in_vain(self, key: str, kind: str) -> None:
        self._known.metrics.add("failed_looks", {"kind": kind})
        self.queue.fail(key, _MOST_DELAY_S)

    def _log_once(self, key: str, sentence: str, **more: object) -> None:
        if self._told.get(key) != sentence.partition("(")[0]:
            self._told[key] = sentence.partition("(")[0]
            self._known.journal.say(sentence, workload=key, **more)

    def _refresh(self, key: str) -> None:
        """Read what was written meanwhile; the watch may be late."""
        try:
            path = path_of(key) if "/" in key else f"{CHECKS}/{key}"
            found: Object | None = self.api.find(path)
        except ApiError:
            return
        if found is not None:
            self.workloads.wrote(found) if "/" in key else self.checks.put(found)

    def _is_judged(self, name: str) -> bool:
        """Whether this leader has decided on all that it has heard of a node: its record may be of the one before."""
        return name in self._looked_at and self._known.queue.settled(name)

    def _checks_changed(self) -> None:
        self.queue.add_all(one.key for one in self.workloads.not_started())

    def _stale(self) -> str:
        """Why what is known of the nodes may be old, "" where it is not: bookmarks come each minute."""
        watches, now_s = self._known.reflectors, time.monotonic()
        silent = (name for name in ("nodes", "nodeadmissions") if now_s - watches[name].last_heard_s > WATCH_SILENCE_S)
        name = next(silent, "")
        return f"the admitter has not heard of the {name} for minutes, so it does not judge them" if name else ""

    def _tests_open(self, now: datetime) -> bool:
        places = self._tests.places(len(self._known.records))
        return places > 0 and self._tests.open_at(now) and not self._known.pause.why()
