"""Series in promtool's notation, as an exporter shows them over the time; and rules whose time runs faster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

# From one value of a case to the next, in the time of the fleet.
STEP_S = 30
_NUMBER = r"\d+(?:\.\d+)?(?:e\d+)?"
_RUN = re.compile(rf"(?:(?P<none>_|stale)|(?P<first>-?{_NUMBER})(?P<growth>[+-]{_NUMBER})?)(?:x(?P<more>\d+))?")
_SERIES = re.compile(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'([a-zA-Z_]\w*)="([^"]*)"')
_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d+)(ms|s|m|h|d)")
_WINDOW = re.compile(r"\[([^\]]*)\]")
_OFFSET = re.compile(r"\boffset (\S+?)(?=[\s)]|$)")
# What is for each second of the fleet's time, or looks at times in other ways than by a window.
_RATE = re.compile(r"\brate\(")
_UNKNOWN = re.compile(r"\b(irate|deriv|predict_linear)\b|@ ")
_TEXT = re.compile(r'"[^"]*"')
_ASKED = re.compile(r"\b([a-z_]+)(?=\s*\()|\b(unless|offset)\b")
# What computes with the numbers of one moment: promtool does it as Prometheus does. Any other word looks at times, or
# at what is not there, which depends on reads and evaluations.
_OF_ONE_MOMENT = frozenset(
    {
        "abs", "avg", "ceil", "clamp_max", "clamp_min", "count", "floor", "histogram_quantile", "label_replace", "max",
        "min", "scalar", "sum", "vector", "and", "by", "group_left", "group_right", "ignoring", "on", "or", "without",
    }
)  # fmt: skip


def seconds(duration: str) -> float:
    """A duration of Prometheus, as 1h30m. Raises ValueError."""
    if not re.fullmatch(f"({_DURATION.pattern})+", duration):
        raise ValueError(f"{duration} is no duration")
    return sum(int(number) * _UNITS_S[unit] for number, unit in _DURATION.findall(duration))


def parts(series: str) -> tuple[str, dict[str, str]]:
    """Name and labels of a series. Raises ValueError."""
    found = _SERIES.fullmatch(series)
    if not found:
        raise ValueError(f"{series} is no series")
    return found[1], dict(_LABEL.findall(found[2] or ""))


@dataclass(frozen=True)
class Course:
    """A series: a value for each step, and what it goes on growing by; None where it is not there."""

    values: tuple[float | None, ...]
    growth: float
    # The step from which on it is what it is at last.
    settled: int

    def at(self, step: int, known: int) -> float | None:
        """Its value at a step. One that ends before the step `known` is over there; others go on as they end."""
        if step < len(self.values):
            return self.values[step]
        last = self.values[-1]
        if last is None or len(self.values) <= known:
            return None
        return last + self.growth * (step - len(self.values) + 1)


def course(notation: str) -> Course:
    """As promtool reads it: `0x20 5+1x40` is 0, 21 times, then 5, 6, ... 45. Raises ValueError."""
    values: list[float | None] = []
    growth, settled = 0.0, 0
    for word in notation.split():
        run = _RUN.fullmatch(word)
        if not run:
            raise ValueError(f"{word} is no run of values")
        growth = float(run["growth"] or 0)
        # What grows is first seen to have grown a step later.
        settled = len(values) + (1 if growth else 0)
        count = int(run["more"]) + 1 if run["more"] else 1
        if run["none"]:
            values += [None] * (count - 1 if run["more"] else 1)
        else:
            values += [float(run["first"]) + growth * number for number in range(count)]
    return Course(tuple(values), growth, settled)


def is_time(series: str) -> bool:
    """Whether a series tells a moment, by its name."""
    return parts(series)[0].endswith(("_timestamp_seconds", "node_time_seconds"))


def shown(series: Mapping[str, Course], step: int, known: int, now_s: float) -> list[tuple[str, float]]:
    """What an exporter shows at a step, at the real time `now_s`.

    A time, of which promtool's begins at 0, is shown as the one that is as long ago.
    """
    found = []
    for name, one in series.items():
        value = one.at(step, known)
        if value is not None:
            found.append((name, now_s - STEP_S * step + value if is_time(name) else value))
    return found


def windows_s(expression: str) -> list[float]:
    """The windows over which an expression looks back. Raises ValueError for one of another kind than `[5m]`."""
    return [seconds(window) for window in _WINDOW.findall(expression)]


def offsets_s(expression: str) -> list[float]:
    """How far back an expression looks for what was then. Raises ValueError for one of another kind than `5m`."""
    return [seconds(offset) for offset in _OFFSET.findall(expression)]


def words_of_time(expression: str) -> set[str]:
    """The words of an expression that ask for more than the numbers of one moment: rate, absent, offset ..."""
    words = {word for found in _ASKED.findall(_TEXT.sub('""', expression)) for word in found if word}
    return words - _OF_ONE_MOMENT


def faster(expression: str, factor: float) -> str:
    """The expression for numbers that change `factor` times as fast. Raises ValueError where it cannot be had."""
    if found := _UNKNOWN.search(expression):
        raise ValueError(f"{found[0]} in a rule: say in faster() what it becomes when time runs faster: {expression}")
    for start in reversed([one.start() for one in _RATE.finditer(expression)]):
        end = _closing(expression, expression.index("(", start)) + 1
        expression = f"{expression[:start]}({expression[start:end]} / {factor:g}){expression[end:]}"
    expression = _OFFSET.sub(lambda offset: f"offset {_milliseconds(seconds(offset[1]) / factor)}", expression)
    return _WINDOW.sub(lambda window: f"[{_milliseconds(seconds(window[1]) / factor)}]", expression)


def faster_groups(groups: Iterable[Mapping[str, Any]], factor: float) -> list[dict[str, Any]]:
    """Groups of rules with each `for`, window and rate of theirs for a fleet whose time runs faster."""
    return [{**group, "rules": [_faster_rule(rule, factor) for rule in group["rules"]]} for group in groups]


def _faster_rule(rule: Mapping[str, Any], factor: float) -> dict[str, Any]:
    kept = {key: _milliseconds(seconds(rule[key]) / factor) for key in ("for", "keep_firing_for") if key in rule}
    return {**rule, "expr": faster(rule["expr"], factor), **kept}


def _milliseconds(duration_s: float) -> str:
    return f"{round(duration_s * 1000)}ms"


def _closing(text: str, opening: int) -> int:
    depth = 0
    for place in range(opening, len(text)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if depth == 0:
            return place
    raise ValueError(f"a bracket is not closed: {text}")
