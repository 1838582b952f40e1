"""How long a roll will go on, from the shards that are done. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Seen:
    """A shard that has ended: how many hosts it had, seconds of the clock and of the processors."""

    hosts: int
    wall_s: float
    cpu_s: float


def left_s(
    seen: Sequence[Seen],
    ahead: Sequence[Sequence[int]],
    workers: int,
    cores: int,
    between_s: float = 0.0,
    others: float = 0.0,
) -> float | None:
    """Seconds that the shards `ahead` take: their hosts by wave, of which the first is under way. None for no idea.

    A wave takes as long as its shards one after the other on `workers`, or as long as `cores` need for them; both by
    what shards of such sizes have taken. `between_s` is what each wave takes on the controller. `others`: so many
    seconds of the processors went to other programs for each second of those shards' own.
    """
    if not seen:
        return None
    fixed_s, host_s = _line([(one.hosts, one.wall_s) for one in seen])
    fixed_cpu_s, host_cpu_s = _line([(one.hosts, one.cpu_s) for one in seen])
    total_s = 0.0
    for wave in ahead:
        if not wave:
            continue
        rounds = -(-len(wave) // workers)
        latency_s = rounds * (fixed_s + host_s * max(wave))
        cpu_s = (fixed_cpu_s * len(wave) + host_cpu_s * sum(wave)) * (1 + others)
        total_s += max(latency_s, cpu_s / cores) + between_s
    return total_s


def _line(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Start and slope of the line of least squares, neither below 0."""
    count = len(points)
    mean_x, mean_y = sum(x for x, _ in points) / count, sum(y for _, y in points) / count
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread if spread else 0.0
    slope = max(0.0, slope)
    start = mean_y - slope * mean_x
    # A line that begins below nothing goes through it.
    return (start, slope) if start >= 0 else (0.0, mean_y / mean_x)
