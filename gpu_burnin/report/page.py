"""What the page shows, put together out of a report: sums, groups and sentences. No markup."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from gpu_burnin.hardware import load_reasons
from gpu_burnin.hardware.reasons import is_note
from gpu_burnin.report.check_findings import common_codes, link_of, units_of
from gpu_burnin.report.formatting import bound, merged, without_numbers
from gpu_burnin.report.headline import first_reason, headline, listed
from gpu_burnin.report.model import NotRun, ReasonOrWarning, Report, TestedGpu, UnitCoverage
from gpu_burnin.report.order import order_of
from gpu_burnin.report.units import measured, without_name
from gpu_burnin.report.verdicts import columns, verdict_on
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.quantities import SHORT_S, duration, number, rate, size
from gpu_burnin.telemetry.findings import Counter, Source
from gpu_burnin.types import JSON, CheckResult, Measurement, Reason

# Units as people write them, and what names say of them already.
_UNITS: Mapping[str, tuple[str, str]] = {"B/s": ("", "GB/s"), "1": ("", ""), "degC": ("_c", "°C"), "W": ("_w", "W")}
# Collective operations, at the size of message with the best figure (checks/nccl).
_BANDWIDTHS: Mapping[str, str] = {
    "busbw": "bus bandwidth, best size",
    "one_rank": "algorithm bandwidth, best size",
}
# What is about a GPU.
_OfUnit: TypeAlias = UnitCoverage | NotRun | Counter | Source
# Errors of one check that are listed; the report in JSON has what the check kept.
MAX_ERRORS = 12


@dataclass
class Finding:
    """Everything reported under one code: `entries` holds (units, message, evidence), equal messages joined.

    `common`: every GPU of the node failed under it. `included`: its actions that the order of the page includes.
    """

    code: str
    severity: str
    summary: str | None
    what_to_do: str | None
    common: bool = False
    included: str = ""
    entries: list[tuple[list[str], str, Mapping[str, JSON]]] = field(default_factory=list)


@dataclass(frozen=True)
class Row:
    """One measurement over all GPUs. `cells` are (text, whether it is below its floor), in the GPUs' order."""

    check: str
    name: str
    unit: str
    cells: tuple[tuple[str, bool], ...]
    spread: str
    floor: str
    source: str


@dataclass
class Selftests:
    """The self-tests of one check: how many, how many seen, and a row for each kind of fault."""

    check: str
    scope: str
    total: int = 0
    seen: int = 0
    slowest_s: float = 0.0
    smallest_bits: int | None = None
    rows: dict[str, _FaultRow] = field(default_factory=dict)


@dataclass
class _FaultRow:
    total: int = 0
    seen: int = 0
    slowest_s: float = 0.0
    bits: list[int] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Covered:
    """What a check covered on a group of GPUs that covered the same."""

    check: str
    units: str
    covered: str
    seconds: str
    bound: str


