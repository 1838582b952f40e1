"""A report as one readable screen of text: what was found and what to do first, the details below."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gpu_burnin.report.model import Report

WIDTH = 100
# Ten reasons say enough on one screen; the others are in the JSON.
_MAX_REASONS = 10
Advice = Callable[[str], str | None]


def render(report: Report, advice: Advice) -> str:
    """The report as text, at most WIDTH columns where words allow. `advice` gives what to do for a code."""
    parts = [
        _head(report),
        _reasons(report, advice),
        _gpus(report),
        _checks(report),
        _coverage(report),
        _selftest(report),
        _kernel_log(report),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _wrap(text: str, first: str, rest: str) -> list[str]:
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _head(report: Report) -> list[str]:
    marks = [
        text
        for text, is_so in (
            ("simulated hardware: proves nothing of real GPUs", report["simulated"]),
            ("interrupted", report["interrupted"]),
            (f"faults injected: {', '.join(report['coverage']['injected'])}", report["coverage"]["injected"]),
        )
        if is_so
    ]
    note = f"   ({'; '.join(marks)})" if marks else ""
    software = report["software"]
    return [
        f"VERDICT  {report['verdict']}{note}",
        f"ACTION   {report['action'].replace('_', ' ')}",
        f"node {report['node']}   level {report['level']}   run {report['run_id']}",
        f"{report['started_at']} to {report['finished_at']}   driver {software['driver'] or 'none'}"
        f"   kernel {report['host']['kernel']}   gpu-burnin {software['gpu_burnin']}",
    ]


def _unit(report: Report, uuid: str | None) -> str:
    """How a person finds the GPU: index and PCI address."""
    if uuid is None:
        return "node"
    for gpu in report["gpus"]:
        if gpu["uuid"] == uuid:
            return f"GPU {gpu['index']} {gpu['pci_bus_id']}"
    return uuid


def _reasons(report: Report, advice: Advice) -> list[str]:
    if not report["reasons"]:
        return ["No fault was seen."]
    lines = ["Why:"]
    told: set[str] = set()
    for reason in report["reasons"][:_MAX_REASONS]:
        code = reason["code"]
        # Messages of many checks name the GPU themselves.
        unit = "" if reason["message"].startswith("GPU ") else f" ({_unit(report, reason['gpu'])})"
        lines += _wrap(f"{reason['severity']} {code}{unit}: {reason['message']}", "  - ", "    ")
        what_to_do = advice(code) if code not in told else None
        told.add(code)
        if what_to_do:
            lines += _wrap(f"To do: {what_to_do}", "    ", "    ")
    more = len(report["reasons"]) - _MAX_REASONS
    return [*lines, f"  ... and {more} more: gpu-burnin report --json"] if more > 0 else lines


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _verdict_of(checks: Iterable[dict[str, Any]]) -> str:
    verdicts = {check["verdict"] for check in checks}
    return next((verdict for verdict in ("FAIL", "INCONCLUSIVE", "PASS") if verdict in verdicts), "-")


def _gpus(report: Report) -> list[str]:
    if not report["gpus"]:
        return ["GPUs: none"]
    names = list(dict.fromkeys(check["name"] for check in report["checks"] if check["gpu"] is not None))
    rows = [["GPU", "PCI", "model", "serial", "uuid", "verdict", *names]]
    for gpu in report["gpus"]:
        of_gpu = [check for check in report["checks"] if check["gpu"] == gpu["uuid"]]
        verdicts = [_verdict_of(check for check in of_gpu if check["name"] == name) for name in names]
        identity = [str(gpu["index"]), gpu["pci_bus_id"], gpu["sku"] or gpu["name"], gpu["serial"]]
        rows.append([*identity, gpu["uuid"][:12], gpu["verdict"], *verdicts])
    return _table(rows)


def _checks(report: Report) -> list[str]:
    rows = [["check", "on", "verdict", "seconds", "lowest"]]
    for name in dict.fromkeys(check["name"] for check in report["checks"]):
        checks = [check for check in report["checks"] if check["name"] == name]
        on = "node" if checks[0]["gpu"] is None else f"{len(checks)} GPU" + "s" * (len(checks) > 1)
        seconds = max(check["seconds"] for check in checks)
        rows.append([name, on, _verdict_of(checks), f"{seconds:.1f}", _lowest(checks)])
    return _table(rows) if len(rows) > 1 else ["Checks: none ran"]


def _lowest(checks: list[dict[str, Any]]) -> str:
    """The slowest GPU's number of each measurement: those that have a floor, else the first three."""
    measurements = [item for check in checks for item in check["measurements"] if item["value"] is not None]
    judged = [item for item in measurements if item["floor"] is not None]
    if checks[0]["gpu"] is None:
        measurements = []
    lowest: dict[str, dict[str, Any]] = {}
    for item in judged or measurements:
        known = lowest.get(item["name"])
        if known is None or item["value"] < known["value"]:
            lowest[item["name"]] = item
    return ", ".join(
        f"{item['name']} {item['value']:.4g} {item['unit']}"
        + (f" (floor {item['floor']:.4g})" if item["floor"] is not None else "")
        for item in list(lowest.values())[:3]
    )


def _coverage(report: Report) -> list[str]:
    coverage = report["coverage"]
    worst: dict[str, float] = {}
    for unit in coverage["units"]:
        rate = unit["missed_fault_rate_upper95_per_s"]
        if rate is not None:
            worst[unit["check"]] = max(worst.get(unit["check"], 0.0), rate)
    rates = ", ".join(f"{check} {rate:.2g}" for check, rate in worst.items())
    lines = _wrap(f"Could still be missed (faults per second and GPU, 95 %): {rates}", "", "  ") if rates else []
    missing: dict[str, list[str]] = {}
    for gap in coverage["not_run"]:
        where = "" if gap["gpu"] is None else f" on {_unit(report, gap['gpu'])}"
        missing.setdefault(gap["why"], []).append(f"{gap['check']}{where}")
    for why, checks in missing.items():
        lines += _wrap(f"Not run: {', '.join(checks)} ({why})", "", "  ")
    return lines


def _selftest(report: Report) -> list[str]:
    tests = report["selftest"]
    if not tests:
        return ["Self-test: none"]
    seen = sum(test["injected"] and test["detected"] for test in tests)
    scopes = ", ".join(dict.fromkeys(test["scope"] for test in tests))
    return _wrap(f"Self-test: {seen} of {len(tests)} injected faults detected ({scopes})", "", "  ")


def _kernel_log(report: Report) -> list[str]:
    log = report["telemetry"]["kernel_log"]
    state = "" if log["alive"] else ", NOT readable"
    gaps = f", {log['gaps']} gaps" if log["gaps"] else ""
    lines = _wrap(f"Kernel log ({log['source']}{state}): {len(log['events'])} XID{gaps}", "", "  ")
    for event in log["events"][:5]:
        kind = "SXid" if event["sxid"] else "XID"
        lines.append(f"  {kind} {event['xid']} {event['pci_bus_id']} {event['text'][:70]}")
    return lines
