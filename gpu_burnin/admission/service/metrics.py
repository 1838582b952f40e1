"""The metrics of the admitter, and of services like it: OpenMetrics 1.0, which is valid Prometheus text too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import Collector

__all__ = ["CONTENT_TYPE", "Gauge", "Metrics"]

PREFIX = "muster_admitter_"
# Seconds: a PATCH to a healthy API server takes milliseconds; after 30 s the client gives up.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
Gauge = Callable[[], Iterable[tuple[Mapping[str, str], float]]]
# Name of each counter: what it counts, and its labels.
COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "joins": ("Nodes that were let in.", ()),
    "transitions": ("Changes of a node's state.", ("from", "to", "code")),
    "decisions": ("Looks at a node.", ()),
    "failed_looks": ("Looks at a node that ended in trouble and are done again, by the kind of trouble.", ("kind",)),
    "brake_denials": ("Decisions that a brake withheld.", ("brake",)),
    "foreign_changes": ("Nodes whose taints or labels of the fleet somebody else has changed.", ()),
    "evidence_verified": ("Signatures of evidence that were checked.", ("result",)),
    "csrs": ("Certificate requests of kubelets that were approved, or refused and left pending.", ("result",)),
    "evictions": ("Evictions asked of the API server, by its answer.", ("result",)),
    "events": (
        "Kubernetes events written, refused by the API server, or dropped since too many waited.",
        ("result",),
    ),
    "watch_restarts": ("Watches that broke and were begun again.", ("resource",)),
    "lists": (
        "Whole lists: one for each resource and leadership, and one for each version that was too old.",
        ("resource",),
    ),
    "job_verdicts": (
        "Words of the check `verified` on jobs, by state and the code of its reason.",
        ("verdict", "reason"),
    ),
    "fabric_tests": ("Tests between nodes that came to an end, by what they came to.", ("result",)),
    "leaderships": ("Times that this process became the leader.", ()),
}


class Metrics:
    """Counters and one histogram that are counted here, and gauges that are asked when somebody reads them."""

    def __init__(self, prefix: str = PREFIX, counters: Mapping[str, tuple[str, tuple[str, ...]]] = COUNTERS) -> None:
        """`prefix` begins the name of each number; `counters` are as COUNTERS."""
        # When each series began is a second series of its own, which nothing reads.
        disable_created_metrics()
        self.gauges: dict[str, tuple[str, Gauge]] = {}
        self._registry = CollectorRegistry()
        self._registry.register(_Gauges(self.gauges, prefix))
        self._counters = {
            name: Counter(prefix + name, text, labels, registry=self._registry)
            for name, (text, labels) in counters.items()
        }
        self._patches = Histogram(
            f"{prefix}patch_seconds",
            "Time until the API server answered a PATCH.",
            buckets=BUCKETS_S,
            registry=self._registry,
        )

    def add(self, name: str, labels: Mapping[str, str] | None = None, by: float = 1) -> None:
        """Count one of the counters up; with `by` 0 it is there from now on."""
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(by)

    def value(self, name: str, **labels: str) -> float:
        """How far one of the counters has come."""
        samples = (sample for family in self._counters[name].collect() for sample in family.samples)
        return next((sample.value for sample in samples if sample.labels == labels), 0.0)

    def patched(self, seconds: float) -> None:
        """One PATCH was answered after so many seconds."""
        self._patches.observe(seconds)

    def text(self) -> bytes:
        """All of them."""
        page: bytes = generate_latest(self._registry)
        return page


class _Gauges(Collector):
    """The gauges as they are when they are read; one without a sample is named and has no value."""

    def __init__(self, gauges: Mapping[str, tuple[str, Gauge]], prefix: str) -> None:
        self._gauges, self._prefix = gauges, prefix

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, (text, read) in self._gauges.items():
            family = GaugeMetricFamily(self._prefix + name, text)
            for labels, value in read():
                family.add_sample(self._prefix + name, dict(labels), value)
            yield family
