"""What a report says of rates, as one point of a host's history. Reads files only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from gpu_burnin.hardware.skus import RATE_UNITS
from gpu_burnin.node.report_head import read_members
from gpu_burnin.report.model import Report, ReportError, of_json
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.entries import mapping_of
from gpu_burnin.types import Verdict

_PARTS = ("software", "host", "plan", "gpus", "checks", "coverage")
_SHAPES_DIGITS = 12
# A result as JSON has it: thousands of reports with dozens of them take long to look at.
_Check: TypeAlias = Mapping[str, Any]
# What a check says of rates that no floor is for.
_NO_FLOOR = "no_floor_why"


@dataclass(frozen=True)
class Rate:
    """What was measured: the check, the measurement's name and its unit, one of those of throughput."""

    check: str
    name: str
    unit: str


@dataclass(frozen=True)
class Card:
    """A GPU in its place: UUID, model, VBIOS, PCI address."""

    uuid: str
    model: str
    vbios: str
    slot: str


@dataclass(frozen=True)
class Setting:
    """What else decides a rate: only runs that are alike in all of it are compared.

    `shapes` stands for the sizes of the test's operands, `chassis` for the machine's vendor and model, `limits` says
    which rates were made at a lowered power limit.
    """

    level: str
    driver: str
    gpu_burnin: str
    shapes: str
    chassis: str
    limits: str


@dataclass(frozen=True)
class Point:
    """The rates of one run of `node`, for each card; `why_not` says why they do not count, "" where they do.

    Rates count that a whole PASS on real hardware measured, with no fault injected.
    """

    run_id: str
    node: str
    at: datetime
    why_not: str
    setting: Setting
    rates: Mapping[Card, Mapping[Rate, float]]


def read_point(path: Path) -> Point:
    """The point of a report file. Raises ReportError."""
    members = read_members(path, _PARTS)
    checks = members.pop("checks")
    report = of_json(members, str(path))
    try:
        return Point(
            report.run_id,
            report.node,
            parse_rfc3339(report.finished_at),
            why_not := _why_not(report),
            _setting(report, checks),
            {} if why_not else _rates(report, checks),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{path}: this is not a valid report ({type(error).__name__}); gpu-burnin report {path} says what is wrong"
        ) from error


def _why_not(report: Report) -> str:
    if report.simulated:
        return "simulated"
    if report.verdict is not Verdict.PASS or report.interrupted:
        return "no PASS"
    return "faults were injected" if report.coverage.injected else ""


def _setting(report: Report, checks: Sequence[_Check]) -> Setting:
    software, dmi = report.software, report.host.dmi
    shapes = hashlib.sha256(canonical_json(report.plan["shapes"])).hexdigest()[:_SHAPES_DIGITS]
    chassis = " ".join(filter(None, (dmi.get("sys_vendor"), dmi.get("product_name"))))
    limits = sorted({str(why) for check in checks if (why := mapping_of(check, "coverage").get(_NO_FLOOR))})
    return Setting(
        report.level,
        software.get("driver") or "",
        software.get("gpu_burnin") or "",
        shapes,
        chassis,
        "; ".join(limits),
    )


def _rates(report: Report, checks: Sequence[_Check]) -> dict[Card, dict[Rate, float]]:
    cards = {gpu.uuid: Card(gpu.uuid, gpu.sku or gpu.name, gpu.vbios, gpu.pci_bus_id) for gpu in report.gpus}
    rates: dict[Card, dict[Rate, float]] = {}
    for check in checks:
        card = cards.get(check["gpu"])
        if card is None or check["coverage"].get("simulated"):
            continue
        for item in check["measurements"]:
            value = item["value"]
            if item["unit"] in RATE_UNITS and value is not None and math.isfinite(value) and value > 0:
                rate = Rate(str(check["name"]), str(item["name"]), str(item["unit"]))
                rates.setdefault(card, {})[rate] = float(value)
    return rates
