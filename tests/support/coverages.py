"""What checks cover, out of the few entries that matter to a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import is_dataclass
from types import UnionType
from typing import Any, Union, get_args, get_origin

from gpu_burnin.checks import coverage_class
from gpu_burnin.system.codec import from_json, json_fields
from gpu_burnin.types import Coverage, Untyped


def coverage(check: str, **told: Any) -> Coverage:
    """The coverage of a check with these JSON values; what they do not say is 0, empty, False or None."""
    kind = coverage_class(check)
    return Untyped(entries=told) if kind is Untyped else from_json(kind, _filled(kind, told))


def _filled(hint: Any, told: Any) -> Any:
    """The JSON values with all that the hint asks for."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType) and told is not None:
        return _filled(next((arg for arg in args if is_dataclass(arg)), object), told)
    if is_dataclass(hint) and isinstance(told, Mapping):
        blank = {field.json_name: _blank(field.hint) for field in json_fields(hint) if not field.make}
        kinds = {field.json_name: field.hint for field in json_fields(hint)}
        return {**blank, **{name: _filled(kinds.get(name, object), value) for name, value in told.items()}}
    if origin is tuple and isinstance(told, list | tuple):
        hints = [args[0]] * len(told) if args[1:] == (...,) else args
        return [_filled(item, value) for item, value in zip(hints, told, strict=True)]
    if origin is not None and origin is not tuple and isinstance(told, Mapping) and len(args) == 2:
        return {name: _filled(args[1], value) for name, value in told.items()}
    return told


def _blank(hint: Any) -> Any:
    """The JSON value that says least."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if type(None) in args else _blank(args[0])
    if origin is tuple:
        return [] if args[1:] == (...,) else [_blank(arg) for arg in args]
    if is_dataclass(hint):
        return _filled(hint, {})
    return {} if origin is not None else hint()
