"""What a report says of rates, as one point of a host's history. Reads files only."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from gpu_burnin.hardware.skus import RATE_UNITS
from gpu_burnin.node.report_head import read_members
from gpu_burnin.report.model import ReportError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import parse_rfc3339
from gpu_burnin.system.entries import mapping_of
from gpu_burnin.types import Verdict

_PARTS = ("software", "host", "plan", "gpus", "checks", "coverage")
_SHAPES_DIGITS = 12
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
    found = read_members(path, _PARTS)
    try:
        return Point(
            str(found["run_id"]),
            str(found["node"]),
            parse_rfc3339(found["finished_at"]),
            why_not := _why_not(found),
            _setting(found),
            {} if why_not else _rates(found),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ReportError(
            f"{path}: this is not a valid report ({type(error).__name__}); gpu-burnin report {path} says what is wrong"
        ) from error


def _why_not(found: Mapping[str, Any]) -> str:
    if found["simulated"]:
        return "simulated"
    if found["verdict"] != Verdict.PASS or found["interrupted"]:
        return "no PASS"
    return "faults were injected" if found["coverage"]["injected"] else ""


def _setting(found: Mapping[str, Any]) -> Setting:
    software, dmi = found["software"], found["host"]["dmi"]
    shapes = hashlib.sha256(canonical_json(found["plan"]["shapes"])).hexdigest()[:_SHAPES_DIGITS]
    chassis = " ".join(filter(None, (dmi.get("sys_vendor"), dmi.get("product_name"))))
    limits = sorted({str(why) for check in found["checks"] if (why := mapping_of(check, "coverage").get(_NO_FLOOR))})
    return Setting(
        found["level"],
        str(software.get("driver") or ""),
        str(software.get("gpu_burnin") or ""),
        shapes,
        chassis,
        "; ".join(limits),
    )


def _rates(found: Mapping[str, Any]) -> dict[Card, dict[Rate, float]]:
    cards = {
        gpu["uuid"]: Card(gpu["uuid"], gpu["sku"] or gpu["name"], gpu["vbios"], gpu["pci_bus_id"])
        for gpu in found["gpus"]
        if gpu["uuid"]
    }
    rates: dict[Card, dict[Rate, float]] = {}
    for check in found["checks"]:
        card = cards.get(check["gpu"])
        if card is None or check["coverage"].get("simulated"):
            continue
        for item in cast("list[Mapping[str, Any]]", check["measurements"]):
            value = item["value"]
            if item["unit"] in RATE_UNITS and value is not None and math.isfinite(value) and value > 0:
                rate = Rate(str(check["name"]), str(item["name"]), str(item["unit"]))
                rates.setdefault(card, {})[rate] = float(value)
    return rates
