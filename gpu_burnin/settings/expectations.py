"""What the operator expects of this node: one section `expect`, in the configuration and on the command line.

The model's data, and what the node shows, decide the rest (telemetry.node_links). Standard library
only.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from gpu_burnin.types import JSON

# The key in the options of a plan, and of the configuration.
KEY = "expect"


@dataclass(frozen=True)
class Expectations:
    """What this node should look like. None: not set.

    `nvlink_links` are those that each GPU must have active; 0: the machine has no NVLink. `power_limit_w` is the
    enforced limit of each GPU in watts. `mig` is whether MIG mode is on.
    """

    gpus: int | None = None
    nvlink_links: int | None = None
    mig: bool | None = None
    power_limit_w: float | None = None
    driver_version: str | None = None
    vbios: str | None = None
    nccl: str | None = None

    def to_json(self) -> dict[str, JSON]:
        """The keys that are set, as they travel in the options of a plan and in the report."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def in_words(self) -> str:
        """The keys that are set, for people; "" when there are none."""
        return in_words(self.to_json())

    def over(self, other: Expectations) -> Expectations:
        """These, and the other's for keys that are not set here."""
        return Expectations(**{**asdict(other), **self.to_json()})

    def contradictions(self, other: Expectations) -> tuple[str, ...]:
        """The keys that both set, to different values."""
        mine, theirs = self.to_json(), other.to_json()
        return tuple(name for name in mine if name in theirs and mine[name] != theirs[name])


def in_words(said: Mapping[str, JSON]) -> str:
    """Expectations as to_json gives them, for people: "expected as given: gpus 8, mig on"."""
    listed = ", ".join(f"{name} {_word(value)}" for name, value in said.items() if name in KEYS)
    return f"expected as given: {listed}" if listed else ""


def _word(value: JSON) -> str:
    return (
        ("on" if value else "off")
        if isinstance(value, bool)
        else f"{value:g}"
        if isinstance(value, float)
        else str(value)
    )


class ExpectationError(ValueError):
    """An expectation that cannot be one; the message names the key and what it must be."""


@dataclass(frozen=True)
class _Kind:
    """What a key takes: in words, the test of a typed value, and what the command line's text stands for."""

    wanted: str
    fits: Callable[[object], bool]
    from_text: Callable[[str], object]


def _whole(least: int) -> _Kind:
    # bool is an int to isinstance; a count of "yes" is a mistake. No machine has a million GPUs or links.
    return _Kind(
        f"a whole number of {least} or more", lambda value: type(value) is int and least <= value < 1_000_000, int
    )


def _is_watts(value: object) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and 0 < value < math.inf


def _is_word(value: object) -> bool:
    return isinstance(value, str) and value.isprintable() and value == value.strip() != ""


def _is_version(value: object) -> bool:
    return isinstance(value, str) and all(part.isascii() and part.isdecimal() for part in value.split("."))


_KINDS: Mapping[str, _Kind] = {
    "gpus": _whole(1),
    "nvlink_links": _whole(0),
    "mig": _Kind("true or false", lambda value: type(value) is bool, {"true": True, "false": False}.__getitem__),
    "power_limit_w": _Kind("watts above 0, such as 500", _is_watts, float),
    "driver_version": _Kind("a version in quotes, such as '580.95.05'", _is_version, str),
    "vbios": _Kind("a version in quotes, such as '96.00.89.00.01'", _is_word, str),
    "nccl": _Kind("a version in quotes, such as '2.28.3'", _is_version, str),
}
KEYS: tuple[str, ...] = tuple(field.name for field in fields(Expectations))


def parse(section: object) -> Expectations:
    """The expectations of a parsed section: typed values by key, None where not set.

    Raises ExpectationError that names the key.
    """
    if not isinstance(section, Mapping):
        raise ExpectationError(f"{KEY} must be a mapping of keys to values ({', '.join(KEYS)})")
    said: dict[str, Any] = {}
    for key, value in section.items():
        kind = _kind(str(key))
        if value is None:
            continue
        if not kind.fits(value):
            raise ExpectationError(f"{KEY}.{key} must be {kind.wanted}")
        said[str(key)] = value
    return Expectations(**said)


def parse_words(words: tuple[str, ...]) -> Expectations:
    """The expectations of the command line: each word is KEY=VALUE. Raises ExpectationError that names the word."""
    section: dict[str, object] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals):
            raise ExpectationError(f"{word!r} is not KEY=VALUE; the keys are {', '.join(KEYS)}")
        kind = _kind(key)
        if key in section:
            raise ExpectationError(f"{key} is given twice; give it once")
        try:
            section[key] = kind.from_text(text)
        except (ValueError, KeyError):
            section[key] = ...  # which no key takes
        if not kind.fits(section[key]):
            raise ExpectationError(f"{key} must be {kind.wanted.replace(' in quotes', '')}, not {text!r}")
    return parse(section)


def expectations_of(options: Mapping[str, JSON]) -> Expectations:
    """What the options of a plan say: the one reader for all checks. Raises ExpectationError."""
    return parse(options.get(KEY) or {})


def _kind(key: str) -> _Kind:
    if key in _KINDS:
        return _KINDS[key]
    near = difflib.get_close_matches(key, KEYS, 1)
    hint = f"did you mean {near[0]}?" if near else f"the keys are {', '.join(KEYS)}"
    raise ExpectationError(f"unknown key {KEY}.{key} ({hint}); remove it or correct its name")
