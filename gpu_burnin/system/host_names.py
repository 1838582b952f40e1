"""Names of many hosts in few words. Standard library only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

# So many names, or runs of names, are shown.
SHOWN = 4
# A run of fewer hosts is shorter without "to".
_LEAST_RUN = 3


def fold(hosts: Iterable[str], most: int = SHOWN) -> tuple[list[str], int, int]:
    """The words that name the hosts, how many hosts there are, and how many the words leave out.

    Up to `most` hosts are named one by one, more in runs ("gpu-0001 to gpu-7475"), of which the longest are shown.
    """
    known = sorted(set(hosts), key=natural)
    if len(known) <= most:
        return known, len(known), 0
    runs = list(_runs(known))
    shown = runs
    if len(runs) > most:
        # The longest say most.
        longest = sorted(runs, key=len, reverse=True)[: most - 1]
        shown = [run for run in runs if run in longest]
    words = [", ".join(run) if len(run) < _LEAST_RUN else f"{run[0]} to {run[-1]}" for run in shown]
    return words, len(known), len(known) - sum(len(run) for run in shown)


def name_hosts(hosts: Iterable[str], most: int = SHOWN) -> str:
    """Host names in the order of their numbers: "gpu-0001 to gpu-7475, 7,475 hosts"; see fold."""
    words, count, left = fold(hosts, most)
    if left:
        return f"{', '.join(words)} and {left:,} more hosts"
    return ", ".join([*words, f"{count:,} hosts"] if any(" to " in word for word in words) else words)


def natural(name: str) -> list[tuple[int, str]]:
    """A key to sort names by: node-9 before node-10."""
    return [(int(part) if place % 2 else -1, part) for place, part in enumerate(_parts(name))]


def _parts(name: str) -> list[str]:
    """Texts and numbers of a name in turn, beginning with a text."""
    return re.split(r"([0-9]+)", name)


def _runs(names: Sequence[str]) -> Iterable[list[str]]:
    """Sorted names in runs in which one number counts up, and all else is the same."""
    run: list[str] = []
    counts: int | None = None
    for name in names:
        place = _counting(run[-1], name) if run else None
        if run and (place is None or counts not in (None, place)):
            yield run
            run, place = [], None
        run.append(name)
        counts = place
    if run:
        yield run


def _counting(name: str, following: str) -> int | None:
    """Which part of a name is one more in the following one; None when more differs than that."""
    one, other = _parts(name), _parts(following)
    differing = [place for place, (left, right) in enumerate(zip(one, other, strict=False)) if left != right]
    if len(one) != len(other) or len(differing) != 1 or differing[0] % 2 == 0:
        return None
    number = one[differing[0]]
    return differing[0] if other[differing[0]] == f"{int(number) + 1:0{len(number)}d}" else None
