"""`muster scaler`: one process on each API-server host, of which one leads at a time; and its dry run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from gpu_burnin.admission.client import NotFound
from gpu_burnin.admission.service.campaign import Campaign
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.names import SCALER_LEASE
from gpu_burnin.scaler.course import Stage, stage
from gpu_burnin.scaler.decide import IN_DOUBT, PAUSED, UNREADABLE, decide
from gpu_burnin.scaler.model import Asked
from gpu_burnin.scaler.settings import ScalerConfig, providers
from gpu_burnin.scaler.term import COMPONENT, OF_KUEUE, Term
from gpu_burnin.scaler.words import sentence_of

PREFIX = "muster_scaler_"
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "acts": ("Acts that were carried out, by kind.", ("act",)),
    "orders": ("Orders to providers of power, by what came of them.", ("power", "result")),
    "failures": ("Machines that did not do as was wished, by the code of the reason.", ("code",)),
    "answers": ("Answers to ProvisioningRequests.", ("verdict",)),
    "brakes": ("Rounds in which a brake held everything.", ("brake",)),
    "conflicts": ("Acts that came too late, since what they were about had changed.", ()),
    "events": ("Kubernetes events written, refused by the API server, or dropped since too many waited.", ("result",)),
    "watch_restarts": ("Watches that broke and were begun again.", ("resource",)),
    "lists": ("Whole lists.", ("resource",)),
    "leaderships": ("Times that this process became the leader.", ()),
}
_BRAKES = (PAUSED, UNREADABLE, IN_DOUBT)
_Sample = tuple[Mapping[str, str], float]


class Service(Campaign[Term]):
    """The scaler. See Campaign."""

    def __init__(self, config: ScalerConfig, journal: Journal | None = None) -> None:
        """Read kubeconfig and secrets. Raises ApiError and SettingsError."""
        journal, metrics = journal or Journal(component=COMPONENT), Metrics(PREFIX, COUNTERS)
        known = providers(config)
        super().__init__(
            "the scaler",
            config.identity,
            Path(config.kubeconfig),
            SCALER_LEASE,
            config.address,
            journal,
            metrics,
            lambda may_write: Term(config, known, may_write, journal, metrics),
        )
        metrics.gauges.update(self._gauges())
        for brake in _BRAKES:
            metrics.add("brakes", {"brake": brake}, by=0)

    def _gauges(self) -> dict[str, tuple[str, Callable[[], Iterable[_Sample]]]]:
        def machines() -> Iterable[_Sample]:
            if self.term is None:
                return []
            counts = self.term.stages()
            return [({"stage": str(one)}, float(counts[str(one)])) for one in Stage if one is not Stage.FOREIGN]

        def requests() -> Iterable[_Sample]:
            term = self.term
            if term is None:
                return []
            return [({}, float(sum(one.state is Asked.OPEN for one in term.known.requests)))]

        def off() -> Iterable[_Sample]:
            term = self.term
            names = [one.name for one in term.known.machines if stage(one) is Stage.OFF] if term is not None else []
            return [({"node": name}, 1.0) for name in names]

        def braked() -> Iterable[_Sample]:
            term = self.term
            return [({"brake": one}, float(term.plan.braked == one)) for one in _BRAKES] if term is not None else []

        def last_heard() -> Iterable[_Sample]:
            term, now_s = self.term, time.monotonic()
            watches = {} if term is None else term.reflectors
            return [({"resource": name}, now_s - one.last_heard_s) for name, one in watches.items() if one.last_heard_s]

        return {
            "leader": ("1 while this process leads.", lambda: [({}, float(self.leadership.held()))]),
            "machines": ("Machines that the scaler switches, by where they stand.", machines),
            "off": ("1 for each machine that is off because that is wanted.", off),
            "requests_waiting": ("ProvisioningRequests that wait for machines.", requests),
            "braked": ("1 while a brake holds everything.", braked),
            "last_heard_seconds": ("Since the API server last said something on a watch; bookmarks come.", last_heard),
        }


def dry_run(config: ScalerConfig) -> Iterable[str]:
    """What a leader would do now, and what not and why; nothing is written, and no provider is asked.

    Raises ApiError, and NotFound where the cluster has no MachinePowers.
    """
    term = Term(config, {}, lambda: None, Journal(native=lambda entry: True), Metrics(PREFIX, COUNTERS))
    for name, reflector in term.reflectors.items():
        try:
            reflector.read_once()
        except NotFound as error:
            if name not in OF_KUEUE:
                raise NotFound(f"{reflector.missing or error}") from error
    now = datetime.now(UTC)
    plan = decide(term.world(now), config.rules, now)
    return [*map(sentence_of, plan.acts), *plan.notes]
