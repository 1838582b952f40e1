"""The newest reports of many hosts: who is held, and why. Reads files only, and of a PASS no more than its head."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from gpu_burnin.api.run_files import EVIDENCE
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.node import authentic, reports
from gpu_burnin.node.report_head import read_head, read_parts
from gpu_burnin.node.store import Store, is_run_id
from gpu_burnin.report.check_findings import units_of
from gpu_burnin.report.model import Report
from gpu_burnin.report.order import ORDER_PARTS, Order, order_of
from gpu_burnin.report.units import without_name
from gpu_burnin.system.host_names import natural
from gpu_burnin.types import Reason, Verdict

SCHEMA = "muster-held/v1"
# Stands where a verdict stands, for a host whose report says nothing that can be believed.
UNREADABLE = "UNREADABLE"
# The worst first.
VERDICTS = (str(Verdict.FAIL), UNREADABLE, str(Verdict.INCONCLUSIVE), str(Verdict.PASS))


@dataclass(frozen=True)
class Why:
    """All reasons of one code and severity against a host: on which units, and the message of the first."""

    code: str
    severity: str
    units: tuple[str, ...]
    message: str
    more_messages: int = 0


@dataclass(frozen=True)
class HostReport:
    """The newest report of a host, by the name of its folder. Of one that cannot be believed `problem` says why.

    `order` is what to do next, None on PASS. `path` is "" where there is no report, `page` where none is beside it.
    """

    host: str
    verdict: str
    path: str = ""
    page: str = ""
    node: str = ""
    run_id: str = ""
    level: str = ""
    finished_at: str = ""
    simulated: bool = False
    interrupted: bool = False
    action: str = ""
    order: Order | None = None
    reasons: tuple[Why, ...] = ()
    problem: str = ""

    @property
    def next_step(self) -> str:
        """What to do next, as seen from the controller."""
        if self.order is None:
            return ""
        return self.order.sentence + (", then test it again" if self.order.command else "")

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of its reasons, the worst first."""
        return tuple(dict.fromkeys(why.code for why in self.reasons))


@dataclass(frozen=True)
class Fleet:
    """The hosts of a folder, the worst first."""

    directory: Path
    hosts: tuple[HostReport, ...]

    @property
    def held(self) -> tuple[HostReport, ...]:
        """Those without a PASS."""
        return tuple(host for host in self.hosts if host.verdict != Verdict.PASS)

    @property
    def passed(self) -> tuple[HostReport, ...]:
        """Those with one."""
        return tuple(host for host in self.hosts if host.verdict == Verdict.PASS)

    @property
    def verdicts(self) -> dict[str, int]:
        """How many hosts have each verdict, the worst first; those that none has are left out."""
        count = Counter(host.verdict for host in self.hosts)
        return {verdict: count[verdict] for verdict in VERDICTS if count[verdict]}

    @property
    def simulated(self) -> int:
        """How many hosts were tested on simulated hardware."""
        return sum(host.simulated for host in self.hosts)

    @property
    def reasons(self) -> dict[tuple[str, str], tuple[str, ...]]:
        """The hosts of each severity and code: the worst first, then those of most hosts."""
        found: dict[tuple[str, str], list[str]] = {}
        for host in self.held:
            for why in host.reasons:
                found.setdefault((why.severity, why.code), []).append(host.host)
        order = sorted(found, key=lambda key: (VERDICTS.index(key[0]), -len(found[key]), key[1]))
        return {key: tuple(found[key]) for key in order}

    @property
    def exit_code(self) -> int:
        """0: every host has a PASS on real hardware. 1: one has a FAIL. 3: neither."""
        verdicts = self.verdicts
        if Verdict.FAIL in verdicts:
            return EXIT_FAIL
        return EXIT_PASS if [*verdicts] == [Verdict.PASS] and not self.simulated else EXIT_INCONCLUSIVE

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "schema": SCHEMA,
            "directory": str(self.directory),
            "verdicts": {verdict: self.verdicts.get(verdict, 0) for verdict in VERDICTS},
            "simulated": self.simulated,
            "reasons": [
                {"severity": severity, "code": code, "hosts": [*hosts]}
                for (severity, code), hosts in self.reasons.items()
            ],
            "hosts": [asdict(host) for host in self.hosts],
        }


def is_fleet(path: Path) -> bool:
    """Whether `path` holds folders of hosts: no report and no state of a node itself, and reports one folder down."""
    store = Store(path)
    try:
        if not path.is_dir() or store.runs_dir.exists() or os.path.lexists(store.latest):
            return False
        if reports.newest_of_host(path) is not None:
            return False
        return any(reports.newest_of_host(path / name) for name in _folders(path))
    except OSError:
        return False  # who reads it as one report says what is wrong


def read_fleet(
    directory: Path, shown: Callable[[list[str]], Iterable[str]] = lambda names: names, host_key: Path | None = None
) -> Fleet:
    """The newest report of each folder in `directory`. `shown` hands the names on and may show how far it is.

    A report that cannot be read, or is not the one that its run signed, hides no other. `host_key`: see
    authentic.refuse_changed.
    """
    found = [_read(directory, name, host_key) for name in shown([*_folders(directory)])]
    found.sort(key=lambda host: (VERDICTS.index(host.verdict), host.codes, natural(host.host)))
    return Fleet(directory, tuple(found))


def _folders(directory: Path) -> Iterator[str]:
    """Names of the hosts' folders; those of runs of one node are none."""
    with os.scandir(directory) as entries:
        names = [entry.name for entry in entries if entry.is_dir()]
    return (name for name in sorted(names, key=natural) if not name.startswith(".") and not is_run_id(name))


def _read(directory: Path, name: str, host_key: Path | None) -> HostReport:
    path = None
    try:
        path = reports.newest_of_host(directory / name)
        if path is None:
            return HostReport(name, UNREADABLE, problem=f"{directory / name}: there is no report; test the host")
        return _report(name, path, host_key)
    except OSError as error:
        problem = f"{directory / name}: cannot be read ({error.strerror})"
    except GpuBurninError as error:
        problem = str(error)
    return HostReport(name, UNREADABLE, path=str(path or ""), problem=problem)


def _report(name: str, path: Path, host_key: Path | None) -> HostReport:
    """Raises GpuBurninError for a report that cannot be believed."""
    if os.path.lexists(path.with_name(EVIDENCE)):
        authentic.refuse_changed(path, reports.read(path), host_key)
    head, page = read_head(path), path.with_suffix(".html")
    host = HostReport(
        name,
        str(head.verdict),
        path=str(path),
        page=str(page) if page.is_file() else "",
        node=head.node,
        run_id=head.run_id,
        level=head.level,
        finished_at=head.finished_at,
        simulated=head.simulated,
        interrupted=head.interrupted,
        action=str(head.action),
    )
    return host if host.verdict == Verdict.PASS else _with_reasons(host, path)


def _with_reasons(host: HostReport, path: Path) -> HostReport:
    report = read_parts(path, ORDER_PARTS)
    groups: dict[tuple[str, str], list[Reason]] = {}
    for reason in report.reasons:
        groups.setdefault((str(reason.severity), reason.code), []).append(reason)
    reasons = tuple(_why(report, *key, found) for key, found in groups.items())
    return replace(host, order=order_of(report), reasons=reasons)


def _why(report: Report, severity: str, code: str, found: list[Reason]) -> Why:
    units = dict.fromkeys(unit for reason in found for unit in units_of(report, reason))
    messages = dict.fromkeys(without_name(report, reason) for reason in found)
    return Why(code, severity, tuple(units), next(iter(messages)), len(messages) - 1)
