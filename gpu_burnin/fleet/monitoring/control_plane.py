"""The control plane as its monitoring sees it: members of etcd, API servers, balancers, snapshots, certificates.

Nothing is asked of the API, which may be what is down.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from gpu_burnin.fleet.monitoring.answers import WRONG, query, reason_of, rows_of, sample, utc
from gpu_burnin.fleet.monitoring.line import Monitoring, NoAnswerError, asking

# Jobs of Prometheus that are control plane, in the order in which they are told.
JOBS = {"etcd": "etcd", "apiserver": "API server", "balancer": "balancer", "admitter": "admitter"}
_DAY_S = 86400.0
_UP = 'up{job=~"' + "|".join(JOBS) + '"}'
_ETCD = "etcd_server_(has_leader|is_leader|quota_backend_bytes)|etcd_mvcc_db_total_size_in_bytes"
_LAST, _PERIOD = "muster_etcd_backup_last_success_timestamp_seconds", "muster_etcd_backup_period_seconds"
_ENDS, _BEGAN = "muster_certificate_expires_timestamp_seconds", "muster_certificate_issued_timestamp_seconds"
_UNREADABLE = "muster_certificate_unreadable"
# Of the nodes only those certificates that end first: thousands of nodes have thousands.
_MOST_OF_NODES = 20
# As the rule of MusterCertificateExpires has it (roles/fleet_monitoring/files/rules/gate.yml).
_SHARE_LEFT, _MOST_LEFT_S, _OF_AUTHORITY, _AUTHORITY_S = 0.07, 21 * _DAY_S, 0.05, 400 * _DAY_S


@dataclass(frozen=True)
class Part:
    """One process of the control plane on a host, and whether it answers its monitoring."""

    kind: str
    host: str
    up: bool


@dataclass(frozen=True)
class Member:
    """What a member of etcd says of itself; None where it did not."""

    host: str
    leads: bool | None = None
    has_leader: bool | None = None
    size_bytes: float | None = None
    quota_bytes: float | None = None


@dataclass(frozen=True)
class Snapshots:
    """The newest verified snapshot of an etcd cluster."""

    cluster: str
    newest: str
    age_s: float
    late: bool


@dataclass(frozen=True)
class Certificate:
    """A file with certificates on a host. `days_left` is None for one that is gone or cannot be read."""

    host: str
    file: str
    days_left: float | None
    expires: str
    due: bool


@dataclass(frozen=True)
class ControlPlane:
    """What was read. `problems` says what is missing and why."""

    source: str
    problems: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    members: tuple[Member, ...] = ()
    snapshots: tuple[Snapshots, ...] = ()
    certificates: tuple[Certificate, ...] = ()

    @property
    def sick(self) -> tuple[str, ...]:
        """What needs a person, each in a sentence."""
        found = [f"{part.host}: {JOBS[part.kind]} does not answer its monitoring" for part in self.parts if not part.up]
        found += [f"{one.host}: etcd has no leader" for one in self.members if one.has_leader is False]
        found += [
            f"etcd {one.cluster}: the newest verified snapshot is of {one.newest}; run playbooks/etcd_backup.yml"
            for one in self.snapshots
            if one.late
        ]
        found += [
            f"{one.host}: {one.file} is gone or cannot be read; run site.yml for that host"
            if one.days_left is None
            else f"{one.host}: {one.file} ends {one.expires}; run site.yml, which renews it"
            for one in self.certificates
            if one.due
        ]
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**asdict(self), "sick": [*self.sick]}


def read(places: Sequence[Monitoring], now: datetime) -> ControlPlane:
    """What the first place that answers knows; with the problems of all asked."""
    problems: list[str] = []
    for place in places:
        try:
            return _read(place, now.timestamp(), problems)
        except (NoAnswerError, *WRONG) as error:
            problems.append(reason_of(error))
    return ControlPlane("", tuple(problems))


def _read(where: Monitoring, now_s: float, problems: list[str]) -> ControlPlane:
    with asking(where) as ask:

        def vector(expression: str) -> list[tuple[dict[str, str], float]]:
            """Labels and value of each series; what is no number is left out."""
            data = query(ask, where, problems, "query", {"query": expression})
            rows = [(labels, sample(row["value"])[1]) for labels, row in rows_of(data, "vector")]
            return [(labels, value) for labels, value in rows if value is not None]

        up = vector(_UP)
        if not up:
            raise NoAnswerError(f"{where.name}: Prometheus knows no host of the control plane: look at its targets")
        parts = [Part(labels.get("job", ""), labels.get("instance", ""), value == 1) for labels, value in up]
        said_by: dict[str, dict[str, float]] = {}
        for labels, value in vector(f'{{__name__=~"{_ETCD}"}}'):
            said_by.setdefault(labels.get("instance", ""), {})[labels.get("__name__", "")] = value
        backups: dict[str, dict[str, float]] = {}
        for labels, value in vector(f'{{__name__=~"{_LAST}|{_PERIOD}"}}'):
            of = backups.setdefault(labels.get("cluster", ""), {})
            name = labels.get("__name__", "")
            of[name] = max(value, of.get(name, value))
        certificates = [
            certificate
            for expression in (
                f'{{__name__=~"{_ENDS}|{_BEGAN}|{_UNREADABLE}"}} and on (instance) {_UP}',
                f'{{__name__=~"{_ENDS}|{_BEGAN}"}} and on (instance, file) '
                f"bottomk({_MOST_OF_NODES}, {_ENDS} unless on (instance) {_UP})",
            )
            for certificate in _certificates(vector(expression), now_s)
        ]
    order = list(JOBS)
    etcd = [part.host for part in parts if part.kind == "etcd"]
    return ControlPlane(
        where.name,
        tuple(problems),
        tuple(sorted(parts, key=lambda part: (order.index(part.kind), part.host))),
        tuple(_member(host, said_by.get(host, {})) for host in sorted(etcd)),
        tuple(_snapshots(cluster, told, now_s) for cluster, told in sorted(backups.items()) if _LAST in told),
        tuple(sorted(certificates, key=lambda one: (-1.0 if one.days_left is None else one.days_left, one.host))),
    )


def _member(host: str, told: dict[str, float]) -> Member:
    leads, has = told.get("etcd_server_is_leader"), told.get("etcd_server_has_leader")
    return Member(
        host,
        None if leads is None else leads == 1,
        None if has is None else has == 1,
        told.get("etcd_mvcc_db_total_size_in_bytes"),
        told.get("etcd_server_quota_backend_bytes"),
    )


def _snapshots(cluster: str, told: dict[str, float], now_s: float) -> Snapshots:
    age_s = now_s - told[_LAST]
    # As the rule of MusterSnapshotOld has it: twice the period.
    return Snapshots(cluster, utc(told[_LAST]), age_s, late=age_s > 2 * told.get(_PERIOD, float("inf")))


def _certificates(rows: Sequence[tuple[dict[str, str], float]], now_s: float) -> list[Certificate]:
    ends, began, unreadable = _by_file(rows, _ENDS), _by_file(rows, _BEGAN), _by_file(rows, _UNREADABLE)
    found = [Certificate(host, file, None, "", due=True) for (host, file), value in unreadable.items() if value == 1]
    for (host, file), end_s in ends.items():
        left_s, life_s = end_s - now_s, end_s - began.get((host, file), end_s)
        due = left_s < min(_SHARE_LEFT * life_s, _MOST_LEFT_S) or (
            life_s > _AUTHORITY_S and left_s < _OF_AUTHORITY * life_s
        )
        found.append(Certificate(host, file, left_s / _DAY_S, utc(end_s), due=due or left_s <= 0))
    return found


def _by_file(rows: Sequence[tuple[dict[str, str], float]], name: str) -> dict[tuple[str, str], float]:
    return {
        (labels.get("instance", ""), labels.get("file", "")): value
        for labels, value in rows
        if labels.get("__name__") == name
    }
