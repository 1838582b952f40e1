"""The admitter's metrics, as OpenMetrics 1.0 (which is valid Prometheus text too)."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

PREFIX = "muster_admitter_"
CONTENT_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# Seconds: a PATCH to a healthy API server takes milliseconds; after 30 s the client gives up.
BUCKETS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_Labels = tuple[tuple[str, str], ...]
Gauge = Callable[[], Iterable[tuple[Mapping[str, str], float]]]

COUNTERS: Mapping[str, str] = {
    "joins": "Nodes that were let in.",
    "transitions": "Changes of a node's state.",
    "decisions": "Looks at a node.",
    "failed_looks": "Looks at a node that ended in trouble and are done again, by the kind of trouble.",
    "brake_denials": "Decisions that a brake withheld.",
    "foreign_changes": "Nodes whose taints or labels of the fleet somebody else has changed.",
    "evidence_verified": "Signatures of evidence that were checked.",
    "csrs": "Certificate requests of kubelets that were approved, or refused and left pending.",
    "evictions": "Evictions asked of the API server, by its answer.",
    "events": "Kubernetes events written, refused by the API server, or dropped since too many waited.",
    "watch_restarts": "Watches that broke and were begun again.",
    "lists": "Whole lists: one for each resource and leadership, and one for each version that was too old.",
    "leaderships": "Times that this process became the leader.",
}


@dataclass
class Metrics:
    """Counters and one histogram that are counted here, and gauges that are asked when somebody reads them."""

    gauges: dict[str, tuple[str, Gauge]] = field(default_factory=dict)
    _counters: dict[str, dict[_Labels, float]] = field(default_factory=lambda: {name: {} for name in COUNTERS})
    _buckets: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_S) + 1))
    _sum_s: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, labels: Mapping[str, str] | None = None, by: float = 1) -> None:
        """Count one of COUNTERS up."""
        key = tuple(sorted((labels or {}).items()))
        with self._lock:
            counter = self._counters[name]
            counter[key] = counter.get(key, 0) + by

    def value(self, name: str, **labels: str) -> float:
        """How far one of COUNTERS has come."""
        return self._counters[name].get(tuple(sorted(labels.items())), 0)

    def patched(self, seconds: float) -> None:
        """One PATCH was answered after so many seconds."""
        with self._lock:
            self._buckets[bisect_left(BUCKETS_S, seconds)] += 1
            self._sum_s += seconds

    def text(self) -> bytes:
        """All of them."""
        lines: list[str] = []
        for name, (help_text, gauge) in self.gauges.items():
            lines += [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} gauge"]
            lines += [f"{PREFIX}{name}{_labels(labels.items())} {_number(value)}" for labels, value in gauge()]
        with self._lock:
            for name, help_text in COUNTERS.items():
                lines += [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} counter"]
                lines += [
                    f"{PREFIX}{name}_total{_labels(labels)} {_number(value)}"
                    for labels, value in sorted(self._counters[name].items())
                ]
            lines += self._histogram()
        return ("\n".join([*lines, "# EOF"]) + "\n").encode()

    def _histogram(self) -> list[str]:
        name = f"{PREFIX}patch_seconds"
        lines = [f"# HELP {name} Time until the API server answered a PATCH.", f"# TYPE {name} histogram"]
        total = 0
        for bound, count in zip((*map(str, BUCKETS_S), "+Inf"), self._buckets, strict=True):
            total += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {total}')
        return [*lines, f"{name}_sum {_number(self._sum_s)}", f"{name}_count {total}"]


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    text = ",".join(f'{key}="{_escaped(value)}"' for key, value in labels)
    return f"{{{text}}}" if text else ""


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))
