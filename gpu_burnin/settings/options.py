"""What a setting is: declared once, at its field. File, command line, role and documentation are made of that.

A class of settings is a frozen dataclass whose fields are made by `option` and `section`. Help is one text for all,
with Ansible's markup. Standard library only, and quick to import: the command line is made of it.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from gpu_burnin.settings.durations import FORM, parse_duration, write_duration

_T = TypeVar("_T")
# No machine has a million GPUs or links; a size in bytes may have more.
_MOST = 1 << 62
# Of a wrong value, so many characters are shown.
_SHOWN = 60


class OptionError(ValueError):
    """A setting that cannot be one; the message names its key and what it must be. `key` is written with dots.

    `further` are the other mistakes of the same document.
    """

    def __init__(self, key: str, message: str, further: tuple[OptionError, ...] = ()) -> None:
        super().__init__(message)
        self.key = key
        self.further = further


@dataclass(frozen=True)
class Kind:
    """What a setting takes. `rules` are tests of a typed value, each with what it must be, in words.

    `ansible` is how argument_specs write it, `convert` makes the field's value, `from_text` reads a word of the command
    line. With `empty_is_unset` an empty text or list counts as none.
    """

    name: str
    rules: tuple[tuple[Callable[[Any], bool], str], ...]
    ansible: Mapping[str, Any]
    convert: Callable[[Any], object] = lambda value: value
    from_text: Callable[[str], object] = str
    empty_is_unset: bool = True

    @property
    def wanted(self) -> str:
        """What it must be, in words."""
        return self.rules[0][1]

    def problem(self, value: object) -> str:
        """What the value must be and is not, "" when it fits."""
        return next((wanted for fits, wanted in self.rules if not fits(value)), "")


def text(wanted: str, fits: Callable[[str], bool] = lambda _: True) -> Kind:
    """A text that `fits`."""
    return Kind("text", ((lambda value: isinstance(value, str) and fits(value), wanted),), {"type": "str"})


def word(wanted: str, fits: Callable[[str], bool]) -> Kind:
    """A text that is not empty."""
    return replace(text(wanted, lambda value: value != "" and fits(value)), empty_is_unset=False)


def choice(choices: tuple[str, ...]) -> Kind:
    """One of a few words."""
    wanted = f"one of {', '.join(choices)}"
    return Kind("choice", ((lambda value: value in choices, wanted),), {"type": "str", "choices": list(choices)})


def whole(least: int, most: int = _MOST) -> Kind:
    """A whole number."""

    def fits(value: Any) -> bool:
        # bool is an int to isinstance; a count of "yes" is a mistake.
        return type(value) is int and least <= value < most

    return Kind("whole", ((fits, f"a whole number of {least} or more"),), {"type": "int"}, from_text=int)


def duration(least_s: float = 1.0, most_s: float = math.inf) -> Kind:
    """A time such as 30m; the field's value is in seconds."""

    def seconds(value: Any) -> float:
        try:
            return parse_duration(value) if isinstance(value, str) else 0.0
        except ValueError:
            return 0.0

    between = "" if most_s == math.inf else f"from {write_duration(least_s)} to {write_duration(most_s)}"
    rules = (
        (lambda value: seconds(value) > 0.0, FORM),
        (lambda value: least_s <= seconds(value) <= most_s, between),
    )
    return Kind("duration", rules, {"type": "str"}, convert=parse_duration)


FLAG = Kind(
    "flag",
    ((lambda value: type(value) is bool, "true or false"),),
    {"type": "bool"},
    from_text={"true": True, "false": False}.__getitem__,
)
NAMES = Kind(
    "names",
    ((lambda value: isinstance(value, list) and all(isinstance(x, str) and x for x in value), "a list of names"),),
    {"type": "list", "elements": "str"},
    convert=tuple,
)
PATH = Kind(
    "path",
    ((lambda value: isinstance(value, str) and Path(value).is_absolute(), "an absolute path"),),
    {"type": "str"},
    convert=Path,
)
WATTS = Kind(
    "watts",
    (
        (
            lambda value: isinstance(value, int | float) and type(value) is not bool and 0 < value < math.inf,
            "watts above 0, such as 500",
        ),
    ),
    {"type": "float"},
    from_text=float,
)


