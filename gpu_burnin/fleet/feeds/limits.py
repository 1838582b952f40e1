"""How many nodes may swing their power at one feed at the same time, as the inventory says it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_burnin.errors import GpuBurninError

LIMITS, OTHERS = "fleet_feed_limits", "gpu_burnin_wave_max_nodes"
_EXAMPLE = f"write it such as {LIMITS}: {{a: 2, b: 1}}"


class LimitsError(GpuBurninError):
    """The inventory does not say how many nodes may swing."""


@dataclass(frozen=True)
class Limits:
    """`by_feed` has feeds that were named; all others together, and nodes that name none, bear `others` nodes.

    Feeds that nobody has named may be one feed.
    """

    others: int
    by_feed: Mapping[str, int] = field(default_factory=dict)

    def counted_as(self, feed: str) -> str:
        """The feed by whose limit a node at `feed` counts, "" for all that have none of their own."""
        return feed if feed in self.by_feed else ""

    def of(self, feed: str) -> int:
        """How many nodes may swing there."""
        return self.by_feed.get(feed, self.others)

    def together(self, feeds: Iterable[str]) -> int:
        """How many nodes may swing at all of these feeds; a limit at which no node stands lets none."""
        return sum(self.of(feed) for feed in {self.counted_as(feed) for feed in feeds})


def read_limits(by_feed: object, others: object) -> Limits:
    """The limits of an inventory. Raises LimitsError for the first mistake."""
    for message, fix in (*others_mistakes(others), *limit_mistakes(by_feed)):
        raise LimitsError(f"{message}; {fix}")
    assert isinstance(by_feed, Mapping)
    # Ansible gives numbers of the command line as text.
    return Limits(int(str(others)), {str(feed): int(str(limit)) for feed, limit in by_feed.items()})


def others_mistakes(others: object) -> Iterator[tuple[str, str]]:
    """What is wrong with the limit of all other feeds, and what to do."""
    if not _is_count(others):
        yield f"{OTHERS} is {others!r}", "give how many nodes may swing at the same time, 1 or more"


def limit_mistakes(by_feed: object) -> Iterator[tuple[str, str]]:
    """What is wrong with the limits of feeds that were named, and what to do."""
    if not isinstance(by_feed, Mapping):
        yield f"{LIMITS} is {by_feed!r}, not a dictionary of nodes by feed", _EXAMPLE
        return
    for feed, limit in by_feed.items():
        if not _is_count(limit):
            yield f"{LIMITS} has {limit!r} for the feed {feed}", "give how many nodes may swing there, 1 or more"
    names = [str(feed) for feed in by_feed]
    for feed in sorted({name for name in names if names.count(name) > 1}):
        yield f"{LIMITS} has the feed {feed} twice, as a number and as a text", "give it once"


def _is_count(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return False
    text = str(value).strip()
    return text.isascii() and text.isdigit() and int(text) >= 1
