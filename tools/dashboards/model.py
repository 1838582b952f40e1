"""What a page is: rows of panels, each with the queries that it shows, before it is Grafana's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """How a panel shows what its queries give."""

    STAT = "stat"
    LINES = "timeseries"
    AREAS = "stacked areas"
    STATES = "state-timeline"


@dataclass(frozen=True)
class Query:
    """An expression of Prometheus, and how each series that it gives is called (Grafana's {{label}})."""

    expr: str
    legend: str


@dataclass(frozen=True)
class Panel:
    """One panel. `unit`: Grafana's name of it. `alert`: whose threshold colours it. `width`: of 24.

    `counted`: it counts what the alert is about, so that one is too many. `named`: a stat shows its series' names.
    """

    title: str
    description: str
    unit: str
    queries: Sequence[Query]
    kind: Kind = Kind.LINES
    alert: str | None = None
    width: int = 8
    counted: bool = False
    named: bool = False


@dataclass(frozen=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Variable:
    """What the reader chooses: the hosts whose names the query gives."""

    name: str
    label: str
    description: str
    query: str
    many: bool = False


@dataclass(frozen=True)
class Mark:
    """A moment marked in each panel: the value of the expression is its time, in milliseconds since 1970."""

    name: str
    expr: str
    title: str
    colour: str


@dataclass(frozen=True)
class Page:
    """One dashboard. `uid` is its file's name too, and its address in Grafana. `since`: what it shows when opened."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]
    since: str
    variables: Sequence[Variable] = ()
    marks: Sequence[Mark] = ()

    @property
    def panels(self) -> list[Panel]:
        """All of them, in their order."""
        return [panel for row in self.rows for panel in row.panels]


def stat(title: str, expr: str, description: str, unit: str = "short", *, alert: str | None = None) -> Panel:
    """One number of now."""
    return Panel(title, description, unit, (Query(expr, title),), Kind.STAT, alert, width=4)


def wrong(title: str, expr: str, description: str, *, alert: str) -> Panel:
    """How many there are now of what an alert is about."""
    return Panel(title, description, "short", (Query(expr, title),), Kind.STAT, alert, width=4, counted=True)


def names(title: str, expr: str, legend: str, description: str, *, width: int = 8) -> Panel:
    """What series there are, by their names."""
    return Panel(title, description, "short", (Query(expr, legend),), Kind.STAT, width=width, named=True)


def counts(title: str, expr: str, legend: str, description: str, *, width: int = 8) -> Panel:
    """A number of now for each series, with its name."""
    return Panel(title, description, "short", (Query(expr, legend),), Kind.STAT, width=width)


def lines(
    title: str, expr: str, legend: str, description: str, unit: str = "short", *, alert: str | None = None
) -> Panel:
    """A line for each series."""
    return Panel(title, description, unit, (Query(expr, legend),), Kind.LINES, alert)


def areas(title: str, expr: str, legend: str, description: str, unit: str = "short", *, width: int = 8) -> Panel:
    """The series on top of each other: parts of a whole."""
    return Panel(title, description, unit, (Query(expr, legend),), Kind.AREAS, width=width)


def states(title: str, expr: str, legend: str, description: str, *, width: int = 8) -> Panel:
    """A bar for each series, of 1 (yes) and 0 (no)."""
    return Panel(title, description, "bool_yes_no", (Query(expr, legend),), Kind.STATES, width=width)
