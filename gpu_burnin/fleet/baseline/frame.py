"""Points of the database as columns of numbers: a row for each card in each point."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gpu_burnin.fleet.baseline.points import Card, Rate, Setting
from gpu_burnin.fleet.baseline.rates import layout_of

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Host:
    """A host whose newest report counts: its folder's name, its node's, when it was tested."""

    name: str
    node: str
    at: int


@dataclass(frozen=True)
class Names:
    """What the numbers of frames stand for. `gpu_of` has for each card the number of its GPU, wherever that is;
    `kind_of` has that of model and VBIOS, `slot_of` that of the slot."""

    hosts: dict[int, Host]
    settings: dict[int, Setting]
    cards: dict[int, Card]
    rates: tuple[Rate, ...]
    layouts: dict[int, Numbers]
    gpu_of: Numbers
    kind_of: Numbers
    slot_of: Numbers

    @property
    def gpus(self) -> int:
        """How many GPUs there are, all that ever were among them."""
        return int(self.gpu_of.max(initial=-1)) + 1


@dataclass(frozen=True)
class Frame:
    """Rows of cards: numbers of host, setting and card, when, and a column for each rate; NaN where there is none."""

    host: Numbers
    setting: Numbers
    card: Numbers
    at: Numbers
    values: Floats

    def rows(self, chosen: npt.NDArray[Any]) -> Frame:
        """Some of its rows."""
        return Frame(self.host[chosen], self.setting[chosen], self.card[chosen], self.at[chosen], self.values[chosen])


def read_names(connection: sqlite3.Connection) -> Names:
    """What numbers stand for, of hosts whose newest report counts."""
    hosts = {
        number: Host(name, node, at)
        for number, name, node, at, why_not in connection.execute("SELECT id, name, node, at, why_not FROM hosts")
        if not why_not
    }
    settings = {number: Setting(*values) for number, *values in connection.execute("SELECT * FROM settings")}
    cards = {number: Card(*values) for number, *values in connection.execute("SELECT * FROM cards")}
    layouts = {number: layout_of(text) for number, text in connection.execute("SELECT * FROM layouts")}
    rates = {rate: place for place, rate in enumerate(dict.fromkeys(r for rates in layouts.values() for r in rates))}
    columns = {number: np.array([rates[rate] for rate in layout]) for number, layout in layouts.items()}
    return Names(
        hosts,
        settings,
        cards,
        tuple(rates),
        columns,
        _numbered(cards, [card.uuid for card in cards.values()]),
        _numbered(cards, [(card.model, card.vbios) for card in cards.values()]),
        _numbered(cards, [card.slot for card in cards.values()]),
    )


def _numbered(cards: dict[int, Card], keys: Sequence[Any]) -> Numbers:
    """For each card's number the number of its key."""
    known = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    found = np.zeros(max(cards, default=0) + 1, dtype=np.int64)
    found[list(cards)] = [known[key] for key in keys]
    return found


def newest(connection: sqlite3.Connection, names: Names) -> Frame:
    """The newest point of each host whose newest report counts; of a GPU that moved, where it was last."""
    query = (
        "SELECT host, setting, layout, at, cards, rates FROM points "
        "WHERE (host, at) IN (SELECT id, at FROM hosts WHERE why_not = '')"
    )
    frame = _frame(connection.execute(query), names)
    return _latest(names, frame)


def weeks(connection: sqlite3.Connection, names: Names) -> Iterator[Frame]:
    """The points of each week, the oldest week first; of each GPU its newest in that week."""
    found = connection.execute("SELECT DISTINCT week FROM points ORDER BY week").fetchall()
    query = "SELECT host, setting, layout, at, cards, rates FROM points WHERE week = ?"
    for week in found:
        yield _latest(names, _frame(connection.execute(query, week), names))


def _latest(names: Names, frame: Frame) -> Frame:
    order = np.argsort(frame.at, kind="stable")[::-1]
    _, first = np.unique(names.gpu_of[frame.card[order]], return_index=True)
    return frame.rows(np.sort(order[first]))


def _frame(points: Iterator[tuple[int, int, int, int, bytes, bytes]], names: Names) -> Frame:
    by_layout: dict[int, list[tuple[int, int, int, bytes, bytes]]] = {}
    for host, setting, layout, at, cards, rates in points:
        if host in names.hosts:
            by_layout.setdefault(layout, []).append((host, setting, at, cards, rates))
    parts = [_part(rows, names.layouts[layout], len(names.rates)) for layout, rows in by_layout.items()]
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return Frame(nothing, nothing, nothing, nothing, np.zeros((0, len(names.rates))))
    return Frame(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def _part(rows: list[tuple[int, int, int, bytes, bytes]], columns: Numbers, width: int) -> tuple[Any, ...]:
    hosts, settings, times, cards, rates = zip(*rows, strict=True)
    each = [len(data) // 4 for data in cards]
    numbers = np.frombuffer(b"".join(cards), "<u4").astype(np.int64)
    values = np.full((len(numbers), width), np.nan)
    values[:, columns] = np.frombuffer(b"".join(rates), "<f4").reshape(len(numbers), len(columns))
    host, setting, at = (np.repeat(np.array(column, dtype=np.int64), each) for column in (hosts, settings, times))
    return host, setting, numbers, at, values
