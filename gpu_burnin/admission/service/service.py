"""`muster admitter`: one process on each API-server host, of which one leads at a time."""

from __future__ import annotations

import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpu_burnin.admission.client import ApiError, KubeApi, NotFound
from gpu_burnin.admission.jobs.check import BRAKE
from gpu_burnin.admission.service.http import Pages
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.leader import RETRY_S, Leadership
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.term import Term
from gpu_burnin.admission.service.trouble import Trouble
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.admission.teams.choose import Share
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.names import LEASE, SYSTEM_NAMESPACE
from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError

# A slow answer is worth more than a second try: an overloaded API server would never give one to those who hang up.
# The leader's time goes on by when it sent its renewal, however late the answer comes.
_LEASE_TIMEOUT_S = (1.0, 5.0)
# A candidate asks so often at the least that it takes the Lease within seconds of its end.
_MOST_RETRY_S = 2.0
_Sample = tuple[Mapping[str, str], float]


@dataclass
class Service:
    """Campaigns for the Lease until stopped; while it leads, a Term works.

    Raises GpuBurninError at the start, and when a part of the term has ended by a fault.
    """

    config: AdmitterConfig
    journal: Journal = field(default_factory=Journal)
    metrics: Metrics = field(default_factory=Metrics)
    term: Term | None = None

    def __post_init__(self) -> None:
        """Read the kubeconfig; raises ApiError when it cannot be used."""
        # Not the host's name alone: a process that comes after this one on the same host is another candidate.
        identity = f"{self.config.identity}_{uuid.uuid4()}"
        self._lease_api = KubeApi(self.config.kubeconfig_path, retries=0, timeout_s=_LEASE_TIMEOUT_S)
        self.leadership = Leadership(self._lease_api, identity)
        self._stopping = threading.Event()
        self._trouble = Trouble(self.journal.say)
        self.metrics.gauges.update(self._gauges())
        # A counter that only appears with its first count could not be told from one that nobody writes, and increase()
        # would miss that count.
        for brake in (*map(str, Budget), *((BRAKE,) if self.config.jobs is not None else ())):
            self.metrics.add("brake_denials", {"brake": brake}, by=0)

    def run(self) -> None:
        """Until `stop`, or SIGTERM and SIGINT where this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: self.stop())
        pages = Pages(self.config.address, self.metrics, self.unhealthy, self.leadership.held)
        self.journal.say(
            f"{self.config.identity}: the admitter stands for election at {self._lease_api.server}; health and metrics "
            f"at {self.config.address[0]}:{pages.port}",
            identity=self.leadership.identity,
        )
        try:
            self._campaign()
        finally:
            self._end_term()
            self.leadership.release()
            pages.close()
            self.journal.say(f"{self.config.identity}: the admitter has ended")

    def stop(self) -> None:
        """End; the Lease is given back."""
        self._stopping.set()

    def unhealthy(self) -> str:
        """Why this process should be started again; a lost API server is no reason."""
        term = self.term
        dead = term.dead_threads() if term is not None else []
        return f"threads that ended: {', '.join(dead)}" if dead else ""

    def _campaign(self) -> None:
        retry_s = RETRY_S
        while not self._stopping.is_set():
            if why := self.unhealthy():
                # It would lead on and do only a part of the work.
                raise GpuBurninError(
                    f"{self.config.identity}: {why}; the admitter ends, so that systemd starts it again and "
                    "another one may lead; report it with the lines before",
                    EXIT_INCONCLUSIVE,
                )
            try:
                delay_s = self.leadership.campaign()
                retry_s = RETRY_S
                self._trouble.end("the Lease can be read and written again")
                if self.leadership.held() and self.term is None:
                    self._begin_term()
            except ApiError as error:
                self._say(error)
                delay_s = retry_s
                retry_s = min(_MOST_RETRY_S, retry_s * 1.5)
            if self.term is not None and not self.leadership.held():
                self.journal.say("leads no more: its time is over, and it writes nothing; it stands for election again")
                self._end_term()
            self._stopping.wait(delay_s)

    def _say(self, error: ApiError) -> None:
        sentence = str(error)
        if isinstance(error, NotFound):
            sentence = (
                f"{self._lease_api.server}: the namespace {SYSTEM_NAMESPACE} of the Lease {LEASE} is missing, so "
                "nobody leads; run site.yml, which makes it"
            )
        self._trouble.begin(error.status, sentence)

    def _begin_term(self) -> None:
        self.term = Term(self.config, self.leadership.check, self.journal, self.metrics)
        self.metrics.add("leaderships")
        self.term.start()

    def _end_term(self) -> None:
        term, self.term = self.term, None
        if term is not None:
            term.stop()

    def _gauges(self) -> dict[str, tuple[str, Callable[[], Iterable[_Sample]]]]:
        def of(read: Callable[[Term], float]) -> Callable[[], Iterable[_Sample]]:
            return lambda: [({}, read(term))] if (term := self.term) is not None else []

        def by(label: str, counts: Callable[[Term], Mapping[str, int]]) -> Callable[[], Iterable[_Sample]]:
            return lambda: [({label: key}, n) for key, n in sorted(counts(term).items())] if (term := self.term) else []

        def shares(read: Callable[[Share], int]) -> Callable[[], Iterable[_Sample]]:
            def samples() -> Iterable[_Sample]:
                found = self.term.dedicated.shares if self.term is not None else ()
                return [({"team": one.team, "model": one.model}, float(read(one))) for one in found]

            return samples

        def jobs(read: Callable[[list[float]], float]) -> Callable[[], Iterable[_Sample]]:
            def samples() -> Iterable[_Sample]:
                term = self.term
                return [({}, read(term.jobs.waiting_s()))] if term is not None and term.jobs.on else []

            return samples

        def last_heard() -> Iterable[_Sample]:
            term, now_s = self.term, time.monotonic()
            watches = {} if term is None else term.reflectors
            return [({"resource": name}, now_s - one.last_heard_s) for name, one in watches.items() if one.last_heard_s]

        return {
            "leader": ("1 while this process leads.", lambda: [({}, float(self.leadership.held()))]),
            "nodes": ("Nodes by the state in their NodeAdmission.", by("state", Term.states)),
            "held": ("Nodes that take no new work, by the code of the reason.", by("reason", Term.held)),
            "proof_expires_soon": (
                "Working nodes whose proof ends within a day.",
                of(lambda term: term.proofs_end_soon(datetime.now(UTC))),
            ),
            "unready_nodes": (
                "Nodes that the admitter keeps from work by its own judgement.",
                of(lambda term: term.budgets.gated()),
            ),
            "unwatched_nodes": (
                "Nodes whose agent is silent, kept from work or not.",
                of(lambda term: term.unwatched()),
            ),
            "queue_depth": ("Nodes that wait to be looked at.", of(lambda term: len(term.queue))),
            "events_waiting": ("Events that are not written yet.", of(lambda term: len(term.recorder))),
            "delayed_nodes": ("Nodes whose last look was in vain.", of(lambda term: term.queue.delayed())),
            "overdue_tests": (
                "Nodes that were never idle since their test was due.",
                of(lambda term: term.turns.overdue),
            ),
            "dedicated_gpus": ("GPUs of the nodes that are dedicated to a team.", shares(lambda one: one.gpus)),
            "dedicated_gpus_wanted": ("GPUs that should be dedicated to a team.", shares(lambda one: one.wanted)),
            "jobs_waiting": (
                "Jobs whose nodes are chosen, and that wait for the check `verified`.",
                jobs(lambda waiting_s: float(len(waiting_s))),
            ),
            "jobs_waiting_seconds": (
                "For how long the oldest of them waits.",
                jobs(lambda waiting_s: max(waiting_s, default=0.0)),
            ),
            "paused": ("1 while a person has paused the fleet.", of(lambda term: float(bool(term.pause.why())))),
            "steady_seconds": ("From the election to caches that are whole.", of(lambda term: term.steady_after_s)),
            "last_heard_seconds": ("Since the API server last said something on a watch; bookmarks come.", last_heard),
        }
