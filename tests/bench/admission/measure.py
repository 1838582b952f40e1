"""What processes and the API server say of themselves."""

from __future__ import annotations

import os
import re
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.admission.api import Api

_TICKS = os.sysconf("SC_CLK_TCK")
_SAMPLE = re.compile(r"(?P<name>\w+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
# The admitter makes its page itself: asked more often, it would be the page that is measured. Prometheus reads it each
# 15 to 60 s.
_STEADY_POLL_S = 1.0
Samples = Sequence[tuple[str, Mapping[str, str], float]]


def cpu_s(pid: int) -> float:
    """Processor time of a process so far, user and system."""
    values = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(values[11]) + int(values[12])) / _TICKS


def memory_mib(pid: int, key: str = "VmRSS") -> float:
    """Resident memory of a process, now (VmRSS) or at its peak (VmHWM)."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:")) / 1024


@dataclass
class Stopwatch:
    """Seconds of the clock, and of the processor time of some processes, since it was made."""

    pids: Sequence[int]

    def __post_init__(self) -> None:
        """Start it."""
        self._began_s, self._began_cpu_s = time.monotonic(), self._cpu_s()

    @property
    def wall_s(self) -> float:
        """Seconds of the clock."""
        return time.monotonic() - self._began_s

    @property
    def cpu_s(self) -> float:
        """Processor seconds."""
        return self._cpu_s() - self._began_cpu_s

    def _cpu_s(self) -> float:
        return sum(map(cpu_s, self.pids))


def samples(text: str) -> Samples:
    """Name, labels and value of each sample of an exposition."""
    found = (_SAMPLE.fullmatch(line) for line in text.splitlines() if not line.startswith("#"))
    return [(m["name"], dict(_LABEL.findall(m["labels"] or "")), float(m["value"])) for m in found if m]


def total(of: Samples, name: str, **labels: str) -> float:
    """The sum of the samples of this name that have these labels."""
    return sum(v for n, have, v in of if n == name and all(have.get(k) == text for k, text in labels.items()))


def patches(api: Api) -> float:
    """PATCH requests to Nodes and NodeAdmissions that the API server carried out so far."""
    found = samples(api.text("/metrics"))
    return sum(
        total(found, "apiserver_request_total", verb="PATCH", code="200", resource=resource)
        for resource in ("nodes", "nodeadmissions")
    )


@dataclass
class Admitter:
    """A running admitter, asked at its own page."""

    port: int
    pid: int

    def metrics(self) -> Samples:
        """Its metrics; none while it does not listen."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=10) as answer:
                return samples(answer.read().decode())
        except OSError:
            return []

    def value(self, name: str) -> float:
        """The sum of one of its metrics."""
        return total(self.metrics(), f"muster_admitter_{name}")

    def wait_for(self, what: str, timeout_s: float, **at_least: float) -> None:
        """Until each of these metrics has come so far; `ready` is nodes{state="ready"}. Raises TimeoutError."""
        end_s = time.monotonic() + timeout_s
        while True:
            now = self.metrics()
            have = {name: total(now, f"muster_admitter_{name}") for name in at_least}
            if "ready" in have:
                have["ready"] = total(now, "muster_admitter_nodes", state="ready")
            if all(have[name] >= value for name, value in at_least.items()):
                return
            if time.monotonic() > end_s:
                raise TimeoutError(f"{what} did not happen within {timeout_s:g} s: {have}, wanted {at_least}")
            time.sleep(_STEADY_POLL_S)

    def wait_idle(self, timeout_s: float) -> None:
        """Until no node waits to be looked at. Raises TimeoutError."""
        end_s = time.monotonic() + timeout_s
        while self.value("queue_depth") > 0:
            if time.monotonic() > end_s:
                raise TimeoutError(f"nodes still wait to be looked at after {timeout_s:g} s")
            time.sleep(_STEADY_POLL_S)


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which this share of them lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")
