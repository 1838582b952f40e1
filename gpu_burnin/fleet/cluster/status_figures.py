"""What a page of the fleet shows of its numbers: the trend of the states as plots, and how old the proofs are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from markupsafe import Markup

from gpu_burnin.api.record import State
from gpu_burnin.fleet.cluster.admissions import Snapshot
from gpu_burnin.fleet.cluster.rows import ORDER
from gpu_burnin.fleet.cluster.times import ago
from gpu_burnin.fleet.monitoring import numbers
from gpu_burnin.fleet.monitoring.numbers import Numbers, Trend, Value
from gpu_burnin.report.svg import Frame, Line, nice_range, nice_step, plot
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.quantities import number

_SIZE = (440, 190)
_DAY_S = 86400
# The colour of a state's line and its dashes, so that neither has to be seen alone.
_LINES: Mapping[str, str] = {
    State.READY: "line2",
    State.QUARANTINED: "line6",
    State.SUSPECT: "line1 dash1",
    State.REPAIRING: "line3 dash3",
    State.HELD: "line4 dash4",
    State.NEW: "line7 dash2",
    State.EXPIRING: "line5 dash5",
    State.TESTING: "line0 dash1",
}
AGES: tuple[tuple[str, float], ...] = (("1 day", 1), ("7 days", 7), ("30 days", 30), ("90 days", 90))


@dataclass(frozen=True)
class Plot:
    """A plot with its heading, what it shows in words, and its lines: (style classes, state)."""

    title: str
    note: str
    svg: Markup
    lines: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Row:
    """A line of the table of the control plane: which host, and its figures with whether each is beyond its limit."""

    host: str
    figures: tuple[tuple[str, str, bool], ...]


def plots(trend: Trend) -> Iterator[Plot]:
    """The ready nodes alone, since they would flatten all others; then the others."""
    known = {state: trend.states[state] for state in ORDER if state in trend.states}
    ready = {state: values for state, values in known.items() if state == State.READY}
    others = {state: values for state, values in known.items() if state != State.READY and any(values)}
    for title, states in (("Ready", ready), ("Not ready", others)):
        if states:
            yield _plot(f"{title}, last {trend.period}", trend, states)


def _plot(title: str, trend: Trend, states: Mapping[str, Sequence[float | None]]) -> Plot:
    told, lines, every = [], [], []
    for state, values in states.items():
        seen = [value for value in values if value is not None]
        every += seen
        last = values[-1] if values[-1] is not None else None
        now = f"{last:,.0f} now" if last is not None else "not known now"
        span = number(round(min(seen))) if min(seen) == max(seen) else f"{min(seen):,.0f} to {max(seen):,.0f}"
        told.append(f"{state}: {now}, {span}")
        times = [index * float(trend.step_s) for index in range(len(values))]
        lines.append(Line(_LINES.get(state, "line0"), state, times, values))
    gaps = sum(1 for row in zip(*states.values(), strict=True) if all(value is None for value in row))
    if gaps:
        told.append(f"nothing recorded for {ago(gaps * trend.step_s)} of it")
    note, y = "; ".join(told), nice_range(every, 4.0)
    length = trend.step_s * (len(next(iter(states.values()))) - 1)
    frame = Frame(
        *_SIZE, (0.0, float(length)), (max(y[0], 0.0), y[1]), 1.0, 1.0, "", max(1.0, nice_step(y[1] - y[0], 4)),
        tuple(_days(trend, length)),
    )  # fmt: skip
    spoken = f"Nodes, {title.lower()}: {note}"
    return Plot(title, note, plot(frame, spoken, lines), tuple((line.css, line.label) for line in lines))


def _days(trend: Trend, length_s: float) -> Iterator[tuple[float, str]]:
    """Whole hours of a day, or days of a month (UTC), some five of them."""
    step_s, form = (6 * 3600, "%H:%M") if length_s <= 2 * _DAY_S else (7 * _DAY_S, "%m-%d")
    first = -(-trend.start_s // step_s) * step_s
    while first <= trend.start_s + length_s:
        yield first - trend.start_s, datetime.fromtimestamp(first, UTC).strftime(form)
        first += step_s


def proofs(fleet: Snapshot) -> list[tuple[str, int]]:
    """How many nodes were proven within so long, each counted once; those never proven at the end."""
    left: list[float] = []
    never = 0
    for row in fleet.rows:
        try:
            left.append((fleet.at - parse_rfc3339(row.proven)) / timedelta(days=1))
        except ValueError:
            never += 1
    found, below = [], 0
    for name, days in AGES:
        count = sum(age <= days for age in left)
        found.append((f"within {name}", count - below))
        below = count
    return [*found, (f"older than {AGES[-1][0]}", len(left) - below), ("never", never)]


def _ms(value: float) -> str:
    return f"{value * 1000:,.1f} ms" if value < 1 else f"{value:,.2f} s"


def _percent(value: float) -> str:
    return f"{value * 100:.3g} %"


def _yes(value: float) -> str:
    return "yes" if value else "NO"


_Column = tuple[str, str, Callable[[float], str], Callable[[float], bool]]
# The limits are those of the alerts (rules/control-plane.yml).
_ETCD: tuple[_Column, ...] = (
    ("has a leader", numbers.HAS_LEADER, _yes, lambda value: not value),
    ("fsync p99", numbers.FSYNC, _ms, lambda value: value > 0.01),
    ("quota used", numbers.QUOTA, _percent, lambda value: value > 0.8),
)
_API: tuple[_Column, ...] = (
    ("requests", numbers.API_RATE, lambda value: f"{value:,.1f} /s", lambda value: False),
    ("p99", numbers.API_SECONDS, _ms, lambda value: value > 1),
    ("errors (5xx)", numbers.API_ERRORS, _percent, lambda value: value > 0.01),
)


def etcd(found: Numbers) -> list[Row]:
    """Each member of etcd."""
    return _table(found, _ETCD)


def api_servers(found: Numbers) -> list[Row]:
    """Each API server; its p99 is that of its slowest verb."""
    return _table(found, _API)


def places_down(found: Numbers) -> list[tuple[str, str]]:
    """The places of which hosts do not answer: which, and what share; the worst first."""
    down = sorted((one for one in found.of(numbers.PLACE_DOWN) if one.value > 0), key=lambda one: -one.value)
    return [(f"{one.labels.get('place', '')} {one.labels.get('name', '')}", _percent(one.value)) for one in down]


def overdue(found: Numbers) -> float | None:
    """How many nodes were not idle since their test was due; None where that is not known."""
    return max((one.value for one in found.of(numbers.OVERDUE)), default=None)


def _table(found: Numbers, columns: Sequence[_Column]) -> list[Row]:
    of: dict[str, dict[str, list[Value]]] = {}
    for _, series, _, _ in columns:
        for one in found.of(series):
            host = " ".join(filter(None, (one.labels.get("instance"), _other(one.labels.get("group")))))
            of.setdefault(host, {}).setdefault(series, []).append(one)
    rows = []
    for host in sorted(of):
        figures = []
        for title, series, told, bad in columns:
            # The worst of several: of a leader the least, of all else the most.
            values = [one.value for one in of[host].get(series, ())]
            value = (min if series == numbers.HAS_LEADER else max)(values) if values else None
            none = "none seen" if series == numbers.API_ERRORS else "missing"
            figures.append((title, none if value is None else told(value), value is not None and bad(value)))
        rows.append(Row(host, tuple(figures)))
    return rows


def _other(group: str | None) -> str:
    """The cluster of a member where it is not the usual one."""
    return f"({group})" if group and group != "etcd" else ""
