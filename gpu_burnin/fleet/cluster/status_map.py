"""All nodes of a fleet by the place where they stand, as one small drawing a place. Colour is never the only sign."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from markupsafe import Markup, escape

from gpu_burnin.api.record import State
from gpu_burnin.fleet.cluster.rows import BRAKED, LOST, ORDER, REJECTED, Row
from gpu_burnin.fleet.monitoring.numbers import Host
from gpu_burnin.report.svg import drawing
from gpu_burnin.system.host_names import natural

# A cell is so wide with its gap; a row of a place has so many.
_CELL, _GAP, _COLUMNS = 13, 3, 10
# Nodes without a known place stand together by so many, as their names go.
_TOGETHER = 50
# What stands in the cell of a state (paths from its corner): what a person must see is a cross or a triangle.
_SIGNS: Mapping[str, str] = {
    State.QUARANTINED: "m2.5 2.5l5 5m0-5l-5 5",
    State.SUSPECT: "m5 2v4m0 1.7v.6",
    BRAKED: "m5 2v4m0 1.7v.6",
    LOST: "m5 2v4m0 1.7v.6",
    REJECTED: "m2.5 2.5l5 5m0-5l-5 5",
    State.REPAIRING: "m5 2v6m-3-3h6",
    State.HELD: "m3.5 2.5v5m3-5v5",
    State.TESTING: "m4 3l3 2l-3 2z",
    State.EXPIRING: "m2 7.5h6",
}
_QUIET = frozenset({State.READY, State.NEW})
NO_ANSWER = "does not answer its monitoring"


@dataclass(frozen=True)
class Place:
    """A place: how its nodes stand in words, and each of them in a drawing. It is dark when most do not answer."""

    name: str
    nodes: int
    words: str
    svg: Markup
    bad: bool
    dark: bool


def places(rows: Sequence[Row], hosts: Mapping[str, Host] | None) -> list[Place]:
    """The places of all nodes, the dark ones first, then those with something wrong. A place is a rack."""
    known = hosts or {}
    by_rack: dict[str, list[Row]] = {}
    for row in rows:
        by_rack.setdefault(known[row.name].place.get("rack", "") if row.name in known else "", []).append(row)
    nowhere = by_rack.pop("", [])
    found = [_place(name, of, known) for name, of in sorted(by_rack.items(), key=lambda item: natural(item[0]))]
    for start in range(0, len(nowhere), _TOGETHER):
        part = nowhere[start : start + _TOGETHER]
        name = part[0].name if len(part) == 1 else f"{part[0].name} to {part[-1].name}"
        found.append(_place(name, part, known))
    return sorted(found, key=lambda place: (not place.dark, not place.bad))


def legend(rows: Sequence[Row]) -> list[tuple[str, int, Markup]]:
    """The cells that occur, with the name and the number of each."""
    count = Counter(row.state for row in rows)
    return [
        (state, count[state], drawing(10, 10, "", [_cell(state, 0, 0)], "fixed key map"))
        for state in ORDER
        if count[state]
    ]


def anchor(name: str) -> str:
    """The place of a node in the page."""
    return f"node-{name}"


def _place(name: str, rows: Sequence[Row], hosts: Mapping[str, Host]) -> Place:
    count = Counter(row.state for row in rows)
    silent = {row.name for row in rows if row.name in hosts and not hosts[row.name].up}
    words = [f"{count[state]:,} {state}" for state in ORDER if count[state]]
    if silent:
        words.append(f"{len(silent):,} {'do' if len(silent) > 1 else 'does'} not answer")
    lines = -(-len(rows) // _COLUMNS)
    said = ", ".join(words)
    size = (min(len(rows), _COLUMNS) * _CELL - _GAP + 2, lines * _CELL - _GAP + 2)
    svg = drawing(*size, f"{name}: {said}", _cells(rows, silent), "fixed map")
    bad = bool(silent) or any(row.state not in _QUIET for row in rows)
    return Place(name, len(rows), said, svg, bad, 2 * len(silent) > len(rows))


def _cells(rows: Sequence[Row], silent: set[str]) -> Iterator[str]:
    """Nodes of a quiet state that answer are one path for all: a page of 7,500 must open at once."""
    many: dict[str, list[str]] = {}
    for index, row in enumerate(rows):
        x, y = index % _COLUMNS * _CELL + 1, index // _COLUMNS * _CELL + 1
        if row.state in _QUIET and row.name not in silent:
            many.setdefault(row.state, []).append(f"M{x} {y}h10v10h-10z")
            continue
        told = f"{row.name}: {row.state}{f' {row.code}' if row.code else ''}"
        if row.name in silent:
            told += f"; {NO_ANSWER}"
        cell = f"<title>{escape(told)}</title>{_cell(row.state, x, y, row.name in silent)}"
        # A ready node has no entry of its own in the page.
        link = (
            f'<a href="#{escape(quote(anchor(row.name)))}">{cell}</a>' if row.state != State.READY else f"<g>{cell}</g>"
        )
        yield link
    for state, cells in many.items():
        yield f'<path class="cell {escape(state)}" d="{"".join(cells)}"/>'


def _cell(state: str, x: float, y: float, silent: bool = False) -> str:
    parts = [f'<path class="cell {escape(state)}" d="M{x} {y}h10v10h-10z"/>']
    if state in _SIGNS:
        parts.append(f'<path class="what {escape(state)}" d="M{x} {y}{_SIGNS[state]}"/>')
    if silent:
        parts.append(f'<path class="silent" d="M{x} {y}m-1-1h12v12h-12z"/>')
    return "".join(parts)
