"""A report as text: what was found and what to do first, the details below."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from gpu_burnin.checks import CHECKS, coverage_class
from gpu_burnin.hardware.reasons import is_note
from gpu_burnin.report.check_findings import has_bad_link, units_of
from gpu_burnin.report.formatting import taken_for
from gpu_burnin.report.model import ReasonOrWarning, Report
from gpu_burnin.report.order import order_of
from gpu_burnin.report.units import without_name
from gpu_burnin.report.verdicts import WATCHED, columns, verdict_on, worst
from gpu_burnin.system.prose import STANDARD_WIDTH, line_up, table, table_with_text, wrap
from gpu_burnin.system.quantities import duration, rate
from gpu_burnin.telemetry.kmsg import log_summary
from gpu_burnin.types import CheckResult, Coverage, Measurement, Reason

# What a person reads; the others are in the JSON.
_MAX_CODES = 8
_MAX_ADVICE = 3
_MAX_WARNINGS = 2
_MAX_COUNTERS = 3
_MAX_XIDS = 3
# Headings that would widen the table beyond a screen.
_HEADINGS: Mapping[str, str] = {WATCHED: "telem"}
_Told = TypeVar("_Told", bound=ReasonOrWarning)
Advice = Callable[[str], str | None]


def render(report: Report, advice: Advice, width: int = STANDARD_WIDTH) -> str:
    """The report as text, at most `width` columns where words allow. `advice` gives what to do for a code."""
    parts = [
        _head(report, width),
        _reasons(report, advice, width),
        _warnings(report, width),
        _notes(report, width),
        _gpus(report, width),
        _checks(report, width),
        _wrapped([*_coverage(report), *_selftest(report), *_telemetry(report), *_kernel_log(report)], width),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _wrapped(texts: Iterable[str], width: int) -> list[str]:
    """Sentences as lines that hang below their beginning."""
    indents = ((text, text[: len(text) - len(text.lstrip())]) for text in texts)
    return [line for text, indent in indents for line in wrap(text.lstrip(), width, indent, f"{indent}  ")]


def _head(report: Report, width: int) -> list[str]:
    marks = [
        text
        for text, is_so in (
            ("simulated hardware: proves nothing about real GPUs", report.simulated),
            ("interrupted", report.interrupted),
            (f"faults injected: {', '.join(report.coverage.injected)}", report.coverage.injected),
        )
        if is_so
    ]
    note = f"   ({'; '.join(marks)})" if marks else ""
    software, below = report.software, " " * 9
    facts = [
        f"node {report.node}",
        f"level {report.level}",
        f"run {report.run_id}",
        f"{report.started_at} to {report.finished_at}",
        f"driver {software['driver'] or 'none'}",
        f"kernel {report.host.kernel}",
        f"gpu-burnin {software['gpu_burnin']}",
    ]
    return [
        *wrap(f"{report.verdict}{note}", width, "VERDICT  ", below),
        *wrap(order_of(report).text, width, "ACTION   ", below),
        *line_up(facts[:3], width, rest=below),
        *line_up(facts[3:], width, rest=below),
    ]


def _by_code(items: Iterable[_Told]) -> list[list[_Told]]:
    """Reasons or warnings of one code together, in the order of the report (the worst first)."""
    found: dict[str, list[_Told]] = {}
    for item in items:
        found.setdefault(item.code, []).append(item)
    return list(found.values())


def _reason_lines(report: Report, items: Sequence[ReasonOrWarning], width: int) -> list[str]:
    """The reasons of one code: on which GPUs, and the message of the first."""
    first = items[0]
    units = _joined(report, [unit for item in items for unit in units_of(report, item)])
    messages = list(dict.fromkeys(without_name(report, item) for item in items))
    severity = f"{first.severity} " if isinstance(first, Reason) else ""
    more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return wrap(f"{severity}{first.code} on {units}: {messages[0]}{more}", width, "  - ", "    ")


def _units(report: Report, uuids: Iterable[str | None]) -> str:
    return _joined(report, [report.name(uuid) for uuid in uuids])


def _joined(report: Report, units: Sequence[str]) -> str:
    names = list(dict.fromkeys(units))
    everyone = [gpu.short for gpu in report.gpus]
    return f"all {len(names)} GPUs" if set(names) == set(everyone) and len(names) > 2 else ", ".join(names)


def _reasons(report: Report, advice: Advice, width: int) -> list[str]:
    if not report.reasons:
        return ["No fault was seen."]
    lines, groups, order = ["Why:"], _by_code(report.reasons), order_of(report)
    for index, items in enumerate(groups[:_MAX_CODES]):
        lines += _reason_lines(report, items, width)
        if index < _MAX_ADVICE and (what_to_do := advice(items[0].code)):
            included = order.included(item.action for item in items)
            more = f" ACTION includes {included}." if included else ""
            lines += wrap(f"To do: {what_to_do}{more}", width, "    ", "    ")
    if left := ", ".join(items[0].code for items in groups[_MAX_CODES:]):
        lines += wrap(f"... and {left}: gpu-burnin report --json, gpu-burnin explain CODE", width, "  ", "    ")
    return lines


def _warnings(report: Report, width: int) -> list[str]:
    """The warnings of each code; nothing without a warning."""
    groups = _by_code(item for item in report.warnings if not is_note(item.code))
    if not groups:
        return []
    lines = [line for items in groups[:_MAX_WARNINGS] for line in _reason_lines(report, items, width)]
    left = ", ".join(items[0].code for items in groups[_MAX_WARNINGS:])
    more = wrap(f"... and {left}", width, "  ", "    ") if left else []
    return ["Warnings (none of them keeps the node out):", *lines, *more]


def _notes(report: Report, width: int) -> list[str]:
    """What is told for completeness, apart from the warnings: nothing is wrong, and nothing has to be done."""
    groups = _by_code(item for item in report.warnings if is_note(item.code))
    lines = [line for items in groups for line in _reason_lines(report, items, width)]
    return ["Notes (nothing is wrong):", *lines] if lines else []


def _gpus(report: Report, width: int) -> list[str]:
    gpus, names = report.gpus, columns(report)
    if not gpus:
        return ["GPUs: none"]
    models = [gpu.sku or gpu.name for gpu in gpus]
    alike = len(set(models)) == 1
    verdicts = [
        ["verdict", *(_short(gpu.verdict) for gpu in gpus)],
        *([_HEADINGS.get(name, name), *(_verdict(report, name, gpu.uuid) for gpu in gpus)] for name in names),
    ]
    identity = [
        *([] if alike else [["model", *models]]),
        ["PCI", *(gpu.pci_bus_id for gpu in gpus)],
        ["serial", *(gpu.serial for gpu in gpus)],
        ["uuid", *(gpu.uuid.removeprefix("GPU-")[:8] for gpu in gpus)],
    ]
    head = f"{len(models)} GPU{'s' * (len(models) > 1)}, {models[0] or 'model unknown'}"
    key = ["GPU", *(str(gpu.index) for gpu in gpus)]
    return [*([f"{head}:"] if alike else []), *table(key, (verdicts, identity), width)]


def _verdict(report: Report, check: str, gpu: str) -> str:
    """What a check says of a GPU."""
    return "LINK" if has_bad_link(report, check, gpu) else _short(verdict_on(report, check, gpu) or "-")


def _short(verdict: str) -> str:
    """A verdict in a column, which the whole word would widen."""
    return verdict.replace("INCONCLUSIVE", "INCONCL")


def _checks(report: Report, width: int) -> list[str]:
    rows = [["check", "on", "verdict", "seconds", "lowest GPU, and what stands out"]]
    for name in dict.fromkeys(check.name for check in report.checks):
        checks = [check for check in report.checks if check.name == name]
        on = "node" if checks[0].gpu is None else f"{len(checks)} {_kind(report, checks)}" + "s" * (len(checks) > 1)
        seconds = max(check.seconds for check in checks)
        kind = coverage_class(name) if name in CHECKS else Coverage
        more = kind.stands_out(checks, report.unit_names)
        lowest = "" if more and kind.names_lowest_rate and not _has_floor(checks) else _lowest(checks)
        told = "; ".join(filter(None, (lowest, more)))
        # What the judge found against the check beside its results, such as a link between two GPUs.
        held = [reason for reason in report.reasons if reason.check == name]
        verdict = worst([*(check.verdict for check in checks), *(reason.severity for reason in held)]) or "-"
        rows.append([name, on, verdict, f"{seconds:.1f}", told])
    return table_with_text(rows, width) if len(rows) > 1 else ["Checks: none ran"]


def _kind(report: Report, checks: Sequence[CheckResult]) -> str:
    """What results are of, in the singular: whole GPUs, or MIG instances of them."""
    parted = report.unit_names.keys() - {gpu.uuid for gpu in report.gpus}
    return "MIG instance" if any(check.gpu in parted for check in checks) else "GPU"


def _has_floor(checks: Sequence[CheckResult]) -> bool:
    return any(item.floor is not None for check in checks for item in check.measurements)


def _lowest(checks: Sequence[CheckResult]) -> str:
    """The slowest GPU's number of the measurement nearest to its floor, else of the first."""
    measurements = [item for check in checks for item in check.measurements if math.isfinite(item.value)]
    judged = [item for item in measurements if item.floor is not None]
    if checks[0].gpu is None:
        measurements = []
    lowest: dict[str, Measurement] = {}
    for item in judged or measurements:
        known = lowest.get(item.name)
        if known is None or item.value < known.value:
            lowest[item.name] = item
    # Those nearest to their floor say most.
    nearest = sorted(lowest.values(), key=lambda item: item.value / item.floor if item.floor else 0.0)
    return ", ".join(
        f"{item.name.removeprefix(checks[0].name + '_').replace('_', ' ')} {rate(item.value, item.unit)}"
        + (f" (floor {rate(item.floor, item.unit)})" if item.floor is not None else "")
        for item in nearest[:1]
    )


