"""The numbers of a fleet: what Prometheus has recorded, what fires, how the states went. What is missing says so.

Figures of the whole fleet are recorded series alone (roles/fleet_monitoring/files/rules), so that a page costs the same
at any size; only whether each host answers, and where it stands, is asked for host by host.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from gpu_burnin.fleet.monitoring.answers import WRONG, dicts, get, query, reason_of, rows_of, sample, text, texts, utc
from gpu_burnin.fleet.monitoring.line import Ask, Monitoring, NoAnswerError, asking
from gpu_burnin.system.clock import parse_rfc3339

STATES = "muster:nodes"
FSYNC, QUOTA, HAS_LEADER = "muster:etcd_fsync_seconds:p99", "muster:etcd_quota:share", "muster:etcd_has_leader"
API_SECONDS, API_ERRORS, API_RATE = "muster:api_seconds:p99", "muster:api_errors:share", "muster:api_requests:rate5m"
OVERDUE, PLACE_DOWN = "muster:tests_overdue:total", "muster:place_down:share"
RECORDED = (STATES, FSYNC, QUOTA, HAS_LEADER, API_SECONDS, API_ERRORS, API_RATE, OVERDUE, PLACE_DOWN)
# No error was ever counted; no host has a place in the inventory.
_MAY_LACK = frozenset({API_ERRORS, PLACE_DOWN})
# Rules are evaluated every fleet_monitoring_interval_s (30 s): a value this old is none of now.
MOST_AGE_S = 150.0
# By so much the clocks of this machine and of the monitoring host may differ.
_MOST_AHEAD_S = 60.0
# The most severe first; critical and warning are those of rules that a site added.
_SEVERITIES = ("page", "critical", "ticket", "warning")
PERIODS: tuple[tuple[str, int, int], ...] = (("24 h", 86400, 300), ("30 d", 30 * 86400, 7200))


@dataclass(frozen=True, slots=True)
class Value:
    """A recorded series as it is now."""

    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Alert:
    """One that fires. `quiet` says why nobody is told: silenced or inhibited, else ""."""

    name: str
    severity: str
    since: str
    summary: str
    runbook: str
    labels: Mapping[str, str]
    quiet: str = ""


@dataclass(frozen=True, slots=True)
class Host:
    """Whether it answers its monitoring, and where it stands (rack, switch, feed)."""

    up: bool
    place: Mapping[str, str]


@dataclass(frozen=True)
class Trend:
    """Nodes by state at times from `start_s` (Unix) on, `step_s` apart; None where nothing was recorded."""

    period: str
    start_s: float
    step_s: int
    states: Mapping[str, Sequence[float | None]]


@dataclass(frozen=True)
class Numbers:
    """What was read. `problems` says what is missing and why; None of a part is that it is not known."""

    source: str
    problems: tuple[str, ...] = ()
    values: Mapping[str, tuple[Value, ...]] | None = None
    alerts: tuple[Alert, ...] | None = None
    hosts: Mapping[str, Host] | None = None
    trends: tuple[Trend, ...] = ()

    def of(self, name: str) -> tuple[Value, ...]:
        """The values of a recorded series; none where it is missing."""
        return (self.values or {}).get(name, ())

    @property
    def active(self) -> tuple[Alert, ...]:
        """The alerts that somebody is told of."""
        return tuple(alert for alert in self.alerts or () if not alert.quiet)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "source": self.source,
            "problems": [*self.problems],
            "values": None
            if self.values is None
            else {
                name: [{"labels": dict(one.labels), "value": one.value} for one in of]
                for name, of in self.values.items()
            },
            "alerts": None
            if self.alerts is None
            else [
                {
                    "name": one.name,
                    "severity": one.severity,
                    "since": one.since,
                    "summary": one.summary,
                    "runbook": one.runbook,
                    "labels": dict(one.labels),
                    "quiet": one.quiet,
                }
                for one in self.alerts
            ],
            "hosts": None
            if self.hosts is None
            else {name: {"up": host.up, "place": dict(host.place)} for name, host in self.hosts.items()},
            "trends": [
                {
                    "period": one.period,
                    "start": utc(one.start_s),
                    "step_s": one.step_s,
                    "states": {state: [*values] for state, values in one.states.items()},
                }
                for one in self.trends
            ],
        }


NOT_ASKED = "not read: give --monitoring HOST, a host of the group monitoring, or --prometheus URL"


def nothing() -> Numbers:
    """Where nobody was asked."""
    return Numbers("", (f"alerts, trends and control plane were {NOT_ASKED}",))


def read(places: Sequence[Monitoring], now: datetime) -> Numbers:
    """The numbers of the first place whose Prometheus answers with fresh values; with the problems of all asked."""
    if not places:
        return nothing()
    problems: list[str] = []
    best: Numbers | None = None
    for place in places:
        found = _read(place, now)
        problems += found.problems
        if best is None or (best.values is None and found.values is not None):
            best = found
        if found.values is not None:
            break
    assert best is not None
    return Numbers(best.source, tuple(problems), best.values, best.alerts, best.hosts, best.trends)


@dataclass
class _Reading:
    ask: Ask
    where: Monitoring
    now: datetime
    problems: list[str] = field(default_factory=list)

    def query(self, path: str, **parameters: str) -> Any:
        """The data of an answer of Prometheus."""
        return query(self.ask, self.where, self.problems, path, parameters)

    def values(self) -> dict[str, tuple[Value, ...]]:
        """The recorded series, those that are fresh. Raises NoAnswerError when none is."""
        wanted = "|".join(RECORDED)
        rows = rows_of(self.query("query", query=f'{{__name__=~"{wanted}"}}[5m]'), "matrix")
        found: dict[str, list[Value]] = {}
        newest = -math.inf
        for labels, row in rows:
            at, value = sample(row["values"][-1])
            newest = max(newest, at)
            if -_MOST_AHEAD_S <= self.now.timestamp() - at <= MOST_AGE_S and value is not None:
                name = labels.pop("__name__", "")
                found.setdefault(name, []).append(Value(labels, value))
        age_s = self.now.timestamp() - newest
        if not rows:
            raise NoAnswerError(
                f"{self.where.name}: Prometheus has recorded nothing for 5 minutes: look whether its rules are "
                "loaded and its targets are up"
            )
        if not -_MOST_AHEAD_S <= age_s <= MOST_AGE_S:
            what = "stale" if age_s > 0 else "of the future: compare the clocks"
            raise NoAnswerError(
                f"{self.where.name}: the newest value that Prometheus recorded is of {utc(newest)}, {what}; "
                "none is shown"
            )
        missing = [name for name in RECORDED if name not in found and name not in _MAY_LACK]
        if missing:
            self.problems.append(f"{self.where.name}: Prometheus has no value of {', '.join(missing)}")
        return {name: tuple(values) for name, values in found.items()}

    def hosts(self) -> dict[str, Host]:
        """Each host that is scraped."""
        rows = rows_of(self.query("query", query='max by (instance, rack, switch, feed) (up{job="node"})'), "vector")
        return {labels.pop("instance", ""): Host(sample(row["value"])[1] == 1, labels) for labels, row in rows}

    def trend(self, period: str, length_s: int, step_s: int) -> Trend | None:
        """The states over a period that ends now, on whole steps: None before there is one."""
        end = int(self.now.timestamp()) // step_s * step_s
        start = end - length_s
        data = self.query("query_range", query=STATES, start=str(start), end=str(end), step=str(step_s))
        states: dict[str, list[float | None]] = {}
        for labels, row in rows_of(data, "matrix"):
            line = states.setdefault(text(labels.get("state")), [None] * (length_s // step_s + 1))
            for at, value in map(sample, row["values"]):
                index = round((at - start) / step_s)
                if 0 <= index < len(line):
                    line[index] = value
        return Trend(period, start, step_s, states) if states else None

    def alerts(self) -> tuple[Alert, ...]:
        """What fires by Prometheus, and what Alertmanager has: which of them nobody is told of, and others'."""
        fire = [item for item in dicts(get(self.query("alerts"), "alerts")) if item.get("state") == "firing"]
        told: list[Mapping[str, Any]] = []
        try:
            told = dicts(self.ask(self.where.alertmanager, "/api/v2/alerts", {}))
        except NoAnswerError as error:
            self.problems.append(
                f"{error}; alerts are Prometheus's own, nobody may be told of them, and silences are not known"
            )
        return merged(fire, told)


