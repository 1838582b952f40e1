"""Which rates lie outside those of their peers, and which move away from them over the weeks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_burnin.fleet.baseline import FALSE_NAMES, LEAST_PEERS
from gpu_burnin.fleet.baseline.frame import Floats, Frame, Names, Numbers
from gpu_burnin.fleet.baseline.points import Card, Rate, Setting
from gpu_burnin.fleet.baseline.rates import WEEK_S
from gpu_burnin.fleet.baseline.spread import Spread, lower_limit, spread_of, wideness

# Less than this is not told, however sure it is: the same GPU differs by as much from run to run and room to room.
LEAST_SHARE = 0.01
# A line through fewer points, or less time, tells a warm week from a slow decay badly.
LEAST_POINTS, LEAST_WEEKS = 5, 4.0
# A node of fewer GPUs is no more than its GPUs.
_LEAST_GPUS = 4
# Half of the odds of a false name is for how rates are, half for how they move.
_EACH = FALSE_NAMES / 2
ANY_SLOT, ALL_GPUS = "any", "all GPUs"

Chosen = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cell:
    """Peers: what was measured of one model, VBIOS, driver and slot in one setting, or too little to compare.

    `share` is the smallest loss against the median that is named, 0.03 for 3 %; None where there are too few peers.
    """

    rate: Rate
    setting: Setting
    model: str
    vbios: str
    slot: str
    spread: Spread
    share: float | None


@dataclass(frozen=True)
class Slow:
    """A rate that none of its peers can have: `card` of a host, or all its GPUs together (their median)."""

    host: int
    card: Card
    at: int
    value: float
    cell: Cell

    @property
    def lost(self) -> float:
        """The share of the median that is missing."""
        return 1 - self.value / self.cell.spread.median

    @property
    def mads(self) -> float | None:
        """How many MADs it lies under the median; None where the MAD is 0."""
        spread = self.cell.spread
        return (spread.median - self.value) / spread.mad if spread.mad else None


@dataclass(frozen=True)
class Drift:
    """A rate that went down against those of its peers: by `per_week`, a share, over `weeks`, told by `points` runs.

    `usual` is the spread of the peers' own changes a week over as long.
    """

    host: int
    card: Card
    at: int
    rate: Rate
    per_week: float
    weeks: float
    points: int
    usual: Spread

    @property
    def lost(self) -> float:
        """The share that went over all the weeks."""
        return -self.per_week * self.weeks

    @property
    def mads(self) -> float | None:
        """How many MADs its change lies under the peers' median change; None where the MAD is 0."""
        return (self.usual.median - self.per_week) / self.usual.mad if self.usual.mad else None


@dataclass(frozen=True)
class Judged:
    """All peers, and what lies outside. `tests` are the rates that were held against a limit."""

    cells: tuple[Cell, ...]
    slow: tuple[Slow, ...]
    drifts: tuple[Drift, ...]
    tests: int


class _Peers(NamedTuple):
    """Rows of one rate that are alike but for the slot: as shares of their slot's median, less 1."""

    rate: int
    rows: Chosen
    slots: tuple[tuple[str, Chosen], ...]


def judge(names: Names, frame: Frame, weekly: Iterable[Frame], least: int = LEAST_PEERS) -> Judged:
    """Judge the newest points by those of their peers, and what the weeks say. `least`: fewer peers are not enough."""
    groups = list(_groups(names, frame, least))
    nodes = [(peers, hosts) for peers in groups if len((hosts := _nodes(names, frame, peers)).rows) >= least]
    tests = sum(len(peers.rows) for peers in groups) + sum(len(hosts.rows) for _, hosts in nodes)
    cells: list[Cell] = list(_too_few(names, frame, least))
    slow: list[Slow] = []
    for peers in groups:
        _judge_cards(names, frame, peers, tests, cells, slow)
    for peers, hosts in nodes:
        _judge_nodes(names, frame, peers, hosts, tests, cells, slow)
    drifts = tuple(_drifts(names, frame, weekly, least))
    return Judged(tuple(cells), tuple(slow), drifts, tests)


def relative(values: Floats) -> Floats:
    """Values as shares of their median, less 1."""
    return values / np.median(values) - 1


def _alike(hosts: Numbers, shares: Floats) -> float:
    """How many values say no more than one: all GPUs of a host where it alone decides, 1 where they know nothing of
    each other. It is the design effect of samples that come in clusters (Kish, Survey Sampling, 1965), by MADs."""
    _, numbers, each = np.unique(hosts, return_inverse=True, return_counts=True)
    means, wide = np.bincount(numbers, shares) / each, spread_of(shares).mad
    most = float(each.mean())
    return min(max(1.0, most * (spread_of(means).mad / wide) ** 2), most) if wide else most


