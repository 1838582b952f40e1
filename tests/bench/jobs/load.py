"""Random jobs on a fleet: what they got over time, whether any gang stood half placed, and how full the fleet was."""

from __future__ import annotations

import math
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tests.bench.jobs.fleet import Fleet
from tests.integration.kube import Part

SAMPLE_S = 0.5
# A gang of which some pods have nodes and others none for so long, with all services up, is partial: binding goes pod
# by pod, and takes its time.
PARTIAL_S = 60.0
PATIENCE_S = 3600.0
_DOWN_S = 1.0
_PROGRESS_S = 30.0


@dataclass(frozen=True)
class Gang:
    """A job: whole nodes, all at once."""

    team: str
    name: str
    nodes: int
    seconds: float


@dataclass
class Watched:
    """What was seen: GPUs given by team at each sample, teams that waited then, gangs that stood half placed."""

    at_s: list[float] = field(default_factory=list)
    given: list[Mapping[str, int]] = field(default_factory=list)
    waiting: list[frozenset[str]] = field(default_factory=list)
    half_since: dict[tuple[str, str], float] = field(default_factory=dict)
    longest_half_s: float = 0.0
    partial: set[tuple[str, str]] = field(default_factory=set)
    placed: set[tuple[str, str]] = field(default_factory=set)
    kills: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0


def random_gangs(
    rng: random.Random, count: int, expected: Mapping[str, float], most_nodes: int, seconds: tuple[float, float]
) -> list[Gang]:
    """Gangs of 2 to `most_nodes` nodes, their logarithm even; each team brings work in proportion to its share."""
    teams, weights = list(expected), list(expected.values())
    return [
        Gang(
            rng.choices(teams, weights)[0],
            f"job-{number}",
            round(2 * (most_nodes / 2) ** rng.random()),
            round(rng.uniform(*seconds), 1),
        )
        for number in range(count)
    ]


def run(fleet: Fleet, gangs: Sequence[Gang], kills: Sequence[float] = (), rng: random.Random | None = None) -> Watched:
    """Submit all gangs and watch until the last has ended.

    At each of `kills` (seconds after the start) one of Kueue, scheduler and controller manager is killed, and started
    again a second later. Raises TimeoutError when the gangs do not come to their end.
    """
    seen, began = Watched(), time.monotonic()
    for gang in gangs:
        fleet.submit(gang.team, gang.name, gang.nodes, gang.seconds)
    services_up_since = began
    pending_kills = sorted(kills)
    parts = {
        "kueue": fleet.jobs.kueue,
        "scheduler": fleet.jobs.scheduler,
        "controller manager": fleet.jobs.controller_manager,
    }
    nodes = {(gang.team, gang.name): gang.nodes for gang in gangs}
    shown = began
    while True:
        now = time.monotonic()
        if pending_kills and now - began >= pending_kills[0]:
            pending_kills.pop(0)
            name = (rng or random.Random(0)).choice(list(parts))
            kill(parts[name])
            seen.kills[name] += 1
            services_up_since = time.monotonic()
        left = _sample(fleet, seen, nodes, now - began, services_up_since - began)
        if not left:
            break
        if now - shown >= _PROGRESS_S:
            shown = now
            _show_progress(len(gangs), left, now - began)
        if now - began > PATIENCE_S:
            raise TimeoutError(f"{left} jobs did not end within {PATIENCE_S:g} s")
        time.sleep(max(0.0, SAMPLE_S - (time.monotonic() - now)))
    seen.wall_s = time.monotonic() - began
    return seen


def kill(part: Part) -> None:
    """End a service as a lost machine does, and start it again."""
    part.kill()
    # The time that a lost process is away, no condition to wait for.
    time.sleep(_DOWN_S)
    part.start()


def shares(seen: Watched, expected: Mapping[str, float]) -> dict[str, float]:
    """The mean of GPUs given by team while every team waited for more, and {} when that never was so."""
    busy = [given for given, waiting in zip(seen.given, seen.waiting, strict=True) if waiting >= set(expected)]
    return {team: sum(given.get(team, 0) for given in busy) / len(busy) for team in expected} if busy else {}


def first_fit_s(gangs: Sequence[Gang], nodes: int) -> float:
    """How long a scheduler that knows all and costs nothing takes: first fit in the order of submission, no teams."""
    free, now, waiting = nodes, 0.0, list(gangs)
    running: list[tuple[float, int]] = []
    while waiting or running:
        for gang in list(waiting):
            if gang.nodes <= free:
                free -= gang.nodes
                running.append((now + gang.seconds, gang.nodes))
                waiting.remove(gang)
        running.sort()
        now, done = running.pop(0)
        free += done
    return now


def bound_s(gangs: Sequence[Gang], nodes: int) -> float:
    """No scheduler is faster: all node-seconds on all nodes, or the longest gang."""
    return max(sum(gang.nodes * gang.seconds for gang in gangs) / nodes, max(gang.seconds for gang in gangs))


def _sample(fleet: Fleet, seen: Watched, nodes: Mapping[tuple[str, str], int], at_s: float, up_since_s: float) -> int:
    """Note what is given and which gangs are half placed; gives the jobs that have not ended."""
    jobs = {
        (one["metadata"]["namespace"], one["metadata"]["name"]): one for one in fleet.api.items("/apis/batch/v1/jobs")
    }
    left = {key: one for key, one in jobs.items() if not _ended(one)}
    bound: Counter[tuple[str, str]] = Counter()
    for pod in fleet.api.items("/api/v1/pods"):
        key = (pod["metadata"]["namespace"], pod["metadata"]["labels"].get("job-name", ""))
        if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]:
            bound[key] += 1
    half = {key for key in left if 0 < bound[key] < nodes[key]}
    for key in half:
        since = max(seen.half_since.setdefault(key, at_s), up_since_s)
        seen.longest_half_s = max(seen.longest_half_s, at_s - since)
        if at_s - since >= PARTIAL_S:
            seen.partial.add(key)
    for key in seen.half_since.keys() - half:
        del seen.half_since[key]
    seen.placed |= {key for key, count in bound.items() if count >= nodes.get(key, math.inf)}
    seen.at_s.append(at_s)
    seen.given.append(fleet.usage())
    seen.waiting.append(frozenset(team for (team, _), one in left.items() if one["spec"].get("suspend")))
    return len(left)


def _show_progress(count: int, left: int, since_s: float) -> None:
    """Beside the result: how far it is, and the time left at the pace so far."""
    done = count - left
    rest = f", about {since_s / done * left:.0f} s left" if done else ""
    print(f"{done} of {count} jobs have ended after {since_s:.0f} s{rest}", file=sys.stderr, flush=True)


def _ended(job: Mapping[str, object]) -> bool:
    status = job.get("status") or {}
    conditions = status.get("conditions") or [] if isinstance(status, Mapping) else []
    return any(one["type"] in ("Complete", "Failed") and one["status"] == "True" for one in conditions)
