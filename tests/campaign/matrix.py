"""The matrix of the campaign: a line a fault, and how often this project and the reference tools' rules saw it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.system.files import write_atomic
from tests.campaign.model import NOT_TESTED, SEEN

TOOLS = ("gpu-burn", "dcgm", "nvbandwidth", "nccl-tests")
AREAS = (
    "state", "compute", "memory", "transfers", "collectives", "power", "opinion", "telemetry", "executor", "command",
    "healthy",
)  # fmt: skip
_LEGEND = """\
muster: cases with the right code, the right GPU and the right verdict, of all cases. The tools' columns are their
published detection rules (tests/campaign/reference_tools) on the same fault: in the outputs of this project's product
and in those of their own operands, in memory, copies and collectives with their own patterns; a case counts for a tool
when its rule sees it in either. "-": the rule does not look there (a precision that the tool does not multiply in, a
state that the rule does not read). What DCGM's health watches say of a node's state is not restated here."""


@dataclass(frozen=True)
class Case:
    """One case as it came out: its row (model.Row as JSON), whether its test passed, and the test's id."""

    row: dict[str, Any]
    right: bool
    test: str


@dataclass
class Line:
    """One fault over all its cases."""

    area: str
    fault: str
    cases: int
    right: int
    codes: str
    tools: dict[str, str]


def lines(cases: Iterable[Case]) -> list[Line]:
    """A line for each fault, in the order of the areas and of first appearance by name."""
    groups: dict[tuple[str, str], list[Case]] = {}
    for case in cases:
        groups.setdefault((case.row["area"], case.row["fault"]), []).append(case)
    ordered = sorted(groups.items(), key=lambda item: (AREAS.index(item[0][0]), item[0][1]))
    return [
        Line(
            area=area,
            fault=fault,
            cases=len(group),
            right=sum(case.right for case in group),
            codes=", ".join(sorted({code for case in group for code in case.row["codes"]})) or "none",
            tools={tool: _seen_by(group, tool) for tool in TOOLS},
        )
        for (area, fault), group in ordered
    ]


def _seen_by(group: Sequence[Case], tool: str) -> str:
    outcomes = [case.row["tools"].get(tool, NOT_TESTED) for case in group]
    looked = [outcome for outcome in outcomes if outcome != NOT_TESTED]
    return f"{sum(outcome == SEEN for outcome in looked)}/{len(looked)}" if looked else "-"


def render(cases: Sequence[Case]) -> str:
    """The whole matrix as text."""
    table = [("area", "fault", "muster", *(f"{tool} rule" for tool in TOOLS), "codes")]
    table += [
        (line.area, line.fault, f"{line.right}/{line.cases}", *(line.tools[tool] for tool in TOOLS), line.codes)
        for line in lines(cases)
    ]
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]) - 1)]
    text = ["", _LEGEND, ""]
    for row in table:
        text.append("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]))
    return "\n".join([*text, "", *_totals(cases)])


def _totals(cases: Sequence[Case]) -> list[str]:
    out = []
    for area in AREAS:
        group = [case for case in cases if case.row["area"] == area]
        if group:
            faults = len({case.row["fault"] for case in group})
            right = sum(case.right for case in group)
            tools = ", ".join(f"{tool} rule {_seen_by(group, tool)}" for tool in TOOLS)
            kind = "profiles" if area == "healthy" else "faults"
            out.append(f"{area}: {faults} {kind}, {right} of {len(group)} cases right ({tools})")
    return out


def summary(cases: Sequence[Case]) -> str:
    """One line of counts."""
    faulty = [case for case in cases if case.row["area"] != "healthy"]
    healthy = [case for case in cases if case.row["area"] == "healthy"]
    faults = len({(case.row["area"], case.row["fault"]) for case in faulty})
    return (
        f"{faults} faults, {sum(case.right for case in faulty)} of {len(faulty)} cases detected; "
        f"{len(healthy)} healthy runs, {sum(not case.right for case in healthy)} of them not passed"
    )


def write(build: Path, cases: Sequence[Case], text: str, seed: int, seconds: float) -> None:
    """build/campaign.txt and build/campaign.json."""
    build.mkdir(exist_ok=True)
    write_atomic(build / "campaign.txt", f"{text}\n\n{summary(cases)}, seed {seed}\n".encode(), mode=0o644)
    data = {
        "schema": "muster-campaign/v1",
        "seed": seed,
        "seconds": round(seconds, 1),
        "summary": summary(cases),
        "lines": [vars(line) for line in lines(cases)],
        "cases": [
            {**case.row, "seed": f"{case.row['seed']:#x}", "right": case.right, "test": case.test} for case in cases
        ],
    }
    write_atomic(build / "campaign.json", json.dumps(data, indent=1).encode(), mode=0o644)