# --- how rates are ---


def _keys(names: Names, frame: Frame) -> tuple[Numbers, Numbers]:
    """For each row a number of what is alike in all but the slot, and one with the slot."""
    kinds = frame.setting * (int(names.kind_of.max(initial=0)) + 1) + names.kind_of[frame.card]
    return kinds, kinds * (int(names.slot_of.max(initial=0)) + 1) + names.slot_of[frame.card]


def _split(keys: Numbers, rows: Chosen) -> list[Chosen]:
    """The rows, which are in the order of their keys, by key."""
    return np.split(rows, np.flatnonzero(np.diff(keys)) + 1) if len(rows) else []


def _kinds(names: Names, frame: Frame) -> Iterator[tuple[int, list[Chosen]]]:
    """Of each rate the rows of each kind, by slot."""
    kinds, slots = _keys(names, frame)
    order = np.argsort(slots, kind="stable")
    for rate in range(len(names.rates)):
        rows = order[~np.isnan(frame.values[order, rate])]
        for group in _split(kinds[rows], rows):
            yield rate, _split(slots[group], group)


def _groups(names: Names, frame: Frame, least: int) -> Iterator[_Peers]:
    """The peers of each rate: slots with enough of their own, and the others together where they are enough."""
    for rate, cells in _kinds(names, frame):
        large = [(names.cards[int(frame.card[rows[0]])].slot, rows) for rows in cells if len(rows) >= least]
        small = [rows for rows in cells if len(rows) < least]
        if small and sum(map(len, small)) >= least:
            large.append((ANY_SLOT, np.concatenate(small)))
        if large:
            yield _Peers(rate, np.concatenate([rows for _, rows in large]), tuple(large))


def _too_few(names: Names, frame: Frame, least: int) -> Iterator[Cell]:
    """What has too few peers, so that it can be said."""
    for rate, cells in _kinds(names, frame):
        small = [rows for rows in cells if len(rows) < least]
        if 0 < sum(map(len, small)) < least:
            yield _cell(names, frame, rate, ANY_SLOT, np.concatenate(small), None)


def _cell(names: Names, frame: Frame, rate: int, slot: str, rows: Chosen, share: float | None) -> Cell:
    card = names.cards[int(frame.card[rows[0]])]
    setting = names.settings[int(frame.setting[rows[0]])]
    return Cell(names.rates[rate], setting, card.model, card.vbios, slot, spread_of(frame.values[rows, rate]), share)


def _shares(frame: Frame, peers: _Peers) -> Floats:
    return np.concatenate([relative(frame.values[rows, peers.rate]) for _, rows in peers.slots])


def _judge_cards(names: Names, frame: Frame, peers: _Peers, tests: int, cells: list[Cell], slow: list[Slow]) -> None:
    shares = _shares(frame, peers)
    hosts = frame.host[peers.rows]
    limit, wide = lower_limit(shares, tests, _EACH, _alike(hosts, shares)) or 0.0, wideness(shares)
    for slot, rows in peers.slots:
        own = relative(frame.values[rows, peers.rate])
        # The tail of all slots together knows more of it; a slot that spreads wider has so much more room.
        room = max(1.0, wideness(own) / wide) if wide > 0 else 1.0
        share = max(-limit * room, LEAST_SHARE)
        cell = _cell(names, frame, peers.rate, slot, rows, share)
        cells.append(cell)
        slow += [
            Slow(
                int(frame.host[row]),
                names.cards[int(frame.card[row])],
                int(frame.at[row]),
                float(frame.values[row, peers.rate]),
                cell,
            )
            for row in rows[own < -share]
        ]


class _Nodes(NamedTuple):
    """A row of each host, the median share of its GPUs, and of their rates."""

    rows: Chosen
    shares: Floats
    values: Floats


def _nodes(names: Names, frame: Frame, peers: _Peers) -> _Nodes:
    """The hosts of peers with several GPUs among them."""
    rows = peers.rows
    hosts, shares, values = frame.host[rows], _shares(frame, peers), frame.values[rows, peers.rate]
    _, first, each = np.unique(hosts, return_index=True, return_counts=True)
    several = each >= _LEAST_GPUS
    return _Nodes(rows[first[several]], _medians(hosts, shares)[several], _medians(hosts, values)[several])