def _coverage(report: Report) -> list[str]:
    coverage = report.coverage
    weakest: dict[str, float] = {}
    for name, units in (*((unit.check, [unit]) for unit in coverage.units), ("all checks", coverage.gpus)):
        for unit in units:
            rate_per_s = unit.missed_fault_rate_upper95_per_s
            if rate_per_s:
                weakest[name] = max(weakest.get(name, 0.0), rate_per_s)
    bounds = ", ".join(f"{duration(1 / rate_per_s)} ({name})" for name, rate_per_s in weakest.items())
    text = f"Would see a fault coming every {bounds} of verified work, or more often (95 % confidence)"
    lines = [taken_for(report), *([text] if bounds else [])]
    missing: dict[str, dict[str, list[str | None]]] = {}
    for gap in coverage.not_run:
        missing.setdefault(gap.why, {}).setdefault(gap.check, []).append(gap.gpu)
    for why, checks in missing.items():
        told = ", ".join(
            check if uuids == [None] else f"{check} on {_units(report, uuids)}" for check, uuids in checks.items()
        )
        lines += [f"Not run: {told} ({why})"]
    return lines


def _selftest(report: Report) -> list[str]:
    tests = report.selftest
    if not tests:
        return ["Self-test: none"]
    seen = sum(test.caught for test in tests)
    scopes = ", ".join(dict.fromkeys(test.scope for test in tests))
    return [f"Self-test: {seen} of {len(tests)} injected faults detected ({scopes})"]


