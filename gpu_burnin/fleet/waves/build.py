"""How long a roll of site.yml over bare nodes takes, from what was measured of its parts. Pure.

docs/operations/thousands-of-nodes.md has the table, and says of each term where it is from.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_burnin.fleet.roll.batches import batches
from gpu_burnin.fleet.waves.workers import CORE_WORKERS

# Processor seconds of the controller for a node that gets all of it.
COLD_CPU_S = 9.0
# Until a node's shard is through, with nothing else to do: its tasks one after the other, without the burn-in.
COLD_LATENCY_S = 480.0
# The burn-in of level standard, which no processor of the controller waits for.
BURNIN_S = 300.0
# First contact and the wait for admission, of each wave.
BETWEEN_S = 60.0
JOINS_PER_S = 5.0


@dataclass(frozen=True)
class Build:
    """One build: waves, the hours that the processors need, those of the waves, and of the joins."""

    nodes: int
    cores: int
    canary: int
    waves: int
    cpu_h: float
    waves_h: float
    joins_h: float

    @property
    def total_h(self) -> float:
        """Hours: a wave takes what its nodes wait for, or what the processors need, and joins go on meanwhile."""
        return max(self.waves_h, self.joins_h)


def build(nodes: int, cores: int, canary: int, *, cpu_s: float = COLD_CPU_S, shard_hosts: int = 250) -> Build:
    """The build of so many nodes of one GPU model on a controller of so many cores."""
    workers = CORE_WORKERS * cores
    sizes = (canary, *batches(0, nodes - canary, shard_hosts * workers * 2, canary * 2))
    latency_s = COLD_LATENCY_S + BURNIN_S
    wave_s = []
    for size in sizes:
        rounds = -(-size // (shard_hosts * workers))
        wave_s.append(max(rounds * latency_s, size * cpu_s / cores + BURNIN_S) + BETWEEN_S)
    return Build(
        nodes, cores, canary, len(sizes), nodes * cpu_s / cores / 3600, sum(wave_s) / 3600, nodes / JOINS_PER_S / 3600
    )
