"""What Prometheus answers, taken apart: samples, labels, and why an answer cannot be read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.fleet.monitoring.line import Ask, Monitoring, NoAnswerError

# What an answer in another form raises, wherever it is taken apart.
WRONG = (KeyError, TypeError, ValueError, IndexError, AttributeError)
# What a person reads of a label or a sentence; a label is as long as whoever set it wanted.
_MOST_LETTERS = 500


def query(ask: Ask, where: Monitoring, problems: list[str], path: str, parameters: Mapping[str, str]) -> Any:
    """The data of an answer of Prometheus; its warnings are added to the problems. Raises NoAnswerError."""
    answer = ask(where.prometheus, f"/api/v1/{path}", parameters)
    if not isinstance(answer, dict) or answer.get("status") != "success":
        raise NoAnswerError(f"{where.name}: Prometheus refuses {path}: {text(get(answer, 'error')) or answer!r:.200}")
    if answer.get("warnings"):
        problems.append(f"{where.name}: Prometheus warns: {text(answer['warnings'])}")
    return answer.get("data")


def reason_of(error: BaseException) -> str:
    """Why there is no answer, as a sentence."""
    if isinstance(error, NoAnswerError):
        return str(error)
    return f"Prometheus answered in a form that cannot be read ({type(error).__name__}: {error})"


def rows_of(data: Any, kind: str) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Labels and row of each series of a result of that kind. Raises one of WRONG."""
    if get(data, "resultType") != kind:
        raise ValueError(f"resultType is {get(data, 'resultType')!r}, not {kind!r}")
    return [(texts(row["metric"]), row) for row in dicts(data["result"])]


def sample(pair: Any) -> tuple[float, float | None]:
    """When, and the number; None for NaN and the infinities, which say that there is none."""
    at, value = float(pair[0]), float(pair[1])
    return at, value if math.isfinite(value) else None


def texts(value: Any) -> dict[str, str]:
    """Labels as texts."""
    return {text(key): text(one) for key, one in (value or {}).items()}


def text(value: Any) -> str:
    """A value as text, cut to what a person reads."""
    return "" if value is None else str(value)[:_MOST_LETTERS]


def get(value: Any, key: str) -> Any:
    """A key of what may be no object."""
    return value.get(key) if isinstance(value, dict) else None


def dicts(value: Any) -> list[Mapping[str, Any]]:
    """A list of objects. Raises ValueError."""
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError("a list of objects was expected")
    return value


def utc(at_s: float) -> str:
    """A Unix time as RFC 3339 in UTC, to the second."""
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
