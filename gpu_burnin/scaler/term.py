"""One leadership of the scaler: its watches, what it knows, and its round of deciding and doing."""

from __future__ import annotations

import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.admission.calendar import windows
from gpu_burnin.admission.client import NODES, ApiError, Conflict, KubeApi, admissions_path
from gpu_burnin.admission.decide import trim_node
from gpu_burnin.admission.jobs.stores import Workloads
from gpu_burnin.admission.jobs.workload import WORKLOADS
from gpu_burnin.admission.service.cache import Feed, Nodes, Pods, Records, Store
from gpu_burnin.admission.service.journal import EventRecorder, Journal
from gpu_burnin.admission.service.leader import NotLeader
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.pause import Pause
from gpu_burnin.admission.service.reflector import Reflector
from gpu_burnin.api.machine_power import machines_path
from gpu_burnin.api.maintenance import active
from gpu_burnin.api.names import MACHINE_PLURAL, PAUSE, PLURAL, SYSTEM_NAMESPACE
from gpu_burnin.api.record import NodeAdmission
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.power.port import Provider
from gpu_burnin.scaler.course import stage
from gpu_burnin.scaler.decide import decide
from gpu_burnin.scaler.model import Act, Observe, Plan, PodSet, Request, World
from gpu_burnin.scaler.requests import REQUESTS, Asking, pod_set, request_of, template_path
from gpu_burnin.scaler.settings import ScalerConfig
from gpu_burnin.scaler.stores import Askings, Machines
from gpu_burnin.scaler.words import sentence_of
from gpu_burnin.scaler.work import Worker
from gpu_burnin.scaler.world import Seen, machine_of

COMPONENT = "muster-scaler"
TICK_S = 5.0
# What comes in between is decided on together.
_SPACING_S = 0.5
# A watch that is well says something each minute.
_SILENT_S = 150.0
_WINDOW_BEFORE_S = 3600.0
_JOIN_S = 5.0
# Without Kueue there are none of these, and the rest is done all the same.
OF_KUEUE = ("provisioningrequests", "workloads")


