"""What Prometheus needs for a fleet: series, samples, disk, memory. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

GIB = 2**30
DAY_S = 86400
# up and scrape_*, which Prometheus adds to each target; three of them for the feature extra-scrape-metrics.
SERIES_OF_A_TARGET = 8
# Prometheus, "Storage": a sample takes 1 to 2 bytes on average. The larger one; the index is in it.
BYTES_PER_SAMPLE = 2.0
# The log of what is in no block yet: a block is cut after 3 hours at most, the log behind it 1.5 hours later.
# `make bench-monitoring` prints what it measured.
LOG_BYTES_PER_SAMPLE = 8.0
LOG_S = 4.5 * 3600
# Resident memory for each series that is read now, with what Go's collector leaves lying: `make bench-monitoring`
# prints what it measured. Queries come on top.
MEMORY_PER_SERIES = 8 * 1024
MEMORY_BASE_BYTES = GIB // 2
# Prometheus, "Storage": the limit at 80 to 85 % of the disk, because blocks are rewritten before the old ones go.
SHARE_OF_DISK = 0.8
# Jobs that only a fleet has that asks for what they are of (fleet_scale, fleet_node_dns).
ON_DEMAND = frozenset({"node_dns", "scaler"})


@dataclass(frozen=True)
class Need:
    """What a fleet takes: series, samples a second, bytes on disk that Prometheus may keep, bytes of memory."""

    series: int
    samples_per_s: float
    kept_bytes: int
    memory_bytes: int

    @property
    def disk_bytes(self) -> int:
        """Room on the file system, with what rewriting takes for a while."""
        return int(self.kept_bytes / SHARE_OF_DISK)


def fleet_series(kept: Mapping[str, Sequence[Mapping[str, Any]]], targets: Mapping[str, int]) -> int:
    """Series of all targets; `kept` is files/series.yaml, `targets` the number of targets of each of its jobs.

    Raises FleetError for a job that only one of the two knows.
    """
    if unknown := set(targets) ^ set(kept) - (ON_DEMAND - set(targets)):
        raise FleetError(f"{', '.join(sorted(unknown))}: a job needs targets and an entry in files/series.yaml; add it")
    return sum(
        count * (SERIES_OF_A_TARGET + sum(entry["series"] for entry in kept[job])) for job, count in targets.items()
    )


def planned_targets(
    jobs: Mapping[str, Sequence[str]], groups: Mapping[str, Sequence[str]], planned_nodes: int
) -> dict[str, int]:
    """How many targets each job has when everything planned is there; `jobs` has the hosts of each as they are now.

    Every planned node may have GPUs. Hosts that are no nodes are not in the plan.
    """
    nodes = {host for group in ("gpu_nodes", "system_nodes") for host in groups.get(group, ())}
    others = len(set(groups.get("all", ())) - nodes)
    now = {job: len(hosts) for job, hosts in jobs.items()}
    return now | {
        "apiserver": len(groups.get("kube_apiserver", ())),
        "node": planned_nodes + others,
        "gpu": planned_nodes,
        # Without `fleet_node_dns` no host has it.
        "node_dns": planned_nodes if "node_dns" in jobs else 0,
    }


def need(series: int, interval_s: float, retention_days: float) -> Need:
    """What `series` take, each read every `interval_s`."""
    samples_per_s = series / interval_s
    kept = samples_per_s * (retention_days * DAY_S * BYTES_PER_SAMPLE + LOG_S * LOG_BYTES_PER_SAMPLE)
    return Need(series, samples_per_s, int(kept), MEMORY_BASE_BYTES + series * MEMORY_PER_SERIES)


def days_that_fit(series: int, interval_s: float, kept_bytes: float) -> float:
    """How many days of `series` fit into `kept_bytes`; 0 where not even the log does."""
    samples_per_s = series / interval_s
    return max(0.0, (kept_bytes / samples_per_s - LOG_S * LOG_BYTES_PER_SAMPLE) / (DAY_S * BYTES_PER_SAMPLE))


def disk_problem(wanted: Need, room_bytes: float, folder: str) -> str | None:
    """Why the disk is too small, with what to do; None where it is not."""
    if room_bytes >= wanted.disk_bytes:
        return None
    return (
        f"{folder} has {room_bytes / GIB:,.1f} GiB for Prometheus, and {wanted.series:,} series need "
        f"{wanted.disk_bytes / GIB:,.1f} GiB; give it a larger disk, lower fleet_monitoring_retention_days, or say "
        "with fleet_monitoring_disk_gib what it may take"
    )


def memory_problem(wanted: Need, memory_bytes: float) -> str | None:
    """Why the memory is too small, with what to do; None where it is not."""
    if memory_bytes >= wanted.memory_bytes:
        return None
    return (
        f"the host has {memory_bytes / GIB:,.1f} GiB of memory, and {wanted.series:,} series need "
        f"{wanted.memory_bytes / GIB:,.1f} GiB; give it more memory, correct fleet_planned_nodes, or set "
        "fleet_monitoring_allow_little_memory"
    )


def line(wanted: Need, days: float, room_bytes: float, memory_bytes: float) -> str:
    """The calculation in one line."""
    return (
        f"{wanted.series:,} series, {wanted.samples_per_s:,.0f} samples a second: {days:,.0f} days take "
        f"{wanted.disk_bytes / GIB:,.1f} of {room_bytes / GIB:,.1f} GiB of disk and "
        f"{wanted.memory_bytes / GIB:,.1f} of {memory_bytes / GIB:,.1f} GiB of memory"
    )
