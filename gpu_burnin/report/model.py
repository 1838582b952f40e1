"""Report v1: how it is put together, checked against its schema, written and read."""

from __future__ import annotations

import functools
import importlib.resources
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from gpu_burnin.checks import coverage_class
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.system.host import Host
from gpu_burnin.telemetry.findings import Counter, Source
from gpu_burnin.types import COMES_LAST, Action, CheckResult, Coverage, Gpu, Notice, Reason, Verdict, optional

NAME = "muster-report"
# 1.1 added warnings, telemetry.sources and .events, coverage.gpus, units.covered and what a counter looks like.
# 1.2 gave the coverage of each check a form.
MAJOR, MINOR = 1, 2
SCHEMA = f"{NAME}/v{MAJOR}.{MINOR}"
_SCHEMA_FORM = re.compile(rf"{NAME}/v(\d+)\.(\d+)")


# Where a reader did not ask for it.
_NO_HOST = Host("", "", "", "")
# What a reader tells in the same way.
ReasonOrWarning: TypeAlias = Reason | Notice


class ReportError(GpuBurninError):
    """A file that is no report this program can read; one sentence that names it."""


@dataclass(frozen=True)
class TestedGpu(Gpu):
    """A GPU with the verdict on it alone."""

    __test__ = False  # no test of pytest's

    verdict: Verdict = field(kw_only=True, metadata={COMES_LAST: True})


@dataclass(frozen=True)
class LoggedXid:
    """An XID or SXid of the kernel log. `own`: of a process that this run killed itself."""

    xid: int
    sxid: bool
    pci_bus_id: str
    gpu: str | None
    pid: int | None
    monotonic_us: int
    text: str
    own: bool


@dataclass(frozen=True)
class KernelLog:
    """Where XIDs were read, whether that answered to the end, how many messages are lost at least, and the XIDs."""

    source: str
    alive: bool
    gaps: int = 0
    events: tuple[LoggedXid, ...] = ()


@dataclass(frozen=True)
class NvmlEvent:
    """An event that NVML reported: GpuEvent with the time of the first one in microseconds of CLOCK_MONOTONIC."""

    gpu: str
    kind: str
    data: int
    count: int
    monotonic_us: int


@dataclass(frozen=True)
class Telemetry:
    """What was watched all the time."""

    kernel_log: KernelLog = KernelLog("", alive=False)
    counters: tuple[Counter, ...] = ()
    sources: tuple[Source, ...] = ()
    events: tuple[NvmlEvent, ...] = ()
    series_file: str | None = None


@dataclass(frozen=True)
class Selftest:
    """A SelftestResult, but of a real fault its code: its reason is among the report's."""

    fault: str
    check: str
    gpu: str | None
    injected: bool
    detected: bool
    latency_s: float | None
    scope: str
    changed_bits: int | None = None
    real: str | None = None

    @property
    def caught(self) -> bool:
        """Whether the fault was there and the detector saw it."""
        return self.injected and self.detected


@dataclass(frozen=True, kw_only=True)
class UnitCoverage:
    """What a check covered on a GPU or the node (None), or all checks of a GPU (`check` is ""); see the schema.

    `covered` is in words. What an older version does not say is empty or None.
    """

    check: str = optional(str)
    gpu: str | None
    seconds: float
    verified_s: float | None = optional(lambda: None)
    covered: str = optional(str)
    missed_fault_rate_upper95_per_s: float | None


@dataclass(frozen=True)
class NotRun:
    """A check that gave no result, on a GPU or anywhere (None), and why."""

    check: str
    gpu: str | None
    why: str


