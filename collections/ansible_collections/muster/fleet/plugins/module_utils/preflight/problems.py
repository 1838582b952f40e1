"""A problem as the user reads it: where, which hosts, what is wrong, what to do. The same of many hosts is one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from gpu_burnin.system.host_names import SHOWN, fold, name_hosts


@dataclass(frozen=True)
class Problem:
    """One fault. `variable` names the inventory variable it is about, `where` the file it stands in."""

    message: str
    fix: str
    hosts: tuple[str, ...] = ()
    variable: str = ""
    where: str = ""

    def line(self, groups: Mapping[str, Sequence[str]] | None = None) -> str:
        """The problem as one line; many hosts that are whole `groups` are named by these."""
        hosts = name_groups(self.hosts, groups or {}) or name_hosts(self.hosts)
        place = ", ".join(part for part in (self.where, hosts) if part)
        return f"{place}: {self.message}; {self.fix}" if place else f"{self.message}; {self.fix}"


def name_groups(hosts: Iterable[str], groups: Mapping[str, Sequence[str]]) -> str:
    """Words for more hosts than are named one by one that are all of the inventory's, or all of some groups."""
    wanted = set(hosts)
    if len(wanted) <= SHOWN:
        return ""
    if wanted - {"localhost"} == {host for members in groups.values() for host in members}:
        return "all hosts"
    found = {group: members for group, members in groups.items() if members and wanted.issuperset(members)}
    is_whole = wanted == {host for members in found.values() for host in members}
    return f"all hosts of {', '.join(found)}" if is_whole else ""


def is_named_in_full(hosts: Iterable[str]) -> bool:
    """Whether `name_hosts` leaves no host out."""
    return fold(hosts)[2] == 0


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


def _name_places(places: Sequence[str]) -> str:
    """Places (`FILE:LINE`) in few words: the first, and how many more there are."""
    known = list(dict.fromkeys(places))
    more = len(known) - 1
    return known[0] if not more else f"{known[0]} and {more:,} more {'place' if more == 1 else 'places'}"
