"""The host's links on the page (PCIe), and the opinion of another program (DCGM)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpu_burnin.checks.dcgm.result import DcgmCoverage, DiagnosticRow, release_text
from gpu_burnin.checks.pcie.result import LinkUnderLoad, PcieCoverage
from gpu_burnin.report.model import Report
from gpu_burnin.report.units import results_of
from gpu_burnin.system.quantities import GB, number
from gpu_burnin.types import CheckResult, Measurement

# Measurements of the pcie check by name, with their headings: alone first, then with all GPUs at once.
_RATES: tuple[tuple[str, str], ...] = (
    ("h2d", "to GPU"),
    ("d2h", "from GPU"),
    ("duplex", "both at once"),
    ("h2d_all", "to GPU"),
    ("d2h_all", "from GPU"),
)
ALONE = 3
# What the words of DCGM weigh; what was skipped weighs nothing.
_VERDICTS: Mapping[str, str] = {"pass": "PASS", "fail": "FAIL", "warn": "WARNING", "skip": "", "not run": ""}


@dataclass(frozen=True)
class LinkRow:
    """A GPU: its link in words, whether it is narrower than it could be, (text, below its floor) of each rate."""

    gpu: str
    link: str
    narrow: bool
    cells: tuple[tuple[str, bool], ...]
    verified: str


@dataclass(frozen=True)
class Pcie:
    """The table: heading and group of each rate that was measured, rows, then median, spread and floor of each."""

    columns: tuple[str, ...]
    alone: int
    rows: tuple[LinkRow, ...]
    sums: tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Opinion:
    """What DCGM's diagnostics said: its release and level in words, and (test, result, verdict, GPUs, message)."""

    about: str
    tests: tuple[tuple[str, str, str, str, str], ...]


def pcie(report: Report) -> Pcie | None:
    """The table of the links to the host, None where the pcie check gave no result."""
    checks = results_of(report, "pcie")
    if not checks:
        return None
    found = [{item.name: item for item in check.measurements} for check in checks]
    names = [name for name, _ in _RATES if any(name in items for items in found)]
    rows = tuple(_link_row(report, check, items, names) for check, items in zip(checks, found, strict=True))
    columns = {name: [items[name] for items in found if name in items] for name in names}
    sums = tuple(
        (title, tuple(sum_of(columns[name]) for name in names))
        for title, sum_of in (("median", _median), ("spread", _spread), ("floor", _floor))
    )
    headings = dict(_RATES)
    alone = sum(name in names for name, _ in _RATES[:ALONE])
    return Pcie(tuple(headings[name] for name in names), alone, rows, sums)


def _link_row(report: Report, check: CheckResult, items: Mapping[str, Measurement], names: Sequence[str]) -> LinkRow:
    coverage = check.coverage if isinstance(check.coverage, PcieCoverage) else None
    link, copies = (coverage.link if coverage else None) or LinkUnderLoad(), "-"
    if coverage:
        copies = number(coverage.copies_verified)
    generation, width = link.could_be
    now = f"gen {link.generation or '?'} x{link.width or '?'}" if link.generation or link.width else "-"
    could = f" (of gen {generation or '?'} x{width or '?'})" if link.is_narrow else ""
    cells = tuple((_rate(item := items.get(name)), bool(item and item.below_floor)) for name in names)
    return LinkRow(report.name(check.gpu), now + could, link.is_narrow, cells, copies)


def _rate(item: Measurement | None) -> str:
    return "-" if item is None or not math.isfinite(item.value) else _short(item.value)


def _short(value: float) -> str:
    """GB/s in a column of a table: one digit behind the point."""
    return f"{value / GB:,.1f}"


def _known(items: Sequence[Measurement]) -> list[float]:
    return [item.value for item in items if math.isfinite(item.value)]


def _median(items: Sequence[Measurement]) -> str:
    known = _known(items)
    return _short(statistics.median(known)) if len(known) > 1 else "-"


def _spread(items: Sequence[Measurement]) -> str:
    known = _known(items)
    middle = statistics.median(known) if len(known) > 1 else 0.0
    return f"{(max(known) - min(known)) / abs(middle):.1%}" if middle else "-"


def _floor(items: Sequence[Measurement]) -> str:
    item = next((item for item in items if item.floor is not None), None)
    if item is None or item.floor is None:
        return "-"
    confidence = f" ({item.floor_confidence})" if item.floor_confidence else ""
    return f"{number(item.floor / GB)}{confidence}"


def opinion(report: Report) -> Opinion | None:
    """What DCGM said, None where it was not asked."""
    check = next((check for check in report.checks if check.name == "dcgm"), None)
    if check is None:
        return None
    found = check.coverage if isinstance(check.coverage, DcgmCoverage) else None
    return Opinion(release_text(check), tuple(_tests(report, found.tests if found else ())))


def _tests(report: Report, tests: Iterable[DiagnosticRow]) -> Iterator[tuple[str, str, str, str, str]]:
    for test in tests:
        units = [_unit(report, gpu) for gpu in test.gpus]
        on = f"all {len(units)} GPUs" if len(units) == len(report.gpus) > 2 else ", ".join(units)
        verdict = _VERDICTS.get(test.result.lower(), "INCONCLUSIVE")
        yield test.name, test.result, verdict, on or "node", test.message


def _unit(report: Report, gpu: str | int) -> str:
    """A UUID, or DCGM's own number where it gives no serial; below 0 it means the node."""
    if isinstance(gpu, int):
        return f"DCGM's GPU {gpu}" if gpu >= 0 else "node"
    return report.name(gpu)