@dataclass(frozen=True)
class RunCoverage:
    """What was exercised, in each check and on each GPU, and what was not; the faults that were asked for."""

    units: tuple[UnitCoverage, ...] = ()
    gpus: tuple[UnitCoverage, ...] = ()
    not_run: tuple[NotRun, ...] = ()
    injected: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """A report, or the parts of one that a reader asked for; the schema (report-v1.json) tells each field.

    `plan` has the form of the version that wrote it. Of a check's result, its reasons are in the report's own list.
    """

    schema: str
    run_id: str
    sequence: int = 0
    node: str
    level: str
    started_at: str = ""
    finished_at: str
    simulated: bool
    interrupted: bool
    verdict: Verdict
    action: Action
    reasons: tuple[Reason, ...] = ()
    warnings: tuple[Notice, ...] = ()
    host: Host = _NO_HOST
    software: Mapping[str, str | None] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    plan_sha256: str = ""
    hardware_sha256: str = ""
    gpus: tuple[TestedGpu, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    telemetry: Telemetry = Telemetry()
    selftest: tuple[Selftest, ...] = ()
    coverage: RunCoverage = RunCoverage()

    @property
    def reasons_and_warnings(self) -> tuple[ReasonOrWarning, ...]:
        """The reasons, then the warnings."""
        return (*self.reasons, *self.warnings)

    @functools.cached_property
    def gpu_of(self) -> Mapping[str | None, TestedGpu]:
        """The GPUs by their own UUIDs and by those of their MIG instances."""
        return {uuid: gpu for gpu in reversed(self.gpus) for uuid in gpu.uuids if uuid}

    @functools.cached_property
    def unit_names(self) -> Mapping[str, str]:
        """The short forms of all GPUs and MIG instances by UUID: "GPU 3", "GPU 3 MIG 0"."""
        return {
            uuid: gpu.short if uuid == gpu.uuid else f"{gpu.short} MIG {number - 1}"
            for gpu in self.gpus
            for number, uuid in enumerate(gpu.uuids)
            if uuid
        }

    @functools.cached_property
    def gpu_at(self) -> Mapping[int, TestedGpu]:
        """The GPUs by their indices."""
        return {gpu.index: gpu for gpu in reversed(self.gpus)}

    def name(self, uuid: str | None) -> str:
        """The short form of a GPU or MIG instance: "GPU 3", "GPU 3 MIG 0", or "node"."""
        return self.unit_names.get(uuid or "") or self.label(uuid)

    def label(self, uuid: str | None) -> str:
        """How a person finds the GPU: index and PCI address. "node" without a UUID."""
        if uuid is None:
            return "node"
        return f"{self.unit_names[uuid]} {self.gpu_of[uuid].pci_bus_id}" if uuid in self.gpu_of else uuid


def plain(value: object) -> Any:
    """`value` as JSON values; a number that is not finite becomes null, since JSON has none."""
    return to_json(value, not_finite=lambda _: None)


def document(report: Report) -> dict[str, Any]:
    """The report as JSON values."""
    found: dict[str, Any] = plain(report)
    for row, counter in zip(found["telemetry"]["counters"], report.telemetry.counters, strict=True):
        row["delta"] = counter.delta
    return found


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
    tolerant = refuse_version(found, chosen) != MINOR
    try:
        validate(found, tolerant=tolerant)
    except ReportError as error:
        raise ReportError(f"{chosen}: {error}") from error
    return of_json(found, chosen)


def of_json(found: Mapping[str, Any], chosen: str) -> Report:
    """A report of the name `chosen`, or some members of one, out of JSON values. Raises ReportError."""
    tolerant = refuse_version(found, chosen) != MINOR
    try:
        report = from_json(Report, {**found, "checks": ()}, tolerant=True)
        return replace(report, checks=tuple(_result(check, tolerant) for check in found.get("checks", ())))
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{chosen}: not a valid report: {error}") from error


def _result(data: Mapping[str, Any], tolerant: bool) -> CheckResult:
    """A check's result as a report has it. `tolerant`: what another minor version says of its coverage may be nothing
    that this one knows. Raises ValueError, KeyError or TypeError."""
    result = from_json(CheckResult, {**data, "coverage": {}}, tolerant=True)
    try:
        coverage = from_json(coverage_class(result.name), data["coverage"], tolerant=True)
    except (KeyError, Misfit) as error:
        if not tolerant and data["coverage"]:
            raise ValueError(f"coverage of {result.name}: {error}") from error
        coverage = Coverage()
    return replace(result, coverage=coverage)
