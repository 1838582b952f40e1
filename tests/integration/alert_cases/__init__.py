"""For each alert its fault, and the state beside it that is none: a module for each file of rules, of the same name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import yaml

from .case import Case

RULES = Path(__file__).resolve().parents[3] / "roles/fleet_monitoring/files/rules"


def groups() -> list[dict[str, Any]]:
    """Those of all files of rules."""
    return [group for path in sorted(RULES.glob("*.yml")) for group in yaml.safe_load(path.read_text())["groups"]]


def cases() -> Iterator[Case]:
    """Those of each file of rules with alerts, from the module of its name."""
    for path in sorted(RULES.glob("*.yml")):
        if "alert:" in path.read_text():
            yield from import_module(f"{__package__}.{path.stem.replace('-', '_')}").CASES
