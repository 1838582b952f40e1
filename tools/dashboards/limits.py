"""Thresholds of panels, from the alerts' own expressions: a panel turns red where its alert would be raised."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import promql_parser as promql
import yaml

RULES = Path(__file__).resolve().parents[2] / "roles" / "fleet_monitoring" / "files" / "rules"
_ORDERS = (">", ">=", "<", "<=")


class NoLimitError(Exception):
    """There is no such alert, or it compares nothing with a number; the message says which."""


@dataclass(frozen=True)
class Limit:
    """What an alert compares (`of`, an expression) with which number; `below` when less is wrong."""

    of: str
    value: float
    below: bool


@cache
def alerts() -> dict[str, str]:
    """The expression of each alert."""
    groups = [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"] if "alert" in rule}


def limit(alert: str) -> Limit:
    """The first comparison of an alert with a number. Raises NoLimitError."""
    expression: object = promql.parse(expression_of(alert))
    while isinstance(expression, promql.BinaryExpr):
        operator, right = str(expression.op), expression.rhs
        if isinstance(right, promql.NumberLiteral) and operator in _ORDERS:
            return Limit(str(expression.lhs), right.val, below=operator.startswith("<"))
        expression = expression.lhs
    raise NoLimitError(f"{alert} compares nothing with a number: {expression_of(alert)}")


def expression_of(alert: str) -> str:
    """What an alert asks. Raises NoLimitError."""
    if alert not in alerts():
        raise NoLimitError(f"there is no alert {alert} in {RULES}")
    return alerts()[alert]
