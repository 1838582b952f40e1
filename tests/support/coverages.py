"""What checks cover: out of the few entries that matter to a test, and of a result by its own class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from gpu_burnin.checks import coverage_class
from gpu_burnin.checks.nccl.result import NcclCoverage
from gpu_burnin.checks.nvlink.result import NvlinkCoverage
from gpu_burnin.checks.pcie.result import PcieCoverage
from gpu_burnin.checks.power.result import PowerCoverage, PowerSeen, WavesMade
from gpu_burnin.system.codec import Misfit, from_json, json_fields
from gpu_burnin.types import CheckResult, Coverage


def coverage(check: str, **told: Any) -> Coverage:
    """The coverage of a check with these JSON values; what they do not say is 0, empty, False or None."""
    kind = coverage_class(check)
    return from_json(kind, _filled(kind, told))


def _filled(hint: Any, told: Any) -> Any:
    """The JSON values with all that the hint asks for."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and told is not None:
        return next((filled for arg in reversed(args) if (filled := _fitting(arg, told)) is not None), told)
    if isinstance(hint, type) and is_dataclass(hint) and isinstance(told, Mapping):
        blank = {field.json_name: _blank(field.hint) for field in json_fields(hint) if not field.make}
        kinds = {field.json_name: field.hint for field in json_fields(hint)}
        return {**blank, **{name: _filled(kinds.get(name, object), value) for name, value in told.items()}}
    if origin is tuple and isinstance(told, list | tuple):
        hints = [args[0]] * len(told) if args[1:] == (...,) else args
        return [_filled(item, value) for item, value in zip(hints, told, strict=True)]
    if origin is not None and origin is not tuple and isinstance(told, Mapping) and len(args) == 2:
        return {name: _filled(args[1], value) for name, value in told.items()}
    return told


def _fitting(hint: Any, told: Any) -> Any:
    """The JSON values with all that a class asks for, None where they are not its."""
    try:
        filled = _filled(hint, told)
        from_json(hint, filled)
    except Misfit:
        return None
    return filled if is_dataclass(hint) else None


def _blank(hint: Any) -> Any:
    """The JSON value that says least."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if type(None) in args else _blank(args[-1])
    if origin is tuple:
        return [] if args[1:] == (...,) else [_blank(arg) for arg in args]
    if is_dataclass(hint):
        return _filled(hint, {})
    return {} if origin is not None else hint()


_Covered = TypeVar("_Covered", bound=Coverage)


def _of(result: CheckResult, kind: type[_Covered]) -> _Covered:
    assert isinstance(result.coverage, kind)
    return result.coverage


def pcie(result: CheckResult) -> PcieCoverage:
    """Of a result of the pcie check."""
    return _of(result, PcieCoverage)


def nvlink(result: CheckResult) -> NvlinkCoverage:
    """Of a result of the nvlink check."""
    return _of(result, NvlinkCoverage)


def nccl(result: CheckResult) -> NcclCoverage:
    """Of a result of the nccl check."""
    return _of(result, NcclCoverage)


def power(result: CheckResult) -> PowerCoverage:
    """Of a result of the power check."""
    return _of(result, PowerCoverage)


def waves_made(result: CheckResult) -> WavesMade:
    """The waves that a power check made."""
    waves = power(result).waves
    assert isinstance(waves, WavesMade)
    return waves


def power_seen(result: CheckResult) -> PowerSeen:
    """What the samplers saw of a power check."""
    seen = power(result).power
    assert seen is not None
    return seen
