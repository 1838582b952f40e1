"""The settings of tests between nodes, `fabric` in the admitter's configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

_LEAST_EVERY_S = 60.0
_MOST_SECONDS = 600.0


class Admission(StrEnum):
    """Whether a node has to be tested with another one before it is let in."""

    OFF = "off"
    REQUIRED = "required"


class Alone(StrEnum):
    """What becomes of a node for which no partner came in `wait_s`."""

    ADMIT = "admit"
    HOLD = "hold"


@dataclass(frozen=True)
class FabricRules:
    """What tests between nodes may take.

    Each idle node is tested with another one every `every_s`; 0: no standing tests. Members work for `seconds`, with
    messages of up to `size_mib`.
    """

    admission: Admission = Admission.OFF
    wait_s: float = 900.0
    alone: Alone = Alone.ADMIT
    every_s: float = 0.0
    seconds: float = 10.0
    size_mib: int = 64

    @property
    def on(self) -> bool:
        """Whether there is any test between nodes."""
        return self.every_s > 0 or self.admission is Admission.REQUIRED


def with_off(fabric: object) -> object:
    """The settings as they were meant: `admission: off` without quotes is false in YAML 1.1, for Ansible too. Pure."""
    if isinstance(fabric, Mapping) and fabric.get("admission") is False:
        return {**fabric, "admission": Admission.OFF.value}
    return fabric


def problem(rules: FabricRules) -> str:
    """What is wrong with a value, "" for nothing."""
    if not 0 <= rules.wait_s < math.inf:
        return f"fabric.wait_s is {rules.wait_s:g}; give seconds, 0 or more"
    if rules.every_s and not _LEAST_EVERY_S <= rules.every_s < math.inf:
        return f"fabric.every_s is {rules.every_s:g}; give 0 for no standing tests, or {_LEAST_EVERY_S:g} s or more"
    if not 0 < rules.seconds <= _MOST_SECONDS:
        return f"fabric.seconds is {rules.seconds:g}; give seconds above 0 and up to {_MOST_SECONDS:g}"
    if not 1 <= rules.size_mib <= 4096:
        return f"fabric.size_mib is {rules.size_mib}; give 1 to 4096"
    return ""
