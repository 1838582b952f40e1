"""What the agent has seen, as numbers for the textfile collector of node_exporter, where no DCGM counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.system import exposition
from gpu_burnin.system.exposition import Family, Sample
from gpu_burnin.system.files import write_atomic
from gpu_burnin.telemetry.vitals import Vital, Vitals

FILE = "gpu_burnin_watch.prom"
# Written that often though nothing changed: its age tells that the agent lives.
_EVERY_S = 30.0


@dataclass(frozen=True)
class Readings:
    """What there is to tell. `sources` are those that the agent reads, and whether it can; `vitals` None: no reading.

    `expected` is how many GPUs the newest burn-in had; `xids` counts those of this boot by PCI address and the runtime
    column of the XID policy; `nvlinks` is the most that each GPU had up in this boot, by UUID; `burning` while a
    burn-in runs.
    """

    vitals: Vitals | None
    sources: Mapping[str, bool]
    expected: int | None
    xids: Mapping[tuple[str, str], int]
    nvlinks: Mapping[str, int]
    burning: bool


def most_links(vitals: Vitals, before: Mapping[str, int]) -> dict[str, int]:
    """The most NVLinks that each GPU had up, by UUID: the burn-in has judged whether these are all."""
    now = {gpu.uuid: gpu.nvlinks for gpu in vitals.gpus if gpu.uuid and gpu.nvlinks}
    return {**before, **{uuid: max(links, before.get(uuid, 0)) for uuid, links in now.items()}}


class Numbers:
    """Keeps the file up to date. `path` None: nobody reads it. `unix_s` is the wall clock."""

    def __init__(self, path: Path | None, unix_s: Callable[[], float]) -> None:
        self._path, self._unix_s = path, unix_s
        self._due_s = 0.0
        self.problem = ""

    def update(self, readings: Callable[[], Readings], now_s: float, *, changed: bool) -> None:
        """Write when it is time, or when something may have changed; `problem` is why it could not be written."""
        if self._path is None or not (changed or now_s >= self._due_s):
            return
        self._due_s = now_s + _EVERY_S
        try:
            write_atomic(self._path, page(readings(), self._unix_s()), mode=0o644)
            self.problem = ""
        except OSError as error:
            self.problem = f"{self._path} cannot be written ({error.strerror}), so node_exporter shows what was before"


def page(readings: Readings, unix_s: float) -> bytes:
    """All numbers; a value that could not be read has no sample."""
    return exposition.page("gpu_burnin_watch_", _families(readings, unix_s)).encode()


def _families(readings: Readings, unix_s: float) -> Iterator[Family]:
    gpus = readings.vitals.gpus if readings.vitals else ()
    index = {gpu.pci_bus_id: str(gpu.index) for gpu in gpus if gpu.pci_bus_id}

    def of_each(value: Callable[[Vital], float | None]) -> list[Sample]:
        return [({"gpu": str(gpu.index)}, value(gpu)) for gpu in gpus if not gpu.lost]

    yield Family("last_look_timestamp_seconds", "gauge", "When the agent wrote this, Unix time.", [({}, unix_s)])
    yield Family(
        "source_up",
        "gauge",
        "1 when the agent can read this source.",
        [({"source": name}, float(up)) for name, up in readings.sources.items()],
    )
    yield Family(
        "burnin_running", "gauge", "1 while a burn-in runs, for which DCGM pauses.", [({}, float(readings.burning))]
    )
    yield Family("gpus_expected", "gauge", "GPUs that the newest burn-in had.", [({}, readings.expected)])
    answering = None if readings.vitals is None else sum(not gpu.lost for gpu in gpus)
    yield Family("gpus", "gauge", "GPUs that answer their driver.", [({}, answering)])
    yield Family(
        "xids_total",
        "counter",
        "XIDs of this boot, by what the policy does about them while users work.",
        [({"gpu": index.get(bus, bus), "class": kind}, count) for (bus, kind), count in readings.xids.items()],
    )
    yield Family(
        "ecc_uncorrected_total",
        "counter",
        "Uncorrectable memory errors since the driver was loaded.",
        of_each(lambda gpu: gpu.uncorrected),
    )
    yield Family(
        "remap_pending",
        "gauge",
        "1 when a row of memory waits for a reset to be replaced.",
        of_each(lambda gpu: gpu.remap_pending),
    )
    yield Family("remap_failed", "gauge", "1 when a row could not be replaced.", of_each(lambda gpu: gpu.remap_failure))
    yield Family(
        "clocks_event_reasons",
        "gauge",
        "Why the clocks are held down, bits of nvmlClocksEventReasons.",
        of_each(lambda gpu: gpu.clocks_event_reasons),
    )
    yield Family(
        "nvlinks_down",
        "gauge",
        "NVLinks that were up in this boot and are not.",
        of_each(lambda gpu: _links_down(gpu, readings.nvlinks)),
    )
    yield Family(
        "nvlink_errors_total",
        "counter",
        "What the NVLinks that are up count, by kind.",
        [
            ({"gpu": str(gpu.index), "kind": kind}, count)
            for gpu in gpus
            if not gpu.lost
            for kind, count in gpu.nvlink_errors.items()
        ],
    )
    yield Family(
        "fabric_state",
        "gauge",
        "Whether the GPU has joined its fabric, nvmlGpuFabricState_t: 3 when it has.",
        of_each(lambda gpu: gpu.fabric_state),
    )
    yield Family(
        "fabric_healthy",
        "gauge",
        "1 when the fabric has no complaint of a GPU that has joined it.",
        of_each(lambda gpu: gpu.fabric_healthy),
    )


def _links_down(gpu: Vital, most: Mapping[str, int]) -> int | None:
    """None where the GPU had no link in this boot, as a card without a bridge, or could not say."""
    known = most.get(gpu.uuid)
    return None if known is None or gpu.nvlinks is None else known - gpu.nvlinks