def _telemetry(report: Report) -> list[str]:
    telemetry = report.telemetry
    lines = []
    dead = [source for source in telemetry.sources if not source.alive]
    if telemetry.sources:
        alive = f"{len(telemetry.sources) - len(dead)} of {len(telemetry.sources)} sources answered"
        silent = ", ".join(f"{source.name} on {report.name(source.gpu)}" for source in dead[:_MAX_COUNTERS])
        more = f" and {len(dead) - _MAX_COUNTERS} more" if len(dead) > _MAX_COUNTERS else ""
        lines += [f"Telemetry: {alive}" + (f"; silent: {silent}{more}" if dead else "")]
    # Energy always moves and says nothing of faults.
    moved = [item for item in telemetry.counters if item.delta and "energy" not in item.name]
    if telemetry.counters:
        told = ", ".join(f"{item.name} {item.delta:+,} on {report.name(item.gpu)}" for item in moved[:_MAX_COUNTERS])
        more = f" and {len(moved) - _MAX_COUNTERS} more" if len(moved) > _MAX_COUNTERS else ""
        unread = sum(item.delta is None for item in telemetry.counters)
        blind = f"; {unread} could not be read" if unread else ""
        lines += [f"Counters: {told or 'none changed'}{more}{blind}"]
    return lines


def _kernel_log(report: Report) -> list[str]:
    log = report.telemetry.kernel_log
    state = "" if log.alive else ", NOT readable"
    count = len(log.events)
    lines = [f"Kernel log ({log.source}{state}): {log_summary(count, log.gaps, alive=log.alive)}"]
    for event in log.events[:_MAX_XIDS]:
        kind = "SXid" if event.sxid else "XID"
        lines.append(f"  {kind} {event.xid} {event.pci_bus_id} {event.text}")
    if count > _MAX_XIDS:
        lines.append(f"  ... and {count - _MAX_XIDS} more: gpu-burnin report --json")
    return lines
