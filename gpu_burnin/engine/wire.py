"""Results and events as JSON values: what goes over the worker pipes and into the journal. Standard library only."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any

from gpu_burnin.types import Action, CheckResult, Measurement, Reason, SelftestResult, Series, Verdict


def to_json(value: object) -> Any:
    """Plain JSON values of a result dataclass (or a mapping, list, scalar); NaN and infinities become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(k): to_json(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, str):
        return str(value)
    return value


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as one line."""
    return (json.dumps(to_json(message), allow_nan=False, separators=(",", ":")) + "\n").encode()


def reason_from_json(data: Mapping[str, Any]) -> Reason:
    """The inverse of to_json for a Reason. Raises KeyError, TypeError or ValueError for anything else."""
    fields = {**data, "action": Action(data["action"]), "severity": Verdict(data["severity"])}
    return Reason(**fields)


def result_from_json(data: Mapping[str, Any]) -> CheckResult:
    """The inverse of to_json for a CheckResult, but for `started_s`, which the supervisor knows.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    return CheckResult(
        name=data["name"],
        gpu=data["gpu"],
        verdict=Verdict(data["verdict"]),
        seconds=float(data["seconds"]),
        measurements=tuple(Measurement(**m) for m in data["measurements"]),
        coverage=data["coverage"],
        errors=tuple(data["errors"]),
        reasons=tuple(reason_from_json(r) for r in data["reasons"]),
        series=tuple(Series(s["name"], s["unit"], tuple(s["t_s"]), tuple(s["values"])) for s in data["series"]),
    )


def selftest_from_json(data: Mapping[str, Any]) -> SelftestResult:
    """The inverse of to_json for a SelftestResult. Raises KeyError, TypeError or ValueError for anything else."""
    real = data.get("real")
    return SelftestResult(**{**data, "real": None if real is None else reason_from_json(real)})
