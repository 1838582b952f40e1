"""Dataclasses as JSON values and back, by their type hints. Standard library only.

A hint may be a dataclass, a tuple, a Mapping, a Literal, an Enum, a union, a scalar, or JSON: whatever there is. What a
field's metadata may say: see JSON_NAME, OMIT_DEFAULT and COMES_LAST. JSON has no numbers that are not finite: the
caller of to_json says what becomes of them.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gpu_burnin.types import COMES_LAST, JSON_NAME, OMIT_DEFAULT

T = TypeVar("T")
# The value of its data, for a hint that was looked at once. The flag is from_json's `tolerant`.
Reader: TypeAlias = Callable[[Any, bool], Any]
_NOT_FINITE = ("nan", "inf", "-inf")
# Most values are one of these.
_AS_IS = (str, int, bool, NoneType)


class Misfit(ValueError):
    """Data that is not of the form it should have; says where."""

    def __init__(self, why: str, *path: str | int) -> None:
        place = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        super().__init__(f"{place}: {why}" if place else why)
        self.why, self.path = why, path


@dataclass(frozen=True)
class Field:
    """A field of a dataclass as JSON has it: `make` gives its default (None: it has none), `read` its value."""

    name: str
    json_name: str
    hint: Any
    make: Callable[[], Any] | None
    read: Reader
    omit_default: bool


@functools.cache
def json_fields(kind: type) -> tuple[Field, ...]:
    """The fields in the order of the JSON object: a class's own, then what it only inherits."""
    found = {field.name: field for field in fields(kind)}
    hints = get_type_hints(kind, localns={"JSON": object})
    named = dict.fromkeys(name for base in kind.__mro__ for name in inspect.get_annotations(base) if name in found)
    return tuple(
        Field(
            name,
            str(found[name].metadata.get(JSON_NAME, name)),
            hints[name],
            _default(found[name]),
            _reader(hints[name]),
            bool(found[name].metadata.get(OMIT_DEFAULT)),
        )
        for name in sorted(named, key=lambda name: bool(found[name].metadata.get(COMES_LAST)))
    )


def _default(field: Any) -> Callable[[], Any] | None:
    if field.default_factory is not MISSING:
        made: Callable[[], Any] = field.default_factory
        return made
    return None if field.default is MISSING else lambda: field.default


def to_json(value: object, not_finite: Callable[[float], str | None] = str) -> Any:
    """JSON values of a dataclass, mapping, list or scalar; `not_finite` gives what stands for NaN and infinities."""
    if type(value) in _AS_IS or (type(value) is float and math.isfinite(value)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        document = {}
        for field in json_fields(type(value)):
            item = getattr(value, field.name)
            if not (field.omit_default and field.make and item == field.make()):
                document[field.json_name] = to_json(item, not_finite)
        return document
    if isinstance(value, Mapping):
        return {str(key): to_json(item, not_finite) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_json(item, not_finite) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return not_finite(value)
    return str(value) if isinstance(value, str) else value


def from_json(kind: type[T], data: object, *, tolerant: bool = False) -> T:
    """The inverse of to_json. Raises Misfit for data of another form.

    `tolerant` ignores fields that are not known, as another version may have them, and reads null where a number is
    wanted as one that is not finite.
    """
    made: T = _reader(kind)(data, tolerant)
    return made


def _reader(hint: Any) -> Reader:
    """Not cached by hint: unions are equal in any order, and the first that fits counts."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (Any, object):
        return lambda data, _: data
    if origin in (Union, UnionType):
        return _first(NoneType in args, [_reader(arg) for arg in args])
    if origin is Literal:
        return lambda data, _: _one_of(args, data)
    if origin is tuple:
        return _items([_reader(arg) for arg in args if arg is not ...], many=args[1:] == (...,))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _mapping(*map(_reader, args))
    if is_dataclass(hint):
        kind = cast("type[Any]", hint)
        return lambda data, tolerant: _object_of(kind, _object(data), tolerant)
    if isinstance(hint, type) and issubclass(hint, Enum):
        values = [member.value for member in hint]
        return lambda data, _: hint(_one_of(values, data))
    return lambda data, tolerant: _scalar(hint, data, tolerant)


def _at(step: str | int, read: Reader, data: Any, tolerant: bool) -> Any:
    try:
        return read(data, tolerant)
    except Misfit as misfit:
        raise Misfit(misfit.why, step, *misfit.path) from None


def _first(optional: bool, readers: list[Reader]) -> Reader:
    def read(data: Any, tolerant: bool) -> Any:
        if data is None and optional:
            return None
        misfits = []
        for reader in readers:
            try:
                return reader(data, tolerant)
            except Misfit as misfit:
                misfits.append(misfit)
        raise max(misfits, key=lambda misfit: len(misfit.path))  # the one that went furthest into the data

    return read


def _mapping(read_key: Reader, read_item: Reader) -> Reader:
    def read(data: Any, tolerant: bool) -> Any:
        entries = _object(data).items()
        return {read_key(key, tolerant): _at(key, read_item, item, tolerant) for key, item in entries}

    return read


def _one_of(values: Any, data: Any) -> Any:
    for value in values:
        if type(value) is type(data) and value == data:
            return value
    raise Misfit(f"none of {', '.join(map(repr, values))}: {data!r:.40}")


def _items(readers: list[Reader], *, many: bool) -> Reader:
    def read(data: Any, tolerant: bool) -> Any:
        if not isinstance(data, list | tuple):
            raise Misfit(f"not a list: {data!r:.40}")
        if not many and len(data) != len(readers):
            raise Misfit(f"not {len(readers)} items: {data!r:.40}")
        return tuple(_at(index, readers[0 if many else index], item, tolerant) for index, item in enumerate(data))

    return read


def _object(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise Misfit(f"not an object: {data!r:.40}")
    return data


def _object_of(kind: type, data: Mapping[str, Any], tolerant: bool) -> Any:
    known = json_fields(kind)
    if not tolerant and (unknown := set(data) - {field.json_name for field in known}):
        raise Misfit(f"unknown: {', '.join(sorted(map(str, unknown)))}")
    found = {}
    for field in known:
        if field.json_name in data:
            found[field.name] = _at(field.json_name, field.read, data[field.json_name], tolerant)
        elif field.make is None:
            raise Misfit("missing", field.json_name)
    try:
        return kind(**found)
    except ValueError as error:  # what the class itself refuses
        raise Misfit(str(error)) from None


def _scalar(kind: type, data: Any, tolerant: bool) -> Any:
    if kind is float and data is None and tolerant:
        return math.nan
    if kind is float and (data in _NOT_FINITE if isinstance(data, str) else type(data) in (int, float)):
        try:
            return float(data)
        except OverflowError:
            raise Misfit(f"too large: {str(data)[:20]}...") from None
    if isinstance(data, kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise Misfit(f"not {kind.__name__}: {data!r:.40}")
