"""Rows of the table, their goals and what they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

HEADER = (
    "| what | acknowledged | lost | failed, of one client | longest gap | of the probe | took | goal |\n"
    "|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True)
class Cost:
    """What clients that write met: acknowledged writes, those of them that are not there afterwards, failed requests of
    all and of the client that had most, the longest time between two acknowledged writes of one client that waits for
    its answers, and of the probe, which asks anew after 2 s; the time
    until the fleet was healthy again; and what the failed requests were told, with how many were."""

    acknowledged: int
    lost: int
    failed: int
    most_failed: int
    longest_gap_s: float
    longest_probe_gap_s: float
    took_s: float
    errors: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Goal:
    """What was asked for; None: nothing was."""

    gap_s: float | None = None
    probe_gap_s: float | None = None
    most_failed: int | None = None

    def missed(self, cost: Cost) -> list[str]:
        """What of it was not met. Compared as printed: 3.04 s are 3.0 s."""
        missed = []
        if self.gap_s is not None and round(cost.longest_gap_s, 1) > self.gap_s:
            missed.append("gap")
        if self.probe_gap_s is not None and round(cost.longest_probe_gap_s, 1) > self.probe_gap_s:
            missed.append("gap of the probe")
        if self.most_failed is not None and cost.most_failed > self.most_failed:
            missed.append("failed requests")
        return missed

    def __str__(self) -> str:
        asked = [] if self.gap_s is None else [f"gap {self.gap_s:g} s"]
        asked += [] if self.probe_gap_s is None else [f"gap of the probe {self.probe_gap_s:g} s"]
        asked += [] if self.most_failed is None else [f"{self.most_failed} failed of a client"]
        return ", ".join(asked)


@dataclass(frozen=True)
class Row:
    """One scenario: what it cost and what else was seen, or why it could not be shown."""

    what: str
    goal: Goal
    cost: Cost | None = None
    seen: str = ""
    broke: str = ""

    @property
    def failed(self) -> bool:
        """Something acknowledged was lost, or the scenario did not come to its end."""
        return self.cost is None or self.cost.lost > 0 or bool(self.broke)

    def line(self) -> str:
        """As a line of the table."""
        what = f"{self.what}{f': {self.seen}' if self.seen else ''}"
        if self.cost is None or self.broke:
            return f"| {what} | | | | | | | **failed**: {self.broke} |"
        cost = self.cost
        lost = f"**{cost.lost}**" if cost.lost else "0"
        missed = self.goal.missed(cost)
        verdict = f"{self.goal}: **missed** ({', '.join(missed)})" if missed else f"{self.goal}"
        return (
            f"| {what} | {cost.acknowledged} | {lost} | {cost.failed}, {cost.most_failed} | "
            f"{cost.longest_gap_s:.1f} s | {cost.longest_probe_gap_s:.1f} s | {cost.took_s:.0f} s | {verdict} |"
        )


@dataclass
class Table:
    """All rows of a run, and what it ran on."""

    about: dict[str, str]
    rows: list[Row] = field(default_factory=list)

    def text(self) -> str:
        """As markdown."""
        about = ", ".join(f"{name} {value}" for name, value in self.about.items())
        return "\n".join([about, "", HEADER, *(row.line() for row in self.rows)])

    def json(self) -> dict[str, Any]:
        """As data."""
        rows = [
            asdict(row) | {"missed": row.goal.missed(row.cost) if row.cost else [], "failed": row.failed}
            for row in self.rows
        ]
        return {"schema": 1, "about": self.about, "rows": rows}

    def exit_code(self) -> int:
        """1 when a write was lost or a scenario failed; a goal that was missed is told, and fails nothing."""
        return int(not self.rows or any(row.failed for row in self.rows))


def chosen(names: Sequence[str], slow: dict[str, bool]) -> list[str]:
    """The scenarios of these names, in their own order: none named means the quick ones, "all" every one.

    Raises ValueError for a name that there is not.
    """
    unknown = sorted(set(names) - slow.keys() - {"all"})
    if unknown:
        raise ValueError(f"no scenario {', '.join(unknown)}; there are {', '.join(slow)}, and all")
    if "all" in names:
        return list(slow)
    return [name for name in slow if (name in names if names else not slow[name])]
