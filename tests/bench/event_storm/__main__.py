"""What a storm of events does to everything else: `python -m tests.bench.event_storm [--rounds N]`.

A writer of ConfigMaps goes through a real API server to the main etcd, which flushes to a file system of its own on a
loop device: in memory, so that no other work of this machine is in its way, or in --directory. In turns of one run it
writes alone, while events are written straight into the events etcd or into the main one, and while they come
through the API server, whose events go to the events etcd (as the role sets it) or to the main one.

The hosts that are one machine here are kept apart as far as two cores allow: API servers and main etcd have the first
core; the events etcd, its data in memory, and whoever makes the storm have the second and give way to the writer.
The storm speaks to etcd's JSON gateway, which costs that etcd more than the API server's way.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench.admission.api import Api
from tests.bench.admission.measure import Samples, Stopwatch, quantile, samples, total
from tests.bench.event_storm.site import CONFIG_MAPS, FIRST_CORE, SECOND_CORE, WRITERS, Site, site
from tests.bench.event_storm.storm import STORM_THREADS, Storm, in_threads, straight, through
from tests.integration.disk import can_be_mounted, loop_disk
from tests.integration.kube_files import defaults

GOAL = 0.20
WRITES_PER_S = 60.0
DISK_BYTES = 3 * 1024**3  # sparse: what the storms of all turns write
SHARED_MEMORY = Path("/dev/shm")
FSYNC = "etcd_disk_wal_fsync_duration_seconds_bucket"
IN_USE = "etcd_mvcc_db_total_size_in_use_in_bytes"
EVENT_TTL_S = 3600  # --event-ttl, which the role leaves at its default
# Below this share of what was asked, or above this share of a core, the machine was the limit.
CARRIED, BUSY = 0.95, 0.95


@dataclass(frozen=True)
class Turn:
    """What a turn showed: latencies of the writer, p99 of the main etcd's flushes, events a second, by how many bytes
    the events etcd grew for each, how busy the two cores were, and by the parts of the benchmark alone."""

    writes_ms: Sequence[float]
    fsync_p99_ms: float
    events_per_s: float
    event_bytes: float
    cores: Sequence[float]
    own: Sequence[float]

    @property
    def p50_ms(self) -> float:
        """Median of the writes."""
        return statistics.median(self.writes_ms)

    @property
    def p99_ms(self) -> float:
        """99th percentile of the writes."""
        return quantile(self.writes_ms, 0.99)


@dataclass(frozen=True)
class Scenario:
    """Where events go (`straight` into an etcd, or through an API server), and which API server the writer uses."""

    name: str
    straight_to: str = ""
    through: str = ""
    writer: str = "split"
    asked_per_s: float = 0.0


def scenarios(events_per_s: float) -> list[Scenario]:
    """All, the quiet one first: each of the others is compared with it."""
    return [
        Scenario("no events"),
        Scenario("straight into the events etcd", straight_to="events", asked_per_s=events_per_s),
        Scenario("straight into the main etcd", straight_to="main", asked_per_s=events_per_s),
        Scenario("through the API server, events in an etcd of their own", through="split"),
        Scenario("through the API server, events in the main etcd", through="joined", writer="joined"),
    ]


def write(api: Api, seconds: float) -> list[float]:
    """Milliseconds of each write of the turn, at a steady rate from some threads."""
    found: list[float] = []
    end_s = time.monotonic() + seconds

    def run(number: int) -> None:
        path, body = f"{CONFIG_MAPS}/writer-{number}", {"metadata": {"name": f"writer-{number}"}}
        due_s = time.monotonic() + number / WRITES_PER_S
        while due_s < end_s:
            time.sleep(max(0.0, due_s - time.monotonic()))
            began_s = time.monotonic()
            api.request("PUT", path, {**body, "data": {"at": str(began_s)}})
            found.append((time.monotonic() - began_s) * 1000)
            # A late write is not made up for: a slow server would else see a burst.
            due_s = max(due_s + WRITERS / WRITES_PER_S, time.monotonic())

    in_threads(run, WRITERS)
    return found


def etcd_numbers(url: str) -> Samples:
    """The metrics of an etcd."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as answer:
        return samples(answer.read().decode())