@dataclass(frozen=True)
class Role:
    """How the role gpu_burnin sets it: by a variable with a default, or (`variable` None) by a fixed value.

    `variable` "" is gpu_burnin_KEY; `value` is written into the host's file, "" for the variable itself.
    """

    default: Any = None
    variable: str | None = ""
    value: Any = ""


@dataclass(frozen=True)
class Flag:
    """How the command line sets it: its names, its help, and the command's parameter ("": the name of the field)."""

    names: tuple[str, ...]
    help: str
    parameter: str = ""


@dataclass(frozen=True)
class Option:
    """One setting: its key in the file, the name of its field, and what it takes.

    `section` is the class of a mapping of settings, which takes the place of `kind`. `default_text` is for people.
    `example` and `code` (of the reason when it differs) belong to an expectation.
    """

    key: str
    name: str
    help: str
    kind: Kind | None = None
    section: type | None = None
    convert: Callable[[Any], object] = lambda value: value
    default_text: str = ""
    role: Role | None = None
    flag: Flag | None = None
    example: str = ""
    code: str = ""


def option(kind: Kind, help: str, default: Any = None, *, factory: Callable[[], Any] | None = None, **more: Any) -> Any:
    """A field of a class of settings; see Option. Without a default it is None: not set."""
    metadata = {"kind": kind, "help": help, **more}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata={"default_text": _in_words(default), **metadata})


def section(kind: type, help: str, *, convert: Callable[[Any], Any] = lambda value: value, **more: Any) -> Any:
    """A field that is a mapping of settings of the class `kind`; `convert` makes the field's value."""
    metadata = {"section": kind, "help": help, "convert": convert, **more}
    return field(default_factory=lambda: convert(kind()), metadata=metadata)


def options_of(settings: type) -> dict[str, Option]:
    """The settings of a class, by key."""
    found = [Option(**{"key": item.name, "name": item.name, **item.metadata}) for item in fields(settings)]
    return {one.key: one for one in found}


def read(settings: type[_T], document: object, prefix: str = "") -> _T:
    """The settings of a parsed document; what is null or empty is not set. Raises OptionError that names the key.

    With several mistakes, the first has the others.
    """
    known = options_of(settings)
    if not isinstance(document, Mapping):
        raise OptionError(prefix, f"{prefix or 'the file'} must be a mapping of keys to values ({', '.join(known)})")
    found: dict[str, Any] = {}
    mistakes: list[OptionError] = []
    for key, one in known.items():
        value, where = document.get(key), f"{prefix}.{key}" if prefix else key
        if value is None or (value in ("", []) and one.kind is not None and one.kind.empty_is_unset):
            continue
        if one.section is not None:
            try:
                found[one.name] = one.convert(read(one.section, value, where))
            except OptionError as error:
                mistakes += [error, *error.further]
        else:
            assert one.kind is not None  # an option has a kind or is a section
            if problem := one.kind.problem(value):
                mistakes.append(OptionError(where, f"{where} must be {problem}, not {_shown(value)}"))
            else:
                found[one.name] = one.kind.convert(value)
    for key in document:
        try:
            known_option(settings, str(key), prefix)
        except OptionError as error:
            mistakes.append(error)
    if mistakes:
        raise OptionError(mistakes[0].key, str(mistakes[0]), tuple(mistakes[1:]))
    return settings(**found)


def _shown(value: object) -> str:
    """The value on a line, without what is beyond a line's length."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def known_option(settings: type, key: str, prefix: str = "") -> Option:
    """The setting of this key. Raises OptionError that names those there are."""
    known = options_of(settings)
    if key in known:
        return known[key]
    near = difflib.get_close_matches(key, known, 1)
    # Those of the whole file are a page.
    hint = f" (did you mean {near[0]}?)" if near else f" (the keys are {', '.join(known)})" if prefix else ""
    where = f"{prefix}.{key}" if prefix else key
    raise OptionError(where, f"unknown key {where}{hint}; remove it or correct its name")


def _in_words(default: Any) -> str:
    return "" if default is None else str(default).lower() if isinstance(default, bool) else str(default)
