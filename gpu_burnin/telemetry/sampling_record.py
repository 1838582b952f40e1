"""What the parent keeps of one GPU's sampler: bounded memory however long the run. Standard library only."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from gpu_burnin.telemetry.counters import CounterTrack
from gpu_burnin.telemetry.findings import Counter, GpuEvent, GpuSeries, Source
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import Gpu

SAMPLES, EVENTS = "nvml_samples", "nvml_events"
REASONS = "clocks_event_reasons"
# Sampled values that have a mean; the names are those of sampler_columns.COLUMNS.
CONTINUOUS = (
    "temperature_c", "temperature_margin_c", "temperature_memory_c", "power_w", "energy_mj", "clock_sm_mhz",
    "clock_memory_mhz", "utilization_percent", "pcie_generation",
)  # fmt: skip
MAX_BUCKETS = 2000
# Samples come together once a second; a busy host may keep the sampler waiting a little.
HOLE_S = 3.0
# NVML's words for a GPU that is no longer there.
LOST = frozenset({"gpu_is_lost", "gpu_not_found", "not_found"})
_HEAD = 3
_Values: TypeAlias = tuple[float | None, ...]
# End of the bucket, number of samples, bits, then lowest, mean and highest of each of CONTINUOUS; NaN: not read.
_Row: TypeAlias = "array[float]"


def _row(t_s: float, samples: int, reasons: int | None, columns: Mapping[str, Sequence[float]]) -> _Row:
    row = array("d", (t_s, samples, math.nan if reasons is None else reasons))
    for name in CONTINUOUS:
        row.extend(columns.get(name, (math.nan,) * 3))
    return row


def _joined(first: _Row, second: _Row) -> _Row:
    weight = first[1] + second[1]
    row = array("d", (second[0], weight, _either(first[2], second[2])))
    for at in range(_HEAD, len(first), 3):
        lowest, mean, highest = first[at : at + 3]
        if math.isnan(mean):
            row.extend(second[at : at + 3])
        elif math.isnan(second[at + 1]):
            row.extend((lowest, mean, highest))
        else:
            both = (mean * first[1] + second[at + 1] * second[1]) / weight
            row.extend((min(lowest, second[at]), both, max(highest, second[at + 2])))
    return row


def _either(first: float, second: float) -> float:
    if math.isnan(first) or math.isnan(second):
        return second if math.isnan(first) else first
    return int(first) | int(second)


class Thinned:
    """Buckets of samples, joined two by two whenever there are too many: no extreme and no bit is ever lost.

    Seven days of seconds end in some 1200 buckets of 512 seconds. `most` is even.
    """

    def __init__(self, most: int = MAX_BUCKETS) -> None:
        self._most = most
        self._rows: list[_Row] = []
        self._width = 1  # of a full bucket, in additions
        self._filled = 1  # of the last bucket

    def add(self, t_s: float, samples: int, reasons: int | None, columns: Mapping[str, Sequence[float]]) -> None:
        """Take one second that ended at `t_s`: the bits, and lowest, mean and highest value of each column."""
        row = _row(t_s, samples, reasons, columns)
        if self._rows and self._filled < self._width:
            self._rows[-1] = _joined(self._rows[-1], row)
            self._filled += 1
        else:
            if len(self._rows) == self._most:
                self._rows = [_joined(*self._rows[at : at + 2]) for at in range(0, self._most, 2)]
                self._width *= 2
            self._rows.append(row)
            self._filled = 1

    def t_s(self) -> tuple[float, ...]:
        """When each bucket ended."""
        return tuple(row[0] for row in self._rows)

    def column(self, name: str, part: int) -> _Values:
        """One value for each bucket: 0 the lowest, 1 the mean, 2 the highest; for the bits those set in it."""
        at = 2 if name == REASONS else _HEAD + 3 * CONTINUOUS.index(name) + part
        return tuple(None if math.isnan(row[at]) else round(row[at], 3) for row in self._rows)

    def columns(self, part: int) -> dict[str, _Values]:
        """All columns with at least one value; the bits only beside the means."""
        names = (*CONTINUOUS, REASONS) if part == 1 else CONTINUOUS
        found = {name: self.column(name, part) for name in names}
        return {name: values for name, values in found.items() if any(value is not None for value in values)}


class Record:
    """One GPU's telemetry as it comes in: messages of its sampler, and how the sampler ended."""

    def __init__(self, gpu: Gpu, interval_s: float, stall_s: float) -> None:
        self.gpu = gpu
        self.ready = False
        self.finished = False
        self.simulated = False
        self._interval_s, self._stall_s = interval_s, stall_s
        self._counters = CounterTrack()
        self._thinned = Thinned()
        self._samples = self._late = 0
        self._bits: dict[int, int] = {}
        self._limits: dict[str, int] = {}
        self._events: dict[tuple[str, int], GpuEvent] = {}
        self._event_kinds: list[str] = []
        self._events_why = "the sampler did not start"
        self._lost = ""
        self._first_s = 0.0
        self._last_s: float | None = None
        self._gap_s = self._unwatched_s = 0.0
        self._trouble = ""

    def feed(self, message: Mapping[str, Any]) -> dict[str, Any] | None:
        """Take one message; for a sample the event for the display. KeyError, TypeError or ValueError if garbled."""
        match message["type"]:
            case "ready":
                if not message["counters"]:
                    raise ValueError("no counters")
                self.ready, self._first_s = True, float(message["t_s"])
                self._last_s = self._first_s
                self._counters.feed(message["counters"])
                self._limits, self.simulated = dict(message["limits"]), bool(message["simulated"])
                self._event_kinds, self._events_why = list(message["events"]), message["events_why"]
            case "sample":
                return self._sample(message)
            case "counters":
                self._counters.feed(message["counters"])
            case "event":
                self._event(message)
            case "lost":
                self._lost = message["why"]
            case "dead":
                self.trouble(f"NVML says {message['why']}")
                self._lost = message["why"] if message["why"] in LOST else ""
            case "finished":
                self.finished, self._events_why = True, message["events_why"]
            case other:
                raise ValueError(f"unknown message {other!r}")
        return None

    def trouble(self, what: str) -> None:
        """Note what went wrong with the sampler; the first thing counts."""
        self._trouble = self._trouble or what

    def ended(self, now_s: float) -> None:
        """The sampler has nothing more to say; `now_s` is when it should have taken its last sample."""
        if self.ready and not self.finished:
            self.trouble("the sampler ended before the run did")
        self._saw(now_s)

    def _saw(self, t_s: float) -> None:
        if self._last_s is None:
            return
        gap_s = t_s - self._last_s
        self._gap_s = max(self._gap_s, gap_s)
        if gap_s > HOLE_S:
            self._unwatched_s += gap_s
        self._last_s = t_s

    def _sample(self, message: Mapping[str, Any]) -> dict[str, Any]:
        t_s, columns = float(message["t_s"]), message["columns"]
        self._saw(t_s)
        self._samples += int(message["samples"])
        self._late += int(message["late"])
        for bit, count in message["bits"].items():
            self._bits[int(bit)] = self._bits.get(int(bit), 0) + count
        self._thinned.add(t_s, message["samples"], message["reasons"], columns)
        shown: dict[str, Any] = {"event": "sample", "gpu": self.gpu.uuid}
        return shown | {name: round(mean, 1) for name, (_, mean, _) in columns.items()} | {REASONS: message["reasons"]}

    def _event(self, message: Mapping[str, Any]) -> None:
        kind, data, count = message["kind"], int(message["data"]), int(message["count"])
        known = self._events.get((kind, data))
        count, t_s = (known.count + count, known.t_s) if known else (count, float(message["t_s"]))
        self._events[kind, data] = GpuEvent(self.gpu.uuid, kind, data, count, t_s)

    def counters(self) -> tuple[Counter, ...]:
        """The counters before and after."""
        return self._counters.result(self.gpu.uuid, self.finished)

    def series(self) -> GpuSeries:
        """The samples."""
        thinned = self._thinned
        return GpuSeries(
            gpu=self.gpu.uuid,
            t_s=thinned.t_s(),
            columns=thinned.columns(1),
            lowest=thinned.columns(0),
            highest=thinned.columns(2),
            samples=self._samples,
            interval_s=self._interval_s,
            reason_samples=dict(sorted(self._bits.items())),
            limits=self._limits,
            lost=self._lost,
            watched_share=self._watched_share(),
        )

    def _watched_share(self) -> float:
        whole_s = (self._last_s or 0.0) - self._first_s
        return 1.0 - self._unwatched_s / whole_s if whole_s > 0 else 1.0

    def events(self) -> tuple[GpuEvent, ...]:
        """The events in the order in which they first came."""
        return tuple(sorted(self._events.values(), key=lambda event: event.t_s))

    def xids(self) -> tuple[XidEvent, ...]:
        """The XIDs among the events, in the form of the kernel log's."""
        return tuple(
            XidEvent(
                xid=event.data,
                pci_bus_id=self.gpu.pci_bus_id,
                pid=None,
                text=f"reported by NVML: XID {event.data}, {event.count} times",
                monotonic_us=int(event.t_s * 1e6),
                sxid=False,
            )
            for event in self.events()
            if event.kind == "xid"
        )

    def sources(self) -> tuple[Source, ...]:
        """Whether samples and events came to the end, and what was wrong if not."""
        stalled = f"no sample for {self._gap_s:.1f} s" if self._gap_s > self._stall_s else ""
        wrong = "; ".join(part for part in (self._lost, self._trouble, stalled) if part)
        taken = f"{self._samples} samples, one each {self._interval_s:g} s; {self._late} missed"
        watching = not wrong and bool(self._event_kinds) and not self._events_why
        why = "" if watching else self._events_why or wrong
        return (
            Source(SAMPLES, self.gpu.uuid, not wrong, wrong or taken),
            Source(EVENTS, self.gpu.uuid, watching, why or ", ".join(self._event_kinds)),
        )
