"""What a check of many hosts found: the same of many hosts is one problem, what follows from another is none."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem
from ansible_collections.muster.fleet.plugins.plugin_utils.inventory_files import VAULT_FIX


class Findings:
    """Collects problems of hosts."""

    def __init__(self) -> None:
        self._values: list[tuple[str, tuple[str, str, str], frozenset[str]]] = []
        self._unresolved: list[tuple[str, str, str, frozenset[str]]] = []
        self._at_fault: set[tuple[str, str]] = set()

    def add(
        self, host: str, message: str, fix: str, where: str = "", at_fault: str = "", reads: Iterable[str] = ()
    ) -> None:
        """One problem of one host; `at_fault` is the variable that it is about, made of those that it `reads`.

        It is told unless one of those is blamed too, sooner or later.
        """
        self._values.append((host, (message, fix, where), frozenset(reads) - {at_fault}))
        self.blame(host, at_fault)

    def blame(self, host: str, variable: str) -> None:
        """What else is wrong with this variable, or is made of it, follows from a problem that is known."""
        self._at_fault.add((host, variable))

    def is_blamed(self, host: str, variable: str) -> bool:
        """Whether a problem of this host's variable is known."""
        return (host, variable) in self._at_fault

    def add_unresolved(self, host: str, shown: str, cause: str, reads: frozenset[str]) -> None:
        """A variable (with its place) whose template fails, and all that it reads."""
        self._unresolved.append((host, shown, cause, reads))

    def problems(self) -> list[Problem]:
        """All of them: those of values, then those of templates, where all that fail for one cause share a line."""
        wrong: dict[tuple[str, str, str], dict[str, None]] = defaultdict(dict)
        for host, what, reads in self._values:
            if not any(self.is_blamed(host, read) for read in reads):
                wrong[what][host] = None
        found = [Problem(message, fix, tuple(hosts), where=where) for (message, fix, where), hosts in wrong.items()]
        hosts: dict[str, dict[str, None]] = defaultdict(dict)
        variables: dict[str, dict[str, None]] = defaultdict(dict)
        for host, shown, cause, reads in self._unresolved:
            if not any(self.is_blamed(host, read) for read in reads):
                hosts[cause][host] = None
                variables[cause][shown] = None
        for cause, names in variables.items():
            more = f" and {len(names) - 1} more that follow from it" if len(names) > 1 else ""
            message = f"{next(iter(names))}{more} cannot be resolved: {cause.rstrip('.')}"
            fix = VAULT_FIX if "vault" in cause else "set the variable that it refers to, or correct it"
            found.append(Problem(message, fix, tuple(hosts[cause])))
        return found
