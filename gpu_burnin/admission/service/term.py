"""One leadership, from its first lists to its end: the watches, the caches, the queue, the workers, the timetable."""

from __future__ import annotations

import gc
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from gpu_burnin.admission.client import CSRS, NODES, ApiError, Conflict, KubeApi, NotFound, admissions_path
from gpu_burnin.admission.decide import trim_node
from gpu_burnin.admission.decide.fabric import wanted as wanted_between
from gpu_burnin.admission.decide.finding import LEDGER_RESTORED
from gpu_burnin.admission.fabric.candidates import Candidates
from gpu_burnin.admission.fabric.service import FabricTests
from gpu_burnin.admission.fabric.writes import Writes
from gpu_burnin.admission.jobs.service import WATCHES, JobCheck
from gpu_burnin.admission.schedule.ends import ends_soon
from gpu_burnin.admission.service.budgets import Budgets
from gpu_burnin.admission.service.cache import Feed, Nodes, Pods, Records, Store
from gpu_burnin.admission.service.certificates import Approver, Requests
from gpu_burnin.admission.service.dedicated import Dedicated
from gpu_burnin.admission.service.evict import Evictor
from gpu_burnin.admission.service.heartbeats import Heartbeats
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.pause import Pause
from gpu_burnin.admission.service.pod_notes import PodNotes
from gpu_burnin.admission.service.queue import MOST_DELAY_S, WorkQueue
from gpu_burnin.admission.service.reconciler import Reconciler, Stale
from gpu_burnin.admission.service.reflector import Reflector
from gpu_burnin.admission.service.turns import Turns
from gpu_burnin.admission.service.verify import Verifier
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.api.attached import Mode
from gpu_burnin.api.heartbeat import heartbeats_path
from gpu_burnin.api.names import HEARTBEAT_PLURAL, KIND, PAUSE, PLURAL, SYSTEM_NAMESPACE
from gpu_burnin.api.record import State
from gpu_burnin.api.remedies import DEFINITIONS
from gpu_burnin.errors import GpuBurninError

TICK_S = 5.0
SCHEDULE_EVERY_S = 60.0
# What an overloaded or lost API server refuses is tried again sooner than what it will go on refusing.
_PASSING_DELAY_S = 30.0
# So many conflicts in a row are a fight.
_FIGHT = 5
_JOIN_S = 5.0
# Without them nobody is let in who needs them, and all other work goes on.
_NOT_WAITED_FOR = ("csrs", HEARTBEAT_PLURAL, *WATCHES)
_HELD = frozenset({State.NEW, State.SUSPECT, State.QUARANTINED, State.REPAIRING, State.HELD})
_WORKING = frozenset({State.READY, State.EXPIRING})
# Codes come from nodes too: their number stays one that a monitoring system can keep.
_MOST_REASONS = 24


