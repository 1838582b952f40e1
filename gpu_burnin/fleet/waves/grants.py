"""Turns at feeds for shards on workers: taken here before a shard is transmitted, held while anything of it may run.

On its worker the shard's nodes take turns among those, in its folder there. So a feed's limit holds over all machines,
and a worker needs no right on this controller.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.feeds.limits import LIMITS, OTHERS, Limits, read_limits
from gpu_burnin.fleet.feeds.turns import Turns
from gpu_burnin.fleet.plan.work import USUAL_GPUS, times_of
from gpu_burnin.types import JSON

MODE, EXTENDED = "gpu_burnin_power_waves", "gpu_burnin_extended_s"
_GRANTED, _WITHOUT_TURNS = "granted", ("always", "never")
# Then the shard runs on this machine, where its nodes take a turn each.
_WAIT_S = 1800.0


@dataclass(frozen=True)
class Power:
    """What an inventory says of power waves: the limits as written, and of each GPU node of a roll its feed and mode.

    `scaled`: whether a scaler switches machines.
    """

    by_feed: JSON = None
    others: JSON = 1
    extended_s: float = 0.0
    scaled: bool = False
    feeds: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Swings:
    """Nodes that take turns, with their feeds; so many `shards` on workers at a time share what each feed bears.

    `waves_s` is how long a node swings at most, at the level with the longest waves.
    """

    limits: Limits
    feeds: Mapping[str, str]
    shards: int
    waves_s: float

    def of(self, hosts: Collection[str]) -> Swings:
        """Those of a shard alone."""
        return replace(self, feeds={host: self.feeds[host] for host in hosts if host in self.feeds})

    def share(self, feed: str) -> int:
        """How many turns at a feed a shard gets at most. One is left to the plays of this machine."""
        return max(1, (self.limits.of(feed) - 1) // self.shards)

    @property
    def bound(self) -> str:
        """Why no more shards run on workers at a time, in words."""
        feed, most = self.least
        return f"turns to swing power for shards on workers at {_named(feed)[0]}: {most}"

    @property
    def least(self) -> tuple[str, int]:
        """The feed that lets the fewest shards on workers have a turn at a time, "" for all others, and how many."""
        counted = {self.limits.counted_as(feed) for feed in self.feeds.values()}
        return min(((feed, self.limits.of(feed) - 1) for feed in sorted(counted)), key=lambda one: one[1])

    def within(self) -> Swings:
        """Those of no more shards than have a turn at each feed: more would wait until others have ended."""
        return replace(self, shards=min(self.shards, self.least[1]))


def swings(power: Power, arguments: Sequence[str], shards: int) -> Swings | None:
    """Which nodes of a roll take turns, with ansible-playbook's `arguments`; None where none does.

    Raises GpuBurninError where workers cannot be given turns.
    """
    given = dict(word.split("=", 1) for word in arguments if "=" in word)
    mode = given.get(MODE)
    # What is written as a template may come to any mode.
    feeds = {
        host: feed
        for host, feed in power.feeds.items()
        if (mode or power.modes.get(host, _GRANTED)) not in _WITHOUT_TURNS
    }
    if not feeds:
        return None
    instead = f"add `-- -e {MODE}=never`, which the reports then say; or roll without workers"
    if OTHERS in given:
        raise GpuBurninError(
            f"-e {OTHERS} is for one play alone, and workers share the feeds; write it in the inventory"
        )
    if power.scaled:
        raise GpuBurninError(
            "fleet_scale is on: its scaler counts the nodes that swing by the ledger, and a worker cannot write there; "
            f"{instead}"
        )
    limits = read_limits(power.by_feed or {}, power.others)
    for feed in sorted({limits.counted_as(feed) for feed in feeds.values()}):
        if limits.of(feed) < 2:
            where, name = _named(feed)
            raise GpuBurninError(
                f"at {where} {limits.of(feed)} node may swing at a time ({name}), and a shard on a worker would have "
                f"this turn until it ends; let 2 or more swing there; or {instead}"
            )
    extended_s = _seconds(given[EXTENDED]) if EXTENDED in given else power.extended_s
    # A burn-in that was under way is joined, whatever its level.
    waves_s = max(times_of(level, USUAL_GPUS, extended_s)[1] for level in LEVEL_NAMES)
    return Swings(limits, feeds, shards, waves_s)


def take(directory: Path, note: Path, asked: Swings, waits: Callable[[str], None], wait_s: float = _WAIT_S) -> Limits:
    """Have turns for a shard, which count while its note exists; how many of its nodes may swing at each feed.

    Raises GpuBurninError where not each feed had one after `wait_s`.
    """
    limits, until_s = asked.limits, time.monotonic() + wait_s
    turns, granted = Turns(directory, limits), dict[str, int]()
    nodes = Counter(limits.counted_as(feed) for feed in asked.feeds.values())
    # All shards in the same order, so that no two wait for each other.
    for feed in sorted(nodes):
        for number in range(min(asked.share(feed), nodes[feed])):
            name = f"{note.stem} {feed or 'others'} {number + 1}"
            left_s = 0.0 if number else max(0.0, until_s - time.monotonic())
            busy = turns.take(name, feed, asked.waves_s, left_s, waits, note)
            if busy and not number:
                raise GpuBurninError(f"{note.stem} had no turn to swing power within {wait_s:.0f} s: {busy}")
            if busy:
                break
            granted[feed] = number + 1
    return Limits(granted.pop("", 1), granted)


def _named(feed: str) -> tuple[str, str]:
    """A feed in words, and where its limit stands."""
    return (f"the feed {feed}", LIMITS) if feed else ("feeds without a limit of their own", OTHERS)


def _seconds(text: str) -> float:
    """Raises GpuBurninError for what is no time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise GpuBurninError(f"-e {EXTENDED}={text} is no number of seconds; give one such as {EXTENDED}=7200")
    return seconds
