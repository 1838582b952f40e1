"""A problem as the user reads it: where, which hosts, what is wrong, what to do. The same of many hosts is one line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

# So many names, or runs of names, are shown.
HOSTS_SHOWN = 4
# A run of fewer hosts is shorter without "to".
RUN_MIN = 3


@dataclass(frozen=True)
class Problem:
    """One fault. `variable` names the inventory variable it is about, `where` the file it stands in."""

    message: str
    fix: str
    hosts: tuple[str, ...] = ()
    variable: str = ""
    where: str = ""

    def line(self) -> str:
        """The problem as one line."""
        place = ", ".join(part for part in (self.where, name_hosts(self.hosts)) if part)
        return f"{place}: {self.message}; {self.fix}" if place else f"{self.message}; {self.fix}"


def name_hosts(hosts: Iterable[str]) -> str:
    """Host names in few words, in the order of their numbers: `gpu-0001 to gpu-7475, 7,475 hosts`."""
    words, count, left = _fold(hosts)
    if left:
        return f"{', '.join(words)} and {left:,} more hosts"
    return ", ".join([*words, f"{count:,} hosts"] if count > HOSTS_SHOWN else words)


def is_named_in_full(hosts: Iterable[str]) -> bool:
    """Whether `name_hosts` leaves no host out."""
    return _fold(hosts)[2] == 0


def together(problems: Iterable[Problem]) -> list[Problem]:
    """The same problem of several hosts or places as one, in the order of the first of each."""
    alike: dict[tuple[str, str, str | None], list[Problem]] = {}
    for problem in problems:
        # What no host is named for stays apart: its place is all that tells it from another.
        key = (problem.message, problem.fix, None if problem.hosts else problem.where)
        alike.setdefault(key, []).append(problem)
    return [
        replace(
            found[0],
            hosts=tuple(dict.fromkeys(host for problem in found for host in problem.hosts)),
            where=_name_places([problem.where for problem in found]),
        )
        for found in alike.values()
    ]


def report(title: str, problems: Iterable[Problem]) -> str:
    """All problems under one title, each once, in the order given."""
    lines = list(dict.fromkeys(problem.line() for problem in together(problems)))
    noun = "problem" if len(lines) == 1 else "problems"
    return "\n".join([f"{title}: {len(lines):,} {noun}.", *(f"- {line}" for line in lines)])


def _fold(hosts: Iterable[str]) -> tuple[list[str], int, int]:
    """The words that name the hosts, how many hosts there are, and how many the words leave out."""
    known = sorted(set(hosts), key=_natural)
    if len(known) <= HOSTS_SHOWN:
        return known, len(known), 0
    runs = list(_runs(known))
    shown = runs if len(runs) <= HOSTS_SHOWN else runs[: HOSTS_SHOWN - 1]
    words = [", ".join(run) if len(run) < RUN_MIN else f"{run[0]} to {run[-1]}" for run in shown]
    return words, len(known), len(known) - sum(len(run) for run in shown)


def _parts(name: str) -> list[str]:
    """Texts and numbers of a name in turn, beginning with a text."""
    return re.split(r"(\d+)", name)


def _natural(name: str) -> list[tuple[int, str]]:
    """node-9 before node-10."""
    return [(int(part) if place % 2 else -1, part) for place, part in enumerate(_parts(name))]


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


def _name_places(places: Sequence[str]) -> str:
    """Places (`FILE:LINE`) in few words: the first, and how many more there are."""
    known = list(dict.fromkeys(places))
    more = len(known) - 1
    return known[0] if not more else f"{known[0]} and {more:,} more {'place' if more == 1 else 'places'}"
