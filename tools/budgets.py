"""The budgets of `make test` in CPU seconds, from tools/cpu_budgets.yaml, and which stage is over its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

FILE = Path(__file__).with_name("cpu_budgets.yaml")
# A stage fails when it takes more than so much of its budget: processor time of one thing varies between runs.
TOLERATED = 1.10
# The stage that fills what is empty of the lab's cache, and the processors that its minutes are of.
CACHES, CORES = "caches", 2


@dataclass(frozen=True)
class Budgets:
    """CPU seconds by stage and by what is to come, all that may be given away, and the time of a cold build.

    They are meant at the speed at which the piece of work of tools/cpu_speed.py costs `piece_s`.
    """

    stages: Mapping[str, float]
    reserved: Mapping[str, float]
    all_s: float
    cold_build_s: float = 0.0
    piece_s: float = 0.1

    def of(self, stage: str) -> float | None:
        """CPU seconds of a stage; None where it has no budget. Caches that are empty have the time of a cold build."""
        return CORES * self.cold_build_s if stage == CACHES else self.stages.get(stage)

    @property
    def given_s(self) -> float:
        """The sum of all of them."""
        return sum(self.stages.values()) + sum(self.reserved.values())


def read_budgets(path: Path = FILE) -> Budgets:
    """Of the file. Raises KeyError where it lacks a part, ValueError where a budget is no number."""
    read = yaml.safe_load(path.read_text())
    stages, reserved = ({str(name): float(s) for name, s in read[part].items()} for part in ("stages", "reserved"))
    return Budgets(stages, reserved, float(read["all"]), 60 * float(read["cold_build_minutes"]), float(read["piece_s"]))


def compared(stage: str, used_s: float, budgets: Budgets, speed: float = 1.0) -> tuple[str, bool]:
    """How a stage stands to its budget, in words, and whether that is a failure.

    `speed`: of the processors while it ran, as SpeedMeter has it.
    """
    budget_s = budgets.of(stage)
    if budget_s is None:
        return f"has no budget in {FILE.name}: give it one", True
    work_s = used_s * speed
    at_speed = f" at speed {speed:.2f}" if round(speed, 2) != 1 else ""
    if work_s <= budget_s:
        return f"{work_s:.0f} of {budget_s:.0f} CPU s{at_speed}", False
    over = f"{work_s:.0f} CPU s{at_speed} are {work_s - budget_s:.0f} over the budget of {budget_s:.0f}"
    fails = work_s > TOLERATED * budget_s
    return f"{over}: move what repeats a proof to make soak, or free it elsewhere ({FILE.name})", fails
