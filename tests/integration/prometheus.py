"""What the tests ask of the lab's Prometheus, and of the real promtool without a lab."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from .fleet import Fleet

_HOST, _ADDRESS = "mon-1", "http://127.0.0.1:9090"


def ask(fleet: Fleet, path: str) -> Any:
    """The data of an answer of its API."""
    return json.loads(fleet.must(_HOST, f"curl -sS -m 10 {shlex.quote(_ADDRESS + path)}"))["data"]


def query(fleet: Fleet, expression: str) -> list[dict[str, str]]:
    """The labels of each series that the expression gives."""
    found = ask(fleet, f"/api/v1/query?query={quote(expression)}")["result"]
    return [series["metric"] for series in found]


def answers(fleet: Fleet, expressions: Sequence[str]) -> dict[str, Any]:
    """What it answers to each of many expressions, asked over one connection."""
    asked = "".join(f'url = "{_ADDRESS}/api/v1/query?query={quote(one)}"\n' for one in expressions)
    done = fleet.ssh(_HOST, "curl -sS -m 60 -w '\\n' -K -", stdin=asked)
    assert done.rc == 0, done.err
    return dict(zip(expressions, map(json.loads, done.out.splitlines()), strict=True))


def readings(series: Mapping[str, str], steps: int) -> list[dict[str, str]]:
    """Input of promtool: each series has its value, or what it begins with and what it grows by, at each step."""
    return [
        {"series": name, "values": f"{values}x{steps}" if "+" in values else f"{values}+0x{steps}"}
        for name, values in series.items()
    ]


def alerts_in(fleet: Fleet, state: str = "pending|firing") -> set[tuple[str, str]]:
    """The alerts of Prometheus with what they are about. Those pending were not yet there long enough to be told."""
    return {
        (one["labels"]["alertname"], one["labels"].get("instance", ""))
        for one in ask(fleet, "/api/v1/alerts")["alerts"]
        if one["state"] in state.split("|")
    }


def told_of(fleet: Fleet) -> dict[tuple[str, str], dict[str, Any]]:
    """The alerts of Alertmanager, by name and what they are about."""
    alerts = json.loads(fleet.must(_HOST, "curl -sS -m 10 http://127.0.0.1:9093/api/v2/alerts"))
    return {(one["labels"]["alertname"], one["labels"].get("instance", "")): one for one in alerts}