def _medians(keys: Numbers, values: Floats) -> Floats:
    """The median of the values of each key, in the order of the keys."""
    ordered = values[np.lexsort((values, keys))]
    _, each = np.unique(keys, return_counts=True)
    start = np.cumsum(each) - each
    return np.asarray((ordered[start + (each - 1) // 2] + ordered[start + each // 2]) / 2)


def _judge_nodes(
    names: Names, frame: Frame, peers: _Peers, hosts: _Nodes, tests: int, cells: list[Cell], slow: list[Slow]
) -> None:
    """Hosts whose GPUs are slow together: each of them may be within what one GPU can be."""
    middle = float(np.median(hosts.shares))
    share = max(middle - (lower_limit(hosts.shares, tests, _EACH) or 0.0), LEAST_SHARE)
    cell = _cell(names, frame, peers.rate, ALL_GPUS, hosts.rows, share)
    # The median of a host's GPUs, as if all its slots were alike.
    usual = float(np.median(hosts.values))
    spread = Spread(usual, float(np.median(np.abs(hosts.shares - middle))) * usual, len(hosts.rows))
    cell = Cell(cell.rate, cell.setting, cell.model, cell.vbios, cell.slot, spread, share)
    cells.append(cell)
    for row, own in zip(hosts.rows, hosts.shares, strict=True):
        if own - middle < -share:
            one = names.cards[int(frame.card[row])]
            whole = Card("", one.model, one.vbios, ALL_GPUS)
            slow.append(Slow(int(frame.host[row]), whole, int(frame.at[row]), usual * (1 + own - middle), cell))


# --- how rates move ---


class _Sums:
    """The sums of a straight line through each GPU's points, for each rate."""

    def __init__(self, gpus: int, rates: int) -> None:
        self.first = np.full((gpus, rates), np.inf)
        self.last = np.full((gpus, rates), -np.inf)
        self.n, self.t, self.tt, self.y, self.ty = np.zeros((5, gpus, rates))

    def add(self, gpu: Numbers, rate: int, week: Floats, share: Floats) -> None:
        """Points of GPUs, each of which is there once."""
        self.n[gpu, rate] += 1
        self.t[gpu, rate] += week
        self.tt[gpu, rate] += week * week
        self.y[gpu, rate] += share
        self.ty[gpu, rate] += week * share
        self.first[gpu, rate] = np.minimum(self.first[gpu, rate], week)
        self.last[gpu, rate] = np.maximum(self.last[gpu, rate], week)


def _drifts(names: Names, frame: Frame, weekly: Iterable[Frame], least: int) -> Iterator[Drift]:
    """GPUs of today's whose rates, against their peers' of the same week, went down over the weeks.

    The slope of a line is divided by its own uncertainty in terms of one run's, so that GPUs with few points and with
    many are peers.
    """
    sums, began = _Sums(names.gpus, len(names.rates)), None
    for week in weekly:
        began = int(week.at.min(initial=0)) if began is None and len(week.at) else began
        of = names.gpu_of[week.card]
        for peers in _groups(names, week, least):
            rows = peers.rows
            times = (week.at[rows] - (began or 0)) / WEEK_S
            sums.add(of[rows], peers.rate, times, np.log1p(_shares(week, peers)))
    today = names.gpu_of[frame.card]
    kinds = names.kind_of[frame.card]
    lines = []
    for rate in range(len(names.rates)):
        n, t, y = sums.n[today, rate], sums.t[today, rate], sums.y[today, rate]
        told = (n >= LEAST_POINTS) & (sums.last[today, rate] - sums.first[today, rate] >= LEAST_WEEKS)
        rows = np.flatnonzero(told & ~np.isnan(frame.values[:, rate]))
        n, t, y = n[rows], t[rows], y[rows]
        around = sums.tt[today[rows], rate] - t * t / n
        slope = (sums.ty[today[rows], rate] - t * y / n) / around
        order = np.argsort(kinds[rows], kind="stable")
        for group in _split(kinds[rows[order]], order):
            if len(group) >= least:
                lines.append((rate, rows[group], slope[group], np.sqrt(around[group])))
    tests = sum(len(rows) for _, rows, _, _ in lines)
    for rate, rows, slope, sure in lines:
        scaled = slope * sure - np.median(slope * sure)
        limit = lower_limit(scaled, tests, _EACH, _alike(frame.host[rows], scaled)) or 0.0
        weeks = sums.last[today[rows], rate] - sums.first[today[rows], rate]
        usual = spread_of(slope)
        for place in np.flatnonzero((scaled < limit) & (-slope * weeks > LEAST_SHARE)):
            row = rows[place]
            yield Drift(
                int(frame.host[row]),
                names.cards[int(frame.card[row])],
                int(frame.at[row]),
                names.rates[rate],
                float(slope[place]),
                float(weeks[place]),
                int(sums.n[today[row], rate]),
                usual,
            )