class Page:
    """A report with the sums that the page needs."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.columns = columns(report)
        self.reason = first_reason(report)
        self.order = order_of(report)
        self.took = duration(_seconds_between(report.started_at, report.finished_at))

    @property
    def sentence(self) -> str:
        """What came out, in one sentence."""
        return headline(self.report, self.took)

    @property
    def caveats(self) -> list[str]:
        """What takes meaning from the verdict."""
        report = self.report
        injected = ", ".join(report.coverage.injected)
        caveats = (
            ("Simulated hardware: this proves nothing about real GPUs.", report.simulated),
            ("The run was interrupted; this is what had been found until then.", report.interrupted),
            (f"Faults were injected on purpose: {injected}.", injected),
        )
        return [text for text, is_so in caveats if is_so]

    @property
    def findings(self) -> list[Finding]:
        """The reasons, those of one code together, in the report's order (the worst first)."""
        reasons = self.report.reasons
        found = self._grouped(reasons)
        for finding in found:
            asked = [reason.action for reason in reasons if reason.code == finding.code]
            finding.included = self.order.included(asked)
        return found

    @property
    def warnings(self) -> list[Finding]:
        """The warnings, in the same way."""
        return self._grouped(item for item in self.report.warnings if not is_note(item.code))

    @property
    def notes(self) -> list[Finding]:
        """The warnings that ask for nothing, in the same way."""
        return self._grouped(item for item in self.report.warnings if is_note(item.code))

    def _grouped(self, items: Iterable[ReasonOrWarning]) -> list[Finding]:
        known, found, common = load_reasons(), dict[tuple[str, str], Finding](), common_codes(self.report)
        for item in items:
            told = "NOTE" if is_note(item.code) else "WARNING"
            severity, info = item.severity if isinstance(item, Reason) else told, known.get(item.code)
            finding = found.setdefault(
                (severity, item.code),
                Finding(
                    item.code,
                    severity,
                    info.summary if info else None,
                    info.what_to_do if info else None,
                    severity == "FAIL" and item.code in common,
                ),
            )
            named, text = units_of(self.report, item), without_name(self.report, item)
            same = next((units for units, message, _ in finding.entries if message == text), None)
            if same is None:
                finding.entries.append((named, text, item.details))
            else:
                same += [unit for unit in named if unit not in same]
        return list(found.values())

    @property
    def _identity(self) -> dict[str, list[str]]:
        """What GPUs of one node mostly have in common, a text for each GPU."""
        gpus = self.report.gpus
        return {
            "Model": [gpu.name + (f" ({gpu.sku})" if gpu.sku else "") for gpu in gpus],
            "Memory": [size(gpu.memory_bytes) if gpu.memory_bytes else "" for gpu in gpus],
            "VBIOS": [f"VBIOS {gpu.vbios}" if gpu.vbios else "" for gpu in gpus],
        }

    @property
    def same_for_all(self) -> dict[str, str]:
        """Model, memory and VBIOS as far as all GPUs have the same."""
        return {name: texts[0] for name, texts in self._identity.items() if len(set(texts)) == 1 and texts[0]}

    @property
    def differing(self) -> dict[str, list[str]]:
        """Those of them in which GPUs differ, a text for each GPU."""
        return {name: texts for name, texts in self._identity.items() if len(set(texts)) > 1}

    def codes_of(self, gpu: TestedGpu) -> list[str]:
        """Codes of the reasons against a GPU or a link of it, each once."""
        uuid, found = gpu.uuid, self.report.reasons
        own = [reason.code for reason in found if uuid and reason.gpu == uuid]
        links = [f"{reason.code} (link)" for reason in found if uuid in link_of(reason) and reason.gpu is None]
        return list(dict.fromkeys([*own, *links]))

    def verdict_on(self, column: str, gpu: str) -> str | None:
        """What a column of the table of GPUs says of a GPU, None where it says nothing."""
        return verdict_on(self.report, column, gpu)

    @property
    def node_checks(self) -> list[CheckResult]:
        """The checks that judge the whole node."""
        return [check for check in self.report.checks if check.gpu is None]

    @property
    def measurements(self) -> list[Row]:
        """A row for each measurement, in the order of the checks."""
        found: dict[tuple[str, str, str], dict[str, Measurement]] = {}
        for check in self.report.checks:
            for item in check.measurements:
                gpu, name = measured(self.report, check, item.name)
                found.setdefault((check.name, name, item.unit), {})[gpu or ""] = item
        return [self._row(*key, items) for key, items in found.items()]

    def _row(self, check: str, name: str, unit: str, items: Mapping[str, Measurement]) -> Row:
        known = [item.value for item in items.values() if math.isfinite(item.value)]
        middle = statistics.median(known) if known else 0.0
        spread = f"{(max(known) - min(known)) / abs(middle):.1%}" if len(known) > 1 and middle else ""
        brief = unit == "s" and bool(known) and max(known) < SHORT_S
        scaled = 1e9 if unit == "B/s" else 1e-6 if brief else 1.0
        suffix, shown_unit = ("", "µs") if brief else _UNITS.get(unit, ("", unit))
        first = next((item for item in items.values() if item.floor is not None), None)
        floor = rate(first.floor, unit) if first else ""
        return Row(
            check,
            _title(name.removeprefix(f"{check}_").removesuffix(suffix)),
            shown_unit,
            tuple(
                (
                    number(item.value / scaled) if item and math.isfinite(item.value) else "-",
                    bool(item and item.below_floor),
                )
                for item in (_lowest(items, gpu.uuids) for gpu in self.report.gpus)
            ),
            spread,
            floor + (f" ({first.floor_confidence})" if first and first.floor_confidence else ""),
            (first.floor_source if first else None) or "",
        )

    @property
    def errors(self) -> list[tuple[str, list[str], list[list[str]], int]]:
        """For each check with located errors: heading, columns, rows, how many more there are."""
        tables = []
        for check in self.report.checks:
            if check.errors:
                shown = check.errors[:MAX_ERRORS]
                columns = list(dict.fromkeys(key for error in shown for key in error))
                rows = [[_plain(error.get(column)) for column in columns] for error in shown]
                heading = f"{check.name} on {self.report.name(check.gpu)}"
                tables.append((heading, columns, rows, len(check.errors) - len(shown)))
        return tables

    @property
    def selftests(self) -> list[Selftests]:
        """The self-tests of each check and scope."""
        found: dict[tuple[str, str], Selftests] = {}
        for test in self.report.selftest:
            group = found.setdefault((test.check, test.scope), Selftests(test.check, test.scope))
            row = group.rows.setdefault(test.fault, _FaultRow())
            bits = test.changed_bits
            for sums in (group, row):
                sums.total += 1
                sums.seen += int(test.caught)
                sums.slowest_s = max(sums.slowest_s, test.latency_s or 0.0)
            if not test.caught:
                row.missed.append(self.report.name(test.gpu))
            if bits is not None:
                row.bits.append(bits)
                group.smallest_bits = min(bits, group.smallest_bits if group.smallest_bits is not None else bits)
        return list(found.values())

    @property
    def coverage(self) -> list[Covered]:
        """What each check covered; GPUs that covered the like are one row, with the weakest bound among them."""
        groups: dict[tuple[str, str, bool], list[UnitCoverage]] = {}
        for unit in self.report.coverage.units:
            alike = without_numbers(unit.covered)
            groups.setdefault((unit.check, alike, unit.missed_fault_rate_upper95_per_s is None), []).append(unit)
        order = list(dict.fromkeys(check for check, _, _ in groups))
        rows = [
            self._covered(check, units)
            for (check, _, _), units in sorted(groups.items(), key=lambda item: order.index(item[0][0]))
        ]
        whole: dict[bool, list[UnitCoverage]] = {}
        for gpu in self.report.coverage.gpus:
            whole.setdefault(gpu.missed_fault_rate_upper95_per_s is None, []).append(gpu)
        return [*rows, *(self._covered("all together", gpus) for gpus in whole.values())]

    def _covered(self, check: str, units: list[UnitCoverage]) -> Covered:
        seconds = [unit.seconds for unit in units]
        low, high = duration(min(seconds)), duration(max(seconds))
        bounds = [rate for unit in units if (rate := unit.missed_fault_rate_upper95_per_s) is not None]
        if units[0].gpu is None:
            stated = "looked once: no bound"
        elif len(bounds) < len(units) and all(self.verdict_on(check, str(unit.gpu)) == "PASS" for unit in units):
            stated = "nothing to test here: no bound"
        elif len(bounds) < len(units):
            stated = "a fault was seen or something is open: no bound"
        else:
            stated = bound(max(bounds))
        covered = merged([unit.covered for unit in units])
        spent = low if low == high else f"{low} to {high}"
        verified = min(unit.verified_s or 0.0 for unit in units)
        spent += f", {duration(verified)} verified" if verified else ""
        return Covered(check, self._units(units), covered, spent, stated)

    def _units(self, units: Iterable[_OfUnit]) -> str:
        """Which GPUs: "node", "GPU 5", "GPUs 0, 1 and 4", "all 8 GPUs"."""
        found = [self.report.name(unit.gpu) for unit in units]
        if len(found) > 1 and len(found) == len(self.report.gpus):
            return f"all {len(found)} GPUs"
        if len(found) > 1 and all(name.startswith("GPU ") for name in found):
            return f"GPUs {listed([name.removeprefix('GPU ') for name in found])}"
        return listed(found)

    @property
    def not_run(self) -> list[tuple[str, str]]:
        """What was not run: why, and which checks."""
        found: dict[str, dict[str, list[NotRun]]] = {}
        for gap in self.report.coverage.not_run:
            found.setdefault(gap.why, {}).setdefault(gap.check, []).append(gap)
        told = {
            why: [f"{check} on {self._units(gaps)}" if gaps[0].gpu else check for check, gaps in checks.items()]
            for why, checks in found.items()
        }
        return [(why, ", ".join(checks)) for why, checks in told.items()]

    @property
    def changed_counters(self) -> list[tuple[str, str, list[tuple[str, str]]]]:
        """Counters that moved on any GPU: name, unit, and for each GPU the change and the two readings."""
        found: dict[tuple[str, str], dict[str, Counter]] = {}
        for counter in self.report.telemetry.counters:
            found.setdefault((counter.name, counter.unit), {})[counter.gpu] = counter
        return [
            (name, "" if unit == "1" else unit, [_change(counters.get(gpu.uuid)) for gpu in self.report.gpus])
            for (name, unit), counters in found.items()
            if any(counter.delta for counter in counters.values())
        ]

    @property
    def still_counters(self) -> int:
        """How many counters were read twice and did not move."""
        return sum(counter.delta == 0 for counter in self.report.telemetry.counters)

    @property
    def unread_counters(self) -> list[tuple[str, str, str]]:
        """Counters without two readings, or with one to be doubted: name, why, on which GPUs."""
        found: dict[tuple[str, str], list[Counter]] = {}
        for counter in self.report.telemetry.counters:
            if counter.delta is None or counter.why:
                found.setdefault((counter.name, counter.why), []).append(counter)
        return [(name, why, self._units(counters)) for (name, why), counters in found.items()]

    @property
    def sources(self) -> list[tuple[str, bool, str, str]]:
        """Where telemetry was read: name, whether it answered, on which GPUs, what it says."""
        found: dict[tuple[str, bool, str], list[Source]] = {}
        for source in self.report.telemetry.sources:
            alike = without_numbers(source.detail)
            found.setdefault((source.name, source.alive, alike), []).append(source)
        return [
            (name, alive, self._units(sources), merged([source.detail for source in sources]))
            for (name, alive, _), sources in found.items()
        ]


def _title(name: str) -> str:
    """The name of a measurement in words: all_reduce_busbw is "all reduce bus bandwidth, best size"."""
    for suffix, words in _BANDWIDTHS.items():
        name = name.replace(f"_{suffix}", f" {words}")
    return name.replace("_", " ")


def _change(counter: Counter | None) -> tuple[str, str]:
    if counter is None or counter.delta is None:
        return "-", "" if counter is None else str(counter.why)
    return f"{counter.delta:+,}" if counter.delta else "0", f"{counter.before:,} to {counter.after:,}"


def _plain(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)


def _seconds_between(started_at: str, finished_at: str) -> float:
    return max(0.0, (parse_rfc3339(finished_at) - parse_rfc3339(started_at)).total_seconds())


def _lowest(items: Mapping[str, Measurement], uuids: Iterable[str]) -> Measurement | None:
    """The measurement of a GPU: of one in MIG mode the lowest of its instances."""
    found = [items[uuid] for uuid in uuids if uuid in items]
    return min(found, key=lambda item: item.value, default=None)
