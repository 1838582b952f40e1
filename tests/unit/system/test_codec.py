"""Dataclasses as JSON values and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import pytest

from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.types import JSON, JSON_NAME, Action, Reason, optional


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Point:
    x: int
    y: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Base:
    first: int = optional(int)
    last: str | None = optional(lambda: None)


@dataclass(frozen=True, kw_only=True)
class Thing(Base):
    name: str
    colour: Colour = Colour.RED
    way: Literal["write", "read"] | None = None
    points: tuple[Point, ...] = ()
    pair: tuple[int, str] = (1, "a")
    by_name: Mapping[str, Point] = field(default_factory=dict)
    free: Mapping[str, JSON] = field(default_factory=dict, metadata={JSON_NAME: "evidence"})
    number: int | float | str | None = None
    first: int


THING = Thing(
    name="n", colour=Colour.BLUE, way="read", points=(Point(1), Point(2, 0.5)), by_name={"p": Point(3)},
    free={"a": [1, {"b": None}]}, number=2.5, first=0,
)  # fmt: skip
PLAIN: dict[str, Any] = {
    "name": "n", "colour": "blue", "way": "read", "points": [{"x": 1, "y": 0.0}, {"x": 2, "y": 0.5}], "pair": [1, "a"],
    "by_name": {"p": {"x": 3, "y": 0.0}}, "evidence": {"a": [1, {"b": None}]}, "number": 2.5, "first": 0,
}  # fmt: skip


def test_there_and_back() -> None:
    plain = to_json(THING)
    # A class's own fields come first; of those it inherits, the ones it names again keep that place and are never left
    # out, and the others are there only when they say something.
    assert plain == PLAIN and list(plain) == list(PLAIN)
    assert from_json(Thing, plain) == THING
    assert to_json(Thing(name="n", first=1, last="here"))["last"] == "here"
    reason = Reason("X", "gemm", "m", "GPU-0", {"a": 1}, Action.REPAIR)
    assert from_json(Reason, to_json(reason)) == reason


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"name": 1}, "name: not str: 1"),
        ({"first": True}, "first: not int: True"),
        ({"first": 1.0}, "first: not int: 1.0"),
        ({"colour": "green"}, "colour: none of 'red', 'blue': 'green'"),
        ({"way": "up"}, "way: none of 'write', 'read': 'up'"),
        ({"points": {}}, "points: not a list"),
        ({"points": [{"x": 1}, {"x": "1"}]}, r"points\[1\].x: not int: '1'"),
        ({"points": [{"x": 1, "y": "far"}]}, r"points\[0\].y: not float: 'far'"),
        ({"points": [{"x": 1, "y": None}]}, r"points\[0\].y: not float: None"),
        ({"points": [{}]}, r"points\[0\].x: missing"),
        ({"points": [3]}, r"points\[0\]: not an object: 3"),
        ({"pair": [1]}, "pair: not 2 items"),
        ({"by_name": {"p": 3}}, "by_name.p: not an object: 3"),
        ({"number": []}, "number: not"),
        ({"more": 1}, "unknown: more"),
        ({"details": {}}, "unknown: details"),
    ],
)
def test_data_of_another_form_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(Misfit, match=f"^{why}"):
        from_json(Thing, PLAIN | change)


def test_what_a_class_refuses_is_a_misfit() -> None:
    with pytest.raises(Misfit, match="severity PASS"):
        from_json(Reason, {"code": "X", "check": "gemm", "message": "m", "severity": "PASS"})


def test_numbers_that_are_not_finite() -> None:
    for number in (math.inf, -math.inf):
        assert from_json(Point, to_json(Point(1, number))) == Point(1, number)
    assert math.isnan(from_json(Point, to_json(Point(1, math.nan))).y)
    assert to_json(Point(1, math.inf), not_finite=lambda _: None) == {"x": 1, "y": None}
    assert math.isnan(from_json(Point, {"x": 1, "y": None}, tolerant=True).y)
    with pytest.raises(Misfit, match="y: too large: 1000"):
        from_json(Point, {"x": 1, "y": 10**400})


def test_another_version_may_have_more() -> None:
    assert from_json(Thing, PLAIN | {"more": 1}, tolerant=True) == THING
    with pytest.raises(Misfit, match="name: missing"):
        from_json(Thing, {}, tolerant=True)


@dataclass(frozen=True)
class RealFirst:
    number: float | int


@dataclass(frozen=True)
class WholeFirst:
    number: int | float


def test_of_a_union_the_first_that_fits_counts_though_unions_of_another_order_are_equal() -> None:
    assert type(from_json(WholeFirst, {"number": 1}).number) is int
    assert type(from_json(RealFirst, {"number": 1}).number) is float


@dataclass(frozen=True)
class Written:
    names: frozenset[str]


def test_what_is_only_written_may_have_a_hint_that_is_not_read() -> None:
    assert to_json(Written(frozenset({"a"}))) == {"names": ["a"]}
