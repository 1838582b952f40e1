"""Report v1: how it is put together, checked against its schema, written and read."""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypedDict, TypeVar

from gpu_burnin.checks import coverage_class
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.telemetry.findings import Counter
from gpu_burnin.types import JSON, CheckResult, Coverage, Gpu, SelftestResult, Verdict

C = TypeVar("C", bound=Coverage)
NAME = "muster-report"
# 1.1 added warnings, telemetry.sources and .events, coverage.gpus, units.covered and what a counter looks like.
# 1.2 gave the coverage of each check a form.
MAJOR, MINOR = 1, 2
SCHEMA = f"{NAME}/v{MAJOR}.{MINOR}"
_SCHEMA_FORM = re.compile(rf"{NAME}/v(\d+)\.(\d+)")


class ReportError(GpuBurninError):
    """A file that is no report this program can read; one sentence that names it."""


class Report(TypedDict):
    """A report as JSON values, but for the results of its checks; the schema (report-v1.json) tells each field.

    Of a result, its reasons are in the report's own list and its series in their file.
    """

    schema: str
    run_id: str
    sequence: int
    node: str
    level: str
    started_at: str
    finished_at: str
    simulated: bool
    interrupted: bool
    verdict: str
    action: str
    reasons: list[dict[str, Any]]
    warnings: list[dict[str, Any]]
    host: dict[str, Any]
    software: dict[str, str | None]
    plan: dict[str, Any]
    plan_sha256: str
    hardware_sha256: str
    gpus: list[dict[str, Any]]
    checks: list[CheckResult]
    telemetry: dict[str, Any]
    selftest: list[dict[str, Any]]
    coverage: dict[str, Any]


def plain(value: object) -> Any:
    """`value` as JSON values; a number that is not finite becomes null, since JSON has none."""
    return to_json(value, not_finite=lambda _: None)


def reported(result: CheckResult) -> CheckResult:
    """What the report has of a check's result."""
    return replace(result, series=(), reasons=(), started_s=0.0)


def document(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    checks = [plain(result) for result in report["checks"]]
    for check in checks:
        del check["series"], check["reasons"], check["started_s"]
    return {**report, "checks": checks}


def gpu_json(gpu: Gpu, verdict: Verdict) -> dict[str, JSON]:
    """A GPU's identity with the verdict on it alone."""
    return {**plain(gpu), "verdict": str(verdict)}


def counter_json(counter: Counter) -> dict[str, JSON]:
    """A counter before and after the run, as the report has it."""
    return {**plain(counter), "delta": counter.delta}


def selftest_json(result: SelftestResult) -> dict[str, JSON]:
    """A self-test as the report has it: of a real fault its code, since its reason is among the report's."""
    return {**plain(result), "real": None if result.real is None else result.real.code}


@functools.cache
def schema_text() -> str:
    """The JSON Schema (2020-12) of report v1, with that of each check's coverage."""
    folder = importlib.resources.files("gpu_burnin.report") / "schema"
    schema, coverages = (
        json.loads((folder / name).read_text(encoding="utf-8")) for name in ("report-v1.json", "coverage-v1.json")
    )
    schema["$defs"]["check"]["allOf"] = [
        {
            "if": {"properties": {"name": {"const": check}}},
            # A check that did not come to an end covered nothing.
            "then": {
                "properties": {"coverage": {"anyOf": [{"maxProperties": 0}, {"$ref": f"#/$defs/coverage_{check}"}]}}
            },
        }
        for check in coverages
    ]
    schema["$defs"] |= {f"coverage_{check}": coverage for check, coverage in coverages.items()}
    return json.dumps(schema, indent=1) + "\n"


def _tolerant(schema: Any) -> Any:
    """The schema with unknown fields allowed, and any coverage: for a report of another minor version."""
    if isinstance(schema, dict):
        return {
            key: _tolerant(value)
            for key, value in schema.items()
            if not (key == "additionalProperties" and value is False) and key != "allOf"
        }
    return [_tolerant(item) for item in schema] if isinstance(schema, list) else schema


def validate(report: Mapping[str, Any], *, tolerant: bool = False) -> None:
    """Raise ReportError with the place of the first misfit when `report` is not a report v1.

    `tolerant` lets unknown fields pass, as in a report of another minor version.
    """
    import jsonschema  # here, because it takes long to load and most commands do without

    schema = json.loads(schema_text())
    validator = jsonschema.Draft202012Validator(_tolerant(schema) if tolerant else schema)
    misfit = next(iter(sorted(validator.iter_errors(report), key=lambda error: list(map(str, error.path)))), None)
    if misfit is not None:
        raise ReportError(f"not a valid report: {misfit.json_path}: {misfit.message[:200]}")


def to_bytes(report: Report) -> bytes:
    """The report as it is written, checked against the schema first. Raises ReportError."""
    found = document(report)
    validate(found)
    return (json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode()


def refuse_version(found: object, chosen: str) -> int:
    """The minor version of a report of the name `chosen`. Raises ReportError for another major one, or no report."""
    version = found.get("schema") if isinstance(found, dict) else None
    match = _SCHEMA_FORM.fullmatch(version) if isinstance(version, str) else None
    if not match:
        raise ReportError(f"{chosen}: this is not a burn-in report (no schema {NAME}/vN.N in it)")
    if int(match[1]) != MAJOR:
        raise ReportError(
            f"{chosen}: this is a report of version {match[1]}, and this gpu-burnin reads version {MAJOR}; "
            f"use a gpu-burnin that reads version {match[1]}"
        )
    return int(match[2])


def parse(data: bytes, chosen: str) -> Report:
    """A report of the name `chosen`. Another minor version is read as far as it is known, another major one refused.

    What an older minor version does not have is empty in what is returned. Raises ReportError.
    """
    try:
        found = parse_json(data)
    except ValueError as error:
        raise ReportError(f"{chosen}: is not JSON ({error}); give a report.json or the directory of a run") from error
    same = refuse_version(found, chosen) == MINOR
    try:
        validate(found, tolerant=not same)
        checks = [_result(check, tolerant=not same) for check in found["checks"]]
    except ReportError as error:
        raise ReportError(f"{chosen}: {error}") from error
    found.setdefault("warnings", [])
    for field in ("sources", "events"):
        found["telemetry"].setdefault(field, [])
    found["coverage"].setdefault("gpus", [])
    found["checks"] = checks
    report: Report = found
    return report


def _result(data: Mapping[str, Any], *, tolerant: bool) -> CheckResult:
    """A check's result as a report has it. `tolerant`: what another minor version says of its coverage may be nothing
    that this one knows. Raises ReportError."""
    result = from_json(CheckResult, {**data, "coverage": {}}, tolerant=True)  # fits, by the schema
    try:
        coverage = from_json(coverage_class(result.name), data["coverage"], tolerant=True)
    except (KeyError, Misfit) as error:
        if not tolerant and data["coverage"]:
            raise ReportError(f"not a valid report: coverage of {result.name}: {error}") from error
        coverage = Coverage()
    return replace(result, coverage=coverage)