def merged(fire: Iterable[Mapping[str, Any]], told: Iterable[Mapping[str, Any]]) -> tuple[Alert, ...]:
    """Alerts of Prometheus and Alertmanager, each once, the most severe first. Alertmanager adds labels."""
    ours: dict[tuple[str, str], list[frozenset[tuple[str, str]]]] = {}
    quiet: dict[frozenset[tuple[str, str]], str] = {}
    found: dict[frozenset[tuple[str, str]], Mapping[str, Any]] = {}
    for item in fire:
        key = _key(item)
        found[key] = {**item, "startsAt": item.get("activeAt")}
        ours.setdefault(_who(item), []).append(key)
    for item in told:
        key = next((one for one in ours.get(_who(item), ()) if one <= _key(item)), _key(item))
        found.setdefault(key, item)
        status = item.get("status")
        if isinstance(status, dict) and status.get("state") == "suppressed":
            quiet[key] = "silenced" if status.get("silencedBy") else "inhibited"
    alerts = [_alert(item, quiet.get(key, "")) for key, item in found.items()]
    return tuple(sorted(alerts, key=_order))


def _order(alert: Alert) -> tuple[object, ...]:
    """By who is told, by severity, then what is wrong with a GPU, then the oldest."""
    severity = _SEVERITIES.index(alert.severity) if alert.severity in _SEVERITIES else len(_SEVERITIES)
    return bool(alert.quiet), severity, "gpu" not in alert.labels, alert.since, alert.name, alert.summary


