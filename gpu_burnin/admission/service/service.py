"""`muster admitter`: one process on each API-server host, of which one leads at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from gpu_burnin.admission.decide.fabric import FABRIC_ALONE
from gpu_burnin.admission.decide.finding import AGENT_SILENT
from gpu_burnin.admission.jobs.check import BRAKE
from gpu_burnin.admission.service.campaign import Campaign
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.admission.service.term import Term
from gpu_burnin.admission.settings import AdmitterConfig
from gpu_burnin.admission.teams.choose import Share
from gpu_burnin.admission.view import Budget
from gpu_burnin.api.names import LEASE

_Sample = tuple[Mapping[str, str], float]


class Service(Campaign[Term]):
    """The admitter. See Campaign."""

    def __init__(self, config: AdmitterConfig, journal: Journal | None = None, metrics: Metrics | None = None) -> None:
        """Read the kubeconfig; raises ApiError when it cannot be used."""
        journal, metrics = journal or Journal(), metrics or Metrics()
        super().__init__(
            "the admitter",
            config.identity,
            config.kubeconfig_path,
            LEASE,
            config.address,
            journal,
            metrics,
            lambda may_write: Term(config, may_write, journal, metrics),
        )
        metrics.gauges.update(self._gauges())
        # A counter that only appears with its first count could not be told from one that nobody writes, and increase()
        # would miss that count.
        for brake in (*map(str, Budget), *((BRAKE,) if config.jobs is not None else ())):
            metrics.add("brake_denials", {"brake": brake}, by=0)

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
                "Working nodes whose proof has ended or soon will, so that their test is late.",
                of(lambda term: term.proofs_end_soon(datetime.now(UTC))),
            ),
            "unready_nodes": (
                "Nodes that the admitter keeps from work by its own judgement.",
                of(lambda term: term.budgets.gated()),
            ),
            "unwatched_nodes": (
                "Nodes whose agent is silent, kept from work or not.",
                of(lambda term: term.of_code(AGENT_SILENT)),
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
            "fabric_nodes": (
                "Nodes by what their tests with others found.",
                by("outcome", lambda term: term.fabric.outcomes()),
            ),
            "alone_nodes": (
                "Nodes that were let in, or are held, since no test with another node came about in time.",
                of(lambda term: term.of_code(FABRIC_ALONE)),
            ),
            "paused": ("1 while a person has paused the fleet.", of(lambda term: float(bool(term.pause.why())))),
            "steady_seconds": ("From the election to caches that are whole.", of(lambda term: term.steady_after_s)),
            "last_heard_seconds": ("Since the API server last said something on a watch; bookmarks come.", last_heard),
        }
