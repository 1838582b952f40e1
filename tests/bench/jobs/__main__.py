"""What a fleet's jobs get: `make bench-jobs [PHASES=...]`; PHASES are some of shares, kills, sizes, with commas.

Real etcd, API server, controller manager, scheduler and Kueue on this machine, nodes without machines, pods that kwok
runs. Kueue cannot run on simulated time, so jobs last seconds where they last hours: SCALE says how many. Ratios of one
run say more than seconds. Nothing is asserted on the clock. MUSTER_SEED gives another draw.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path

from ansible_collections.muster.fleet.plugins.module_utils.jobs.teams import Team

from gpu_burnin.admission.client import ApiError
from tests.bench.admission.measure import Stopwatch, memory_mib
from tests.bench.jobs.fleet import Fleet, fleet
from tests.bench.jobs.load import Watched, bound_s, first_fit_s, random_gangs, run, shares
from tests.integration.jobs_stack import GPUS, MODEL
from tests.integration.kube import Part, until

PHASES = ("shares", "kills", "sizes")
NODES, JOBS, MOST_NODES = 256, 500, 64
SECONDS = (4.0, 12.0)
# What such a job lasts in a fleet, in the middle.
HOURS = 8.0
SCALE = HOURS * 3600 / (sum(SECONDS) / 2)
WEIGHTS = {"audio": 1, "vision": 2, "speech": 3, "robots": 4, "text": 5}
# Of each team its own; the rest of the fleet is borrowed by weight.
OWN_NODES = 16
KILLS = 50
SIZES = (100, 1000, 7500)
SIZE_SHARES = (0.1, 0.5, 1.0)


def main() -> None:
    """The phases, each printed when it is over."""
    phases = sys.argv[1].split(",") if len(sys.argv) > 1 else PHASES
    if unknown := set(phases) - set(PHASES):
        sys.exit(f"{', '.join(sorted(unknown))}: no such phase; choose from {', '.join(PHASES)}")
    seed = int(os.environ.get("MUSTER_SEED", "1"))
    say(f"seed {seed}; jobs of {SECONDS[0]:g} to {SECONDS[1]:g} s, 1 s here for {SCALE:.0f} s of a fleet")
    for phase in phases:
        if phase == "sizes":
            for nodes in SIZES:
                measure_size(nodes)
        else:
            measure_load(random.Random(f"{phase} {seed}"), kills=KILLS if phase == "kills" else 0)


def teams() -> list[Team]:
    """Five teams with the same own part and other weights."""
    return [Team(name, {MODEL: OWN_NODES * GPUS}, weight=weight) for name, weight in WEIGHTS.items()]


def expected_gpus() -> dict[str, float]:
    """What each team should have while all want more: its own, and its part of the rest by weight."""
    rest = (NODES - OWN_NODES * len(WEIGHTS)) * GPUS
    total = sum(WEIGHTS.values())
    return {name: OWN_NODES * GPUS + rest * weight / total for name, weight in WEIGHTS.items()}


def measure_load(rng: random.Random, kills: int) -> None:
    """500 random jobs of five teams, with services that are killed where `kills` is not 0."""
    wanted = expected_gpus()
    gangs = random_gangs(rng, JOBS, wanted, MOST_NODES, SECONDS)
    bound, fit = bound_s(gangs, NODES), first_fit_s(gangs, NODES)
    at = [rng.uniform(5, bound) for _ in range(kills)]
    with (
        tempfile.TemporaryDirectory(prefix="muster-jobs-") as directory,
        fleet(Path(directory), NODES, teams()) as here,
    ):
        seen = run(here, gangs, at, rng)
    say(
        f"{len(gangs)} jobs of 2 to {MOST_NODES} nodes on {NODES} nodes"
        + (f", {sum(seen.kills.values())} kills ({words(seen)})" if kills else "")
        + f": {len(seen.partial)} partial gangs, {len(seen.placed)} seen whole; "
        f"the longest that one stood half placed {seen.longest_half_s:.1f} s"
    )
    say(
        f"  ended after {seen.wall_s:.0f} s; first fit {fit:.0f} s, no scheduler is faster than {bound:.0f} s: "
        f"utilisation {bound / seen.wall_s:.0%}, of first fit {fit / seen.wall_s:.0%}"
    )
    if not kills:
        show_shares(shares(seen, wanted), wanted)


def show_shares(got: dict[str, float], wanted: dict[str, float]) -> None:
    """What each team had while all waited, beside what its weight says."""
    if not got:
        say("  no moment in which every team waited: no shares")
        return
    total = sum(got.values())
    for name, gpus in got.items():
        share, should = gpus / total, wanted[name] / sum(wanted.values())
        say(
            f"  {name:8} weight {WEIGHTS[name]}: {share:6.1%} of what was given, {should:6.1%} by weight "
            f"({share - should:+.1%})"
        )


def measure_size(nodes: int) -> None:
    """How long a gang of a tenth, the half and all of a fleet waits for its nodes, and what Kueue takes for it."""
    one = Team("text", {MODEL: nodes * GPUS})
    with tempfile.TemporaryDirectory(prefix="muster-jobs-") as directory, fleet(Path(directory), nodes, [one]) as here:
        for share in SIZE_SHARES:
            measure_gang(here, round(nodes * share))


def measure_gang(here: Fleet, nodes: int) -> None:
    """One gang: until Kueue has chosen its nodes, and until all of it is bound."""
    watch = Stopwatch([pid(here.jobs.kueue)])
    name, began = f"gang-{nodes}", time.monotonic()
    here.submit("text", name, nodes, seconds=3600)
    until("the quota", lambda: here.usage().get("text", 0) == nodes * GPUS, 600)
    chosen_s = time.monotonic() - began
    until("the gang", lambda: bound_pods(here) == nodes, 1800)
    bound_after_s = time.monotonic() - began
    say(
        f"{here.nodes} nodes, a gang of {nodes}: nodes chosen after {chosen_s:.1f} s, all bound after "
        f"{bound_after_s:.1f} s; Kueue {watch.cpu_s:.1f} CPU s, {memory_mib(pid(here.jobs.kueue)):.0f} MiB"
    )
    here.api.delete(f"/apis/batch/v1/namespaces/text/jobs/{name}?propagationPolicy=Foreground")
    until("the end of the gang", lambda: bound_pods(here) == 0 and not here.usage().get("text"), 1800)


def bound_pods(here: Fleet) -> int:
    """Pods that have a node; -1 where the API server cannot say now, which is behind its etcd by seconds."""
    try:
        return sum(bool(pod["spec"].get("nodeName")) for pod in here.api.items("/api/v1/namespaces/text/pods"))
    except ApiError as error:
        if "Too large resource version" not in str(error):
            raise
        return -1


def pid(part: Part) -> int:
    """The process of a part that runs."""
    assert part.running is not None
    return part.running.pid


def words(seen: Watched) -> str:
    """Which services were killed how often."""
    return ", ".join(f"{name} {count}" for name, count in sorted(seen.kills.items()))


def say(text: str) -> None:
    """A line of the result."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
