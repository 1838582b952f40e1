"""Turns at feeds for shards on workers: taken here before a shard is transmitted, held while anything of it may run.

On its worker the shard's nodes take turns among those, in its folder there. So a feed's limit holds over all machines,
and a worker needs no right on this controller.
"""

from __future__ import annotations

import math
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
LEVEL, RETEST_LEVEL, FOR_NEW = "gpu_burnin_level", "gpu_burnin_retest_level", "gpu_burnin_extended_for_new"
_GRANTED, _WITHOUT_TURNS, _LONGEST = "granted", ("always", "never"), "extended"
# Longer than a shard's waves take; then its nodes are left behind.
_WAIT_S = 7200.0


@dataclass(frozen=True)
class Power:
    """What an inventory says of power waves: the limits as written, and of each GPU node of a roll its feed and mode.

    `scaled`: whether a scaler switches machines. `levels` are those that the nodes are tested at, none where that
    is not known; `for_new`: new nodes are tested at extended.
    """

    by_feed: JSON = None
    others: JSON = 1
    extended_s: float = 0.0
    scaled: bool = False
    feeds: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, str] = field(default_factory=dict)
    levels: tuple[str, ...] = ()
    for_new: bool = False


@dataclass(frozen=True)
class Swings:
    """Nodes that take turns, with their feeds; so many `shards` on workers at a time share what each feed bears.

    `waves_s` is how long a node swings at most.
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
            where, name = (f"the feed {feed}", LIMITS) if feed else ("feeds without a limit of their own", OTHERS)
            raise GpuBurninError(
                f"at {where} {limits.of(feed)} node may swing at a time ({name}), and a shard on a worker would have "
                f"this turn until it ends; let 2 or more swing there; or {instead}"
            )
    extended_s = _seconds(given[EXTENDED]) if EXTENDED in given else power.extended_s
    waves_s = max(times_of(level, USUAL_GPUS, extended_s)[1] for level in _levels(power, given))
    return Swings(limits, feeds, shards, waves_s)


def take(directory: Path, note: Path, asked: Swings, waits: Callable[[str], None], wait_s: float = _WAIT_S) -> Limits:
    """Have turns for a shard, which count while its note exists; how many of its nodes may swing at each feed.

    Raises GpuBurninError where a feed had no turn in time.
    """
    limits = asked.limits
    left = Limits(limits.others - 1, {feed: limit - 1 for feed, limit in limits.by_feed.items()})
    turns, granted = Turns(directory, left), dict[str, int]()
    nodes = Counter(limits.counted_as(feed) for feed in asked.feeds.values())
    # All shards in the same order, so that no two wait for each other.
    for feed in sorted(nodes):
        for number in range(min(asked.share(feed), nodes[feed])):
            name = f"{note.stem} {feed or 'others'} {number + 1}"
            busy = turns.take(name, feed, asked.waves_s, 0.0 if number else wait_s, waits, note)
            if busy and not number:
                raise GpuBurninError(f"{note.stem} had no turn to swing power within {wait_s:.0f} s: {busy}")
            if busy:
                break
            granted[feed] = number + 1
    return Limits(granted.pop("", 1), granted)


def _levels(power: Power, given: Mapping[str, str]) -> Collection[str]:
    """The levels that nodes may be tested at; all where one is not known."""
    levels = {*power.levels, given.get(LEVEL, power.levels[0])} if power.levels else set()
    if RETEST_LEVEL in given:
        levels = {given[RETEST_LEVEL]}
    if levels and (power.for_new or given.get(FOR_NEW)):
        levels.add(_LONGEST)
    return levels if levels and levels.issubset(LEVEL_NAMES) else LEVEL_NAMES


def _seconds(text: str) -> float:
    """Raises GpuBurninError for what is no time."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise GpuBurninError(f"-e {EXTENDED}={text} is no number of seconds; give one such as {EXTENDED}=7200")
    return seconds