class Term:
    """Works from `start` to `stop`. `may_write` raises NotLeader as soon as this process is not the leader."""

    def __init__(
        self,
        config: ScalerConfig,
        providers: Mapping[str, Provider],
        may_write: Callable[[], None],
        journal: Journal,
        metrics: Metrics,
    ) -> None:
        """Raises ApiError when the kubeconfig cannot be used."""
        names, self._over, self._may_write = config.names, threading.Event(), may_write
        self.config, self.journal, self.metrics = config, journal, metrics
        self.api = api = KubeApi(Path(config.kubeconfig), retries=0, before_write=self._check)
        self.nodes, self.pods, self.records = Nodes(trim_node), Pods(names.hold_until), Records(names)
        self.machines, self.askings = Machines(journal.say), Askings(config.domain)
        self.workloads, self.pause = Workloads(), Pause()
        self.recorder = EventRecorder(api, metrics, wait=self._wait, component=COMPONENT)
        self._wake = threading.Event()
        self.worker = Worker(
            api,
            names,
            self.machines,
            self.records,
            self.askings,
            providers,
            journal,
            self.recorder,
            metrics,
            self._check,
            self._wake.set,
            config.orders,
        )
        bring = f"run site.yml, which brings the CustomResourceDefinition ({names.machine_crd})"
        without = "so no job waits for machines here; run site.yml with fleet_scale and fleet_teams, which bring it"
        self.reflectors: Mapping[str, Reflector] = {
            "nodes": self._reflector(NODES, "nodes", self.nodes),
            PLURAL: self._reflector(admissions_path(names), PLURAL, self.records),
            "pods": self._reflector("/api/v1/pods", "pods", self.pods, fieldSelector="spec.nodeName!="),
            MACHINE_PLURAL: self._reflector(
                machines_path(names),
                MACHINE_PLURAL,
                self.machines,
                missing=f"{api.server}: it does not know {MACHINE_PLURAL}; {bring}",
            ),
            "pause": self._reflector(
                f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps",
                "the pause switch",
                self.pause,
                fieldSelector=f"metadata.name={PAUSE}",
            ),
            "provisioningrequests": self._reflector(
                REQUESTS,
                "provisioningrequests",
                self.askings,
                missing=f"{api.server}: it does not know provisioningrequests, {without}",
            ),
            "workloads": self._reflector(
                WORKLOADS,
                "workloads",
                self.workloads,
                missing=f"{api.server}: it does not know workloads, {without}",
            ),
        }
        self.plan = Plan()
        self.known = World()
        self._entries: dict[str, tuple[str, NodeAdmission]] = {}
        self._pod_sets: dict[str, tuple[PodSet, ...]] = {}
        self._readable_s = 0.0
        self._told: Counter[str] = Counter()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin to watch; work begins when all that counts was read."""
        for name, reflector in self.reflectors.items():
            self._spawn(f"watch-{name}", reflector.run)
        self._spawn("events", self.recorder.run)
        self._spawn("rounds", self._rounds)

    def stop(self) -> None:
        """End: nothing is written and no order is given from now on."""
        self._over.set()
        self._wake.set()
        for reflector in self.reflectors.values():
            reflector.stop()
        self.recorder.close()
        self.worker.close()
        self.api.hang_up()
        until_s = time.monotonic() + _JOIN_S
        for thread in list(self._threads):
            thread.join(max(0.0, until_s - time.monotonic()))

    def dead_threads(self) -> list[str]:
        """Names of the threads that ended though the term goes on."""
        return [] if self._over.is_set() else [one.name for one in self._threads if not one.is_alive()]

    def stages(self) -> Counter[str]:
        """How many machines stand where."""
        return Counter(str(stage(one)) for one in self.known.machines if one.switched)

    def world(self, now: datetime) -> World:
        """All that is known now."""
        names, power = self.config.names, self.machines.all()
        machines = []
        for name in sorted(self.records.known()):
            entry = self._entry(name)
            if entry is None:
                continue
            near = (active(one, now, _WINDOW_BEFORE_S) for one in windows(self.config.calendar, name, now))
            node, seen = self.nodes.get(name), self.worker.seen.get(name, Seen())
            window = next((why for why in near if why), "")
            machines.append(machine_of(entry, node, self.pods.on(name), power.get(name), seen, names, now, window))
        requests = tuple(self._request(one) for one in self.askings.all().values())
        return World(tuple(machines), requests, self.pause.why(), self._unreadable())

    def once(self, now: datetime) -> Plan:
        """One round: decide, and carry out what was decided."""
        world = self.world(now)
        plan = decide(world, self.config.rules, now)
        self.known, self.plan = world, plan
        self._tell(plan)
        for act in plan.acts:
            if not self.config.dry_run or _looks(act):
                self._carry_out(act)
        for name in self.worker.due(self.config.observe_s):
            self.worker.carry_out(Observe(name))
        return plan

    def _carry_out(self, act: Act) -> None:
        try:
            self.worker.carry_out(act)
        except (Conflict, NotLeader):
            # What was decided on is not so any more: the next round sees it.
            self.metrics.add("conflicts")
        except ApiError as error:
            if error.status in (0, 429) or error.status >= 500:
                self._readable_s = time.monotonic()
            self._say_once(str(error))

    def _tell(self, plan: Plan) -> None:
        """What it would do in a dry run, and what it does not do: each sentence once, until it is not so any more."""
        told = [f"dry run: {sentence_of(act)}" for act in plan.acts if self.config.dry_run and not _looks(act)]
        sentences = [*plan.notes, *told]
        for one in sentences:
            self._say_once(one)
        for gone in self._told.keys() - set(sentences):
            del self._told[gone]
        if plan.braked:
            self.metrics.add("brakes", {"brake": plan.braked})

    def _say_once(self, sentence: str) -> None:
        if not self._told[sentence]:
            self.journal.say(sentence)
        self._told[sentence] += 1

    def _unreadable(self) -> str:
        """Why what is known may be old, "" where it is not."""
        now_s = time.monotonic()
        silent = [
            name
            for name, one in self.reflectors.items()
            if name not in OF_KUEUE and now_s - one.last_heard_s > _SILENT_S
        ]
        if silent:
            self._readable_s = now_s
        if self._readable_s and now_s - self._readable_s < self.config.quiet_s:
            what = f"nothing was heard of {', '.join(silent)}" if silent else "the API server could not be reached"
            return f"{what} in the last {self.config.quiet_s:.0f} s"
        return ""

    def _entry(self, name: str) -> NodeAdmission | None:
        """A ledger entry, read once for each of its versions."""
        version = self.records.version_of(name)
        kept = self._entries.get(name)
        if kept is not None and kept[0] == version:
            return kept[1]
        try:
            found = self.records.get(name)
        except GpuBurninError as error:
            self._say_once(str(error))
            return None
        if found is not None:
            self._entries[name] = version, found
        return found

    def _request(self, found: Asking) -> Request:
        workload = self.workloads.get(found.workload) if found.workload else None
        return request_of(found, self._pods_of(found), workload)

    def _pods_of(self, found: Asking) -> tuple[PodSet, ...] | None:
        """From its PodTemplates, which nobody changes."""
        if found.key not in self._pod_sets:
            try:
                self._pod_sets[found.key] = tuple(
                    pod_set(self.api.get(template_path(found.namespace, name), f"read PodTemplate {name}"), count)
                    for name, count in found.templates
                )
            except (ApiError, KeyError, TypeError, ValueError, AttributeError):
                return None
        return self._pod_sets[found.key]

    def _rounds(self) -> None:
        for name, reflector in self.reflectors.items():
            while name not in OF_KUEUE and not reflector.synced.wait(0.2):
                if self._over.is_set():
                    return
        # Where there is Kueue, its word comes within a moment; without it nobody waits.
        self._wait(_SPACING_S)
        self.journal.say(f"leads: {len(self.machines.all())} machines and {len(self.records)} nodes of the ledger read")
        while not self._over.is_set():
            self._wake.clear()
            try:
                self.once(datetime.now(UTC))
            except (ApiError, NotLeader) as error:
                self._say_once(str(error))
            except GpuBurninError as error:
                self._say_once(str(error))
            except Exception as error:
                self._say_once(f"a fault of muster itself ({error!r}): {traceback.format_exc()}")
            for key in self._pod_sets.keys() - self.askings.known():
                del self._pod_sets[key]
            self._wait(_SPACING_S)
            self._wake.wait(TICK_S)

    def _check(self) -> None:
        if self._over.is_set():
            raise NotLeader("its term is over")
        self._may_write()

    def _reflector(self, path: str, what: str, store: Store, missing: str = "", **selectors: str) -> Reflector:
        feed = Feed(store, lambda _: self._wake.set())
        return Reflector(self.api, path, what, feed, self.journal.say, self.metrics, selectors, missing, self._wait)

    def _wait(self, seconds: float) -> object:
        return self._over.wait(seconds)

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        def run() -> None:
            try:
                work()
            except Exception:
                self.journal.say(f"the thread {name} ended: a fault of muster itself", traceback=traceback.format_exc())

        thread = threading.Thread(target=run, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)


def _looks(act: Act) -> bool:
    """Whether it changes nothing."""
    return isinstance(act, Observe)