class Term:
    """Works from `start` to `stop`. `may_write` raises NotLeader as soon as this process is not the leader."""

    def __init__(
        self, config: AdmitterConfig, may_write: Callable[[], None], journal: Journal, metrics: Metrics
    ) -> None:
        """Raises ApiError when the kubeconfig cannot be used."""
        names, self._over, self._may_write = config.names, threading.Event(), may_write
        api = KubeApi(config.kubeconfig_path, retries=0, before_write=self._check)
        self.config, self.api, self.journal, self.metrics = config, api, journal, metrics
        teams = config.jobs.teams if config.jobs is not None else frozenset()
        self.nodes, self.pods = Nodes(trim_node), Pods(names.hold_until, names.leave if teams else "")
        self.records = Records(names, config.decision_rules)
        self.heartbeats = Heartbeats(config.rules.agent_silent_s)
        self.requests, self.pause = Requests(), Pause()
        self.queue, self._csr_queue = WorkQueue(), WorkQueue()
        self.recorder = EventRecorder(api, metrics, busy=lambda: len(self.queue) > config.workers, wait=self._wait)
        self.budgets = Budgets(
            self.records,
            config.joins_per_s,
            config.max_unready_share,
            config.expire_share,
            config.tests.places,
            wake=self.queue.add,
        )
        self.reconciler = Reconciler(
            api,
            config.decision_rules,
            self.nodes,
            self.records,
            self.pods,
            self.heartbeats,
            Verifier(names, metrics),
            self.budgets,
            Evictor(api, journal, self.recorder, metrics),
            PodNotes(api, names, self.pods, teams),
            journal,
            self.recorder,
            metrics,
            config.calendar,
            self.pause.why,
        )
        known, choices = (self.records, self.nodes, self.pods), self.reconciler.choices
        self.turns = Turns(config.tests, *known, choices, self.queue.add, self.pause.why, lambda: self.jobs.tests())
        wanted, moves = config.jobs.dedicated if config.jobs is not None else {}, self.reconciler.team_moves
        seen = self.queue.add, self.pause.why
        self.dedicated = Dedicated(wanted, *known, self.budgets, moves, *seen, journal, self.recorder)
        self._approver = Approver(api, names, self.requests, self.records, config.inventory_nodes(), journal, metrics)
        self.jobs = JobCheck(config, self, self.reconciler.verifier)
        self.fabric = FabricTests(
            config.fabric,
            names,
            config.rules.settle_s,
            config.tests.ask_again_s,
            Candidates(
                *(names, self.nodes, self.records, self.pods, self.budgets, choices),
                lambda name, summary: wanted_between(name, summary.code) or self.jobs.gang_wanted(name),
                lambda name: self.jobs.workloads.waiting_for(name),
            ),
            Writes(names, api, self.nodes, self.records, self.queue.add),
            self.pause.why,
            journal,
            self.recorder,
            metrics,
        )
        self._system = frozenset(one.name for one in config.system_nodes)
        unknown, bring = f"{api.server}: it does not know", DEFINITIONS
        missing = f"{unknown} {PLURAL} ({names.crd}), so no node is admitted; {bring}"
        unheard = f"{unknown} {HEARTBEAT_PLURAL} ({names.heartbeat_crd}), so no agent is heard; {bring}"
        self.reflectors: Mapping[str, Reflector] = {
            "nodes": self._reflector(NODES, "nodes", self.nodes),
            "nodeadmissions": self._reflector(admissions_path(names), PLURAL, self.records, missing=missing),
            HEARTBEAT_PLURAL: self._reflector(
                heartbeats_path(names), HEARTBEAT_PLURAL, self.heartbeats, missing=unheard
            ),
            "pods": self._reflector("/api/v1/pods", "pods", self.pods, fieldSelector="spec.nodeName!="),
            "pause": self._reflector(
                f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps",
                "the pause switch",
                self.pause,
                fieldSelector=f"metadata.name={PAUSE}",
            ),
            **self._certificates(config),
            **self.jobs.reflectors(self._wait),
        }
        self.steady_after_s = 0.0
        self._told: dict[str, str] = {}
        self._threads: list[threading.Thread] = []
        self._began_s = time.monotonic()
        self._was_paused = ""
        self._was_restored = False

    def start(self) -> None:
        """Begin to watch; work begins when the caches are whole."""
        for name, reflector in self.reflectors.items():
            self._spawn(f"watch-{name}", reflector.run)
        self._spawn("events", self.recorder.run)
        self._spawn("csrs", self._approve)
        self._spawn("work", self._begin_work)

    def stop(self) -> None:
        """End: nothing is written from now on (the API client sees to that), and the threads go."""
        self._over.set()
        for reflector in self.reflectors.values():
            reflector.stop()
        for closing in (self.queue, self._csr_queue, self.recorder, self.jobs):
            closing.close()
        self.api.hang_up()
        until_s = time.monotonic() + _JOIN_S
        for thread in list(self._threads):
            thread.join(max(0.0, until_s - time.monotonic()))

    def dead_threads(self) -> list[str]:
        """Names of the threads that ended though the term goes on."""
        if self._over.is_set():
            return []
        return [thread.name for thread in self._threads if not thread.is_alive() and thread.name != "work"]

    def states(self) -> Counter[str]:
        """How many nodes there are in each state."""
        counts = Counter({str(state): 0 for state in State})
        for (state, _), nodes in self.records.counts().items():
            counts[str(state)] += nodes
        return counts

    def held(self) -> Counter[str]:
        """How many nodes take no new work, by the code of the reason; the rarer of many codes are one, OTHER."""
        counts = Counter[str]()
        for (state, code), nodes in self.records.counts().items():
            if state in _HELD:
                counts[code or "NONE"] += nodes
        rare = dict(counts.most_common()[_MOST_REASONS:])
        return counts - Counter(rare) + Counter({"OTHER": sum(rare.values())})

    def proofs_end_soon(self, now: datetime) -> int:
        """How many working nodes have a proof that has ended, or soon will: their test is late."""
        tests, now_s = self.config.tests, now.timestamp()
        working = (one for _, one in self.records.all_summaries() if one.state in _WORKING)
        return sum(ends_soon(one.expires_at, one.evidence, tests, now_s) for one in working)

    def of_code(self, wanted: str) -> int:
        """How many nodes have this code, at work or not."""
        return sum(nodes for (_, code), nodes in self.records.counts().items() if code == wanted)

    def _check(self) -> None:
        """A thread of this term that a slow answer holds up writes nothing in the next term of this process either."""
        if self._over.is_set():
            raise NotLeader("its term is over")
        self._may_write()

    def _reflector(self, path: str, what: str, store: Store, missing: str = "", **selectors: str) -> Reflector:
        enqueue = {id(self.pause): lambda _: self._pause_changed(), id(self.requests): self._csr_queue.add}
        feed = Feed(store, enqueue.get(id(store), self._enqueue))
        return Reflector(self.api, path, what, feed, self.journal.say, self.metrics, selectors, missing, self._wait)

    def _certificates(self, config: AdmitterConfig) -> dict[str, Reflector]:
        """In a cluster of others somebody else approves the certificates of kubelets."""
        if config.mode is not Mode.BUILT:
            return {}
        return {"csrs": self._reflector(CSRS, "certificate requests", self.requests)}

    def _wait(self, seconds: float) -> object:
        return self._over.wait(seconds)

    def _enqueue(self, name: str) -> None:
        if name not in self._system:
            self.queue.add(name)

    def _enqueue_all(self) -> None:
        self.queue.add_all((self.nodes.known() | self.records.known()) - self._system)

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception:
                self.journal.say(f"the thread {name} ended: a fault of muster itself", traceback=traceback.format_exc())

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _begin_work(self) -> None:
        for name, reflector in self.reflectors.items():
            while name not in _NOT_WAITED_FOR and not reflector.synced.wait(0.2):
                if self._over.is_set():
                    return
        # What was read stays for long: the collector need not look at it each time.
        gc.collect()
        gc.freeze()
        self._was_paused = self.pause.why()
        self.steady_after_s = time.monotonic() - self._began_s
        self.journal.say(
            f"leads: {len(self.records)} {KIND}s, {len(self.nodes)} nodes and {len(self.pods)} pods read in "
            f"{self.steady_after_s:.1f} s; all nodes are looked at now"
        )
        for number in range(self.config.workers):
            self._spawn(f"worker-{number}", self._work)
        self._spawn("timetable", self._timetable)
        self._spawn("jobs", self.jobs.run)
        if self.config.tests_between_nodes:
            self._spawn("fabric", lambda: self.fabric.run(self._wait))

    def _work(self) -> None:
        while (name := self.queue.get()) is not None:
            if self._reconcile_once(name):
                self.queue.done(name)
                self.jobs.node_looked_at(name)

    def _reconcile_once(self, name: str) -> bool:
        """Whether the look was not in vain."""
        try:
            wake_at = self.reconciler.reconcile(name)
        except NotLeader:
            self.queue.fail(name)
        except (Conflict, Stale) as error:
            self._in_vain(name, "conflict", _PASSING_DELAY_S)
            if self.queue.failures(name) >= _FIGHT:
                self._log_once(
                    name,
                    f"{name}: it kept changing while it was written ({error}); find out who else writes it "
                    "(kubectl get node -o yaml --show-managed-fields)",
                )
            self._refresh(name)
        except ApiError as error:
            self._in_vain(name, "api", _PASSING_DELAY_S if error.passing else MOST_DELAY_S)
            if not isinstance(error, NotFound):
                self._log_once(name, f"{name}: {error}")
            self._refresh(name)
        except GpuBurninError as error:
            self._in_vain(name, "record")
            self._log_once(name, str(error))
        except Exception as error:
            self._in_vain(name, "fault")
            self._log_once(name, f"{name}: a fault of muster itself ({error!r})", traceback=traceback.format_exc())
        else:
            self.queue.reset_backoff(name)
            self._told.pop(name, None)
            if name not in self.nodes and name not in self.records:
                self.queue.forget(name)
            now = datetime.now(UTC)
            at = None if wake_at is None else time.monotonic() + max(0.0, (wake_at - now).total_seconds())
            self.queue.add_at(name, at)
            return True
        return False

    def _in_vain(self, name: str, kind: str, most_s: float = MOST_DELAY_S) -> None:
        self.metrics.add("failed_looks", {"kind": kind})
        self.queue.fail(name, most_s)

    def _log_once(self, name: str, sentence: str, **more: object) -> None:
        """One line for each trouble of a node, until it went well once."""
        if self._told.get(name) != sentence.partition("(")[0]:
            self._told[name] = sentence.partition("(")[0]
            self.journal.say(sentence, node=name, **more)

    def _refresh(self, name: str) -> None:
        """Read what the cache has too old; the watch may be late."""
        try:
            node = self.api.node(name)
            if node is not None:
                self.nodes.put(node)
            record = self.api.find(admissions_path(self.config.names, name))
            if record is not None:
                self.records.put(record)
        except ApiError:
            return
        except Exception as error:
            # An object that cannot be taken in is its node's trouble, and not the worker's.
            self._log_once(name, f"{name}: a fault of muster itself ({error!r})", traceback=traceback.format_exc())

    def _approve(self) -> None:
        while (name := self._csr_queue.get()) is not None:
            try:
                self._approver.reconcile(name)
            except NotLeader:
                self._csr_queue.fail(name)
            except Exception as error:
                # Whoever may ask for a certificate could else end the approval of all others.
                self._csr_queue.fail(name)
                self._log_once(f"csr/{name}", f"certificate request {name}: {error!r}")
            else:
                self._csr_queue.reset_backoff(name)
                self._told.pop(f"csr/{name}", None)
                if name not in self._approver.requests.known():
                    self._csr_queue.forget(name)
                self._csr_queue.done(name)

    def _pause_changed(self) -> None:
        if not self._over.is_set() and self.reflectors["pause"].synced.is_set():
            self._log_pause()

    def _log_pause(self) -> None:
        why, before = self.pause.why(), self._was_paused
        if why == before:
            return
        self._was_paused = why
        self.journal.say(
            f"paused {why}: no node is let in or tested" if why else "the pause is over: all nodes are looked at"
        )
        self._enqueue_all()

    def announce_restore(self) -> None:
        """Say once that etcd was restored, as the entries do, and once that no node waits for its agent any more."""
        doubted = self.of_code(LEDGER_RESTORED)
        if bool(doubted) != self._was_restored:
            self._was_restored = bool(doubted)
            self.journal.say(
                f"etcd was restored to an older state: {doubted} or more nodes take no new work until their agents "
                "have spoken or they were tested"
                if doubted
                else "all nodes that waited for their agents after the restore of etcd were heard of"
            )

    def _timetable(self) -> None:
        """What time alone brings: tests, silent agents, the end of a pause, a look at each node once in a while."""
        slices = self._slices()
        next_schedule_s = 0.0
        while not self._over.wait(TICK_S):
            self._log_pause()
            self.announce_restore()
            self.queue.add_all(next(slices))
            silent = self.heartbeats.listened(self.reflectors[HEARTBEAT_PLURAL].last_heard_s)
            self.queue.add_all(set(silent) - self._system)
            if time.monotonic() >= next_schedule_s:
                next_schedule_s = time.monotonic() + SCHEDULE_EVERY_S
                self.turns.schedule(datetime.now(UTC))
                self.dedicated.choose(datetime.now(UTC))
                self.reconciler.evictor.prune(self.pods.uids)
                # A request that was refused may match by now: the inventory grows.
                for name in self.requests.known():
                    self._csr_queue.add(name)

    def _slices(self) -> Iterator[list[str]]:
        while True:
            names = sorted((self.nodes.known() | self.records.known()) - self._system)
            ticks = max(1, round(self.config.resync_s / TICK_S))
            for tick in range(ticks):
                yield names[tick::ticks]
