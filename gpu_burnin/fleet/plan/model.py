"""The plan of a fleet as data: figures with the formula or source of each, and what contradicts them."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from gpu_burnin.fleet.plan.given import Fault
from gpu_burnin.types import JSON

SCHEMA = "muster-fleet-plan/v1"


@dataclass(frozen=True)
class Figure:
    """One figure. `value` in `unit` is for programs (None: not known), `shown` for people; `source` says where it comes
    from; `given` is what the inventory has, "" where there is nothing to compare."""

    key: str
    name: str
    value: JSON
    unit: str
    shown: str
    source: str
    given: str = ""


@dataclass(frozen=True)
class Section:
    """Figures about one matter."""

    key: str
    title: str
    figures: tuple[Figure, ...]


@dataclass(frozen=True)
class FleetPlan:
    """All of it; the plan holds where there is no problem."""

    fleet: str
    nodes: int
    sections: tuple[Section, ...]
    problems: tuple[Fault, ...]

    def to_json(self) -> dict[str, JSON]:
        """Plain data for programs."""
        return {
            "schema": SCHEMA,
            "fleet": self.fleet,
            "planned_nodes": self.nodes,
            "holds": not self.problems,
            "problems": [asdict(problem) for problem in self.problems],
            "sections": {
                section.key: {
                    "title": section.title,
                    "figures": {
                        figure.key: {name: value for name, value in asdict(figure).items() if name != "key"}
                        for figure in section.figures
                    },
                }
                for section in self.sections
            },
        }
