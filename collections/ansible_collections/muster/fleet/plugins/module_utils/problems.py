"""A problem as the user reads it: where, which hosts, what is wrong, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

HOSTS_SHOWN = 4


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


def name_hosts(hosts: Sequence[str]) -> str:
    """Host names in few words: a fault of a thousand hosts is still one line."""
    if len(hosts) <= HOSTS_SHOWN:
        return ", ".join(hosts)
    return f"{', '.join(hosts[: HOSTS_SHOWN - 1])} and {len(hosts) - HOSTS_SHOWN + 1} more hosts"


def report(title: str, problems: Iterable[Problem]) -> str:
    """All problems under one title, each once, in the order given."""
    lines = list(dict.fromkeys(problem.line() for problem in problems))
    noun = "problem" if len(lines) == 1 else "problems"
    return "\n".join([f"{title}: {len(lines)} {noun}.", *(f"- {line}" for line in lines)])
