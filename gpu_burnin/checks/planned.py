"""What a check is meant to cover, said before it runs by the `covers` of its folder (gpu_burnin.checks.NAME.plan)."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.types import JSON, Gpu


class PlannedRun(Protocol):
    """What a check may know of the plan (gpu_burnin.engine.plan.Plan)."""

    @property
    def level(self) -> str: ...

    @property
    def total_s(self) -> float: ...

    @property
    def backend(self) -> str: ...

    @property
    def gpus(self) -> tuple[Gpu, ...]: ...

    @property
    def units(self) -> tuple[Gpu, ...]: ...

    @property
    def shapes(self) -> Mapping[str, int]: ...

    @property
    def options(self) -> Mapping[str, JSON]: ...


@dataclass(frozen=True)
class Covers:
    """What a check is meant to cover: numbers with units in their names, and the same in words (`text`).

    A fault of one of its `parts` (a direction, a precision, a kernel) shows only while that is at work: they share the
    time on each GPU alike, or the one with least gets `least_share` of the check's time. `on_top` says what the check
    waits for beside its time, "" for nothing.
    """

    facts: Mapping[str, JSON]
    text: str
    parts: int = 1
    least_share: float | None = None
    on_top: str = ""


def covers(check: str, plan: PlannedRun, skus: SkuTable) -> Covers:
    """What the check of this name is meant to cover in a run."""
    found: Covers = importlib.import_module(f"gpu_burnin.checks.{check}.plan").covers(plan, skus)
    return found