def _alert(item: Mapping[str, Any], quiet: str) -> Alert:
    labels, notes = texts(item.get("labels")), texts(item.get("annotations"))
    name = labels.get("alertname", "")
    since = text(item.get("startsAt"))
    with suppress(ValueError):
        since = utc(parse_rfc3339(since).timestamp())
    return Alert(
        name, labels.get("severity", ""), since, notes.get("summary", ""), notes.get("runbook", ""), labels, quiet
    )


def _read(where: Monitoring, now: datetime) -> Numbers:
    problems: list[str] = []
    try:
        with asking(where) as ask:
            reading = _Reading(ask, where, now, problems)
            # What hangs or is stale hangs for the other questions too: it costs its time once.
            values = reading.values()
            alerts, hosts = None, None
            trends: list[Trend | None] = []
            with _told(problems):
                alerts = reading.alerts()
            with _told(problems):
                hosts = reading.hosts()
            for period in PERIODS:
                with _told(problems):
                    trends.append(reading.trend(*period))
            known = tuple(trend for trend in trends if trend is not None)
            if trends and not known:
                problems.append(
                    f"{where.name}: Prometheus has recorded no states of nodes in the last {PERIODS[-1][0]}"
                )
            return Numbers(where.name, tuple(problems), values, alerts, hosts, known)
    except (NoAnswerError, *WRONG) as error:
        return Numbers(where.name, (*problems, reason_of(error)))


class _told:
    """A part that cannot be read is a problem, and keeps none of the others from being read."""

    def __init__(self, problems: list[str]) -> None:
        self._problems = problems

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, (NoAnswerError, *WRONG)):
            self._problems.append(reason_of(error))
            return True
        return False


def _key(item: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    return frozenset(texts(item.get("labels")).items())


def _who(item: Mapping[str, Any]) -> tuple[str, str]:
    labels = texts(item.get("labels"))
    return labels.get("alertname", ""), labels.get("instance", "")