def bucket_quantile(before: Samples, after: Samples, name: str, share: float) -> float:
    """A quantile of what a histogram has counted in between, straight within its bucket as Prometheus does it."""
    limits = sorted({float(labels["le"]) for found, labels, _ in after if found == name})
    counts = [total_of(after, name, limit) - total_of(before, name, limit) for limit in limits]
    if not counts or not counts[-1]:
        return float("nan")
    wanted, below, lower = share * counts[-1], 0.0, 0.0
    for limit, count in zip(limits, counts, strict=True):
        if count >= wanted:
            return lower if limit == float("inf") else lower + (limit - lower) * (wanted - below) / (count - below)
        below, lower = count, limit
    return float("nan")


def total_of(of: Samples, name: str, limit: float) -> float:
    """The count of one bucket."""
    return sum(value for found, labels, value in of if found == name and float(labels["le"]) == limit)


def busy_s() -> list[float]:
    """Seconds that each of the two cores was busy so far, whoever used it."""
    lines = Path("/proc/stat").read_text().splitlines()
    ticks = os.sysconf("SC_CLK_TCK")
    found = []
    for core in (FIRST_CORE, SECOND_CORE):
        fields = next(line.split()[1:] for line in lines if line.startswith(f"cpu{core} "))
        found.append((sum(map(int, fields[:8])) - int(fields[3]) - int(fields[4])) / ticks)
    return found


def take_turn(here: Site, scenario: Scenario, seconds: float) -> Turn:
    """One turn of a scenario."""
    storm = Storm(None)
    if scenario.straight_to:
        storm = Storm(straight, (here.etcd[scenario.straight_to], scenario.asked_per_s))
    elif scenario.through:
        server = here.servers[scenario.through]
        nodes = [Api.of(server, f"system:node:gpu-{n}", ["system:nodes"]) for n in range(STORM_THREADS)]
        storm = Storm(through, (nodes,))
    api = Api.of(here.servers[scenario.writer], "admin", ["muster:admins"])
    with storm:
        watches = [Stopwatch(here.pids[0]), Stopwatch([*here.pids[1], *storm.pids])]
        before, cores, began_s = numbers(here, storm), busy_s(), time.monotonic()
        writes_ms = write(api, seconds)
        took_s = time.monotonic() - began_s
        busy = [(late - early) / took_s for early, late in zip(cores, busy_s(), strict=True)]
        own = [watch.cpu_s / took_s for watch in watches]
        after = numbers(here, storm)
    fsync_ms = bucket_quantile(before.main, after.main, FSYNC, 0.99) * 1000
    events = after.events - before.events
    grown = total(after.of_events, IN_USE) - total(before.of_events, IN_USE)
    return Turn(writes_ms, fsync_ms, events / took_s, grown / events if events else float("nan"), busy, own)


@dataclass(frozen=True)
class Numbers:
    """At one time: metrics of the main etcd and of the events etcd, events acknowledged so far."""

    main: Samples
    of_events: Samples
    events: int


def numbers(here: Site, storm: Storm) -> Numbers:
    """All of them now."""
    return Numbers(etcd_numbers(here.etcd["main"]), etcd_numbers(here.etcd["events"]), storm.counted.value)


def of_turns(turns: Sequence[Turn], what: str) -> float:
    """The median of all turns."""
    return float(statistics.median(getattr(turn, what) for turn in turns))


def shares(turns: Sequence[Turn], what: str) -> list[float]:
    """The medians of the first and the second core."""
    return [statistics.median(getattr(turn, what)[core] for turn in turns) for core in (FIRST_CORE, SECOND_CORE)]


