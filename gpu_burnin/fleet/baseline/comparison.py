"""What `muster baseline` says: everything that was compared and everything that lies outside, as values and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.fleet import REPORTS
from gpu_burnin.fleet.baseline import FALSE_NAMES, LEAST_PEERS, rates
from gpu_burnin.fleet.baseline import frame as frames
from gpu_burnin.fleet.baseline.judge import Cell, Drift, Slow, judge
from gpu_burnin.fleet.baseline.points import Card, Rate, Setting
from gpu_burnin.system.host_names import natural

SCHEMA = "muster-baseline/v1"
SLOWER, DRIFTS = "SLOWER_THAN_PEERS", "DRIFTS_FROM_PEERS"


@dataclass(frozen=True)
class Outside:
    """One rate of a GPU, or of a whole node, that lies outside (`code`: SLOWER_THAN_PEERS) or went down over the
    weeks (DRIFTS_FROM_PEERS). `lost` is the share that is missing, or went; `mads` is None where peers do not differ.

    Of a slow one there are `value` and `median`, of one that drifts `per_week`, `weeks` and `points`.
    """

    host: str
    node: str
    code: str
    card: Card
    rate: Rate
    lost: float
    mads: float | None
    peers: int
    tested_at: str
    value: float | None = None
    median: float | None = None
    mad: float | None = None
    per_week: float | None = None
    weeks: float | None = None
    points: int | None = None
    setting: Setting | None = None

    @property
    def place(self) -> str:
        """Which GPU it is, by its address and UUID, or the whole node."""
        return f"{self.card.slot} {self.card.uuid}" if self.card.uuid else "the whole node"


@dataclass(frozen=True)
class Baseline:
    """What was compared (`cells`), what lies outside, and the hosts that were not looked at, by why."""

    state: Path
    at: str
    least: int
    hosts: int
    gpus: int
    tests: int
    cells: tuple[Cell, ...]
    outside: tuple[Outside, ...]
    left_out: Mapping[str, int]
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0: nothing is outside. 1: something is. 3: nothing has enough peers."""
        if self.outside:
            return EXIT_FAIL
        return EXIT_PASS if self.tests else EXIT_INCONCLUSIVE

    @property
    def by_host(self) -> dict[str, tuple[Outside, ...]]:
        """What lies outside, by host: the host first that lost most."""
        found: dict[str, list[Outside]] = {}
        for one in sorted(self.outside, key=lambda one: -one.lost):
            found.setdefault(one.host, []).append(one)
        return {host: tuple(ones) for host, ones in found.items()}

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema": SCHEMA,
            "at": self.at,
            "state": str(self.state),
            "least_peers": self.least,
            "false_names_per_look": FALSE_NAMES,
            "hosts": self.hosts,
            "gpus": self.gpus,
            "rates_compared": self.tests,
            "left_out": dict(self.left_out),
            "problems": [*self.problems],
            "outside": [_outside_json(one) for ones in self.by_host.values() for one in ones],
            "peers": [_cell_json(cell) for cell in self.cells],
        }


def compare(state: Path, now: datetime, least: int = LEAST_PEERS) -> Baseline:
    """Take in the reports of a fleet's state that are new, and compare all. Raises RatesError."""
    path = state / rates.FILE
    taken = rates.take_in(path, rates.reports_of(state / REPORTS), now, all_there=True)
    with rates.DATABASE.reading(path) as connection:
        names = frames.read_names(connection)
        newest = frames.newest(connection, names)
        found = judge(names, newest, frames.weeks(connection, names), least)
        why_not = [why for (why,) in connection.execute("SELECT why_not FROM hosts WHERE why_not <> ''")]
    outside = [*(_of_slow(names, one) for one in found.slow), *(_of_drift(names, one) for one in found.drifts)]
    return Baseline(
        state,
        f"{now:%Y-%m-%dT%H:%M:%SZ}",
        least,
        len(names.hosts),
        len(newest.card),
        found.tests,
        found.cells,
        tuple(sorted(outside, key=lambda one: (natural(one.host), one.card.slot, one.rate.check, one.rate.name))),
        Counter(why_not),
        tuple(taken.problems),
    )


def _of_slow(names: frames.Names, one: Slow) -> Outside:
    host, spread = names.hosts[one.host], one.cell.spread
    return Outside(
        host.name, host.node, SLOWER, one.card, one.cell.rate, one.lost, one.mads, spread.peers, rates.time_of(one.at),
        value=one.value, median=spread.median, mad=spread.mad, setting=one.cell.setting,
    )  # fmt: skip


def _of_drift(names: frames.Names, one: Drift) -> Outside:
    host = names.hosts[one.host]
    return Outside(
        host.name, host.node, DRIFTS, one.card, one.rate, one.lost, one.mads, one.usual.peers, rates.time_of(one.at),
        per_week=one.per_week, weeks=one.weeks, points=one.points,
    )  # fmt: skip


def _outside_json(one: Outside) -> dict[str, Any]:
    found = asdict(one)
    card, rate = found.pop("card"), found.pop("rate")
    setting = found.pop("setting") or {}
    return {**found, "gpu": card.pop("uuid") or None, **card, **_rate_json(rate), "setting": setting or None}


def _cell_json(cell: Cell) -> dict[str, Any]:
    return {
        **_rate_json(asdict(cell.rate)),
        "model": cell.model,
        "vbios": cell.vbios,
        "slot": cell.slot,
        "setting": asdict(cell.setting),
        "peers": cell.spread.peers,
        "median": cell.spread.median,
        "mad": cell.spread.mad,
        "named_from_share": cell.share,
    }


def _rate_json(rate: Mapping[str, str]) -> dict[str, str]:
    return {"check": rate["check"], "rate": rate["name"], "unit": rate["unit"]}