def limits(scenario: Scenario, turns: Sequence[Turn]) -> str:
    """Whether this machine was the limit, in words."""
    found = []
    carried = of_turns(turns, "events_per_s")
    if carried < CARRIED * scenario.asked_per_s:
        found.append(f"only {carried:,.0f} of {scenario.asked_per_s:,.0f} events a second were carried")
    for name, busy, own in zip(("first", "second"), shares(turns, "cores"), shares(turns, "own"), strict=True):
        if busy > BUSY:
            found.append(f"the {name} core was full" + ("" if own > BUSY else ", by others too"))
    return "; ".join(found)


def table(found: Mapping[Scenario, Sequence[Turn]]) -> str:
    """A row for each scenario, in Markdown; ratios are to the first one."""
    quiet = next(iter(found.values()))
    lines = [
        "| Events | Events a second | Writes p50 | Writes p99, all turns | p99 to that without | Flushes p99 "
        "| Cores busy, all and by these parts | The machine's limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for scenario, turns in found.items():
        ratio = of_turns(turns, "p99_ms") / of_turns(quiet, "p99_ms")
        missed = scenario.straight_to == "events" and ratio > 1 + GOAL
        cores, own = (" + ".join(f"{share:.0%}" for share in shares(turns, what)) for what in ("cores", "own"))
        lines.append(
            f"| {scenario.name} | {of_turns(turns, 'events_per_s'):,.0f} | {of_turns(turns, 'p50_ms'):.1f} ms "
            f"| {of_turns(turns, 'p99_ms'):.1f} ms ({min(t.p99_ms for t in turns):.1f} to "
            f"{max(t.p99_ms for t in turns):.1f}) | {ratio:.2f}{' **missed**' if missed else ''} "
            f"| {of_turns(turns, 'fsync_p99_ms'):.1f} ms | {cores}; {own} | {limits(scenario, turns)} |"
        )
    return "\n".join(lines)


def room(event_bytes: float, quota_bytes: float, per_s: float) -> str:
    """How long the quota of the events etcd lasts."""
    return (
        f"An event takes {event_bytes:,.0f} bytes of etcd. The quota of {quota_bytes / 2**30:g} GiB holds those of "
        f"{EVENT_TTL_S:,} s at {quota_bytes / event_bytes / EVENT_TTL_S:,.0f} a second; at {per_s:,.0f} a second it is "
        f"full after {quota_bytes / event_bytes / per_s / 60:.0f} minutes (computed)."
    )


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.event_storm")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--events-per-s", type=float, default=5000.0, help="straight into an etcd")
    parser.add_argument("--directory", type=Path, default=SHARED_MEMORY, help="where the disk of the main etcd lies")
    arguments = parser.parse_args()
    if not can_be_mounted():
        print("a disk for etcd needs root and loop devices", file=sys.stderr)
        return 2
    os.sched_setaffinity(0, {SECOND_CORE})
    began = os.getloadavg()[0]
    found: dict[Scenario, list[Turn]] = {scenario: [] for scenario in scenarios(arguments.events_per_s)}
    with (
        tempfile.TemporaryDirectory(dir=arguments.directory) as place,
        tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as memory,
        loop_disk(Path(place), DISK_BYTES) as disk,
        site(disk.mount_point, Path(memory)) as here,
    ):
        for _ in range(arguments.rounds):
            for scenario, turns in found.items():
                turns.append(take_turn(here, scenario, arguments.seconds))
    print(
        f"load {began:.0f} before it began; {arguments.rounds} rounds of {arguments.seconds:g} s a turn; "
        f"{WRITES_PER_S:g} writes a second; goal: p99 with events in an etcd of their own at most {GOAL:.0%} more\n"
    )
    print(table(found))
    own = next(turns for scenario, turns in found.items() if scenario.through == "split")
    print(f"\n{room(of_turns(own, 'event_bytes'), defaults('etcd')['etcd_quota_bytes'], arguments.events_per_s)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
