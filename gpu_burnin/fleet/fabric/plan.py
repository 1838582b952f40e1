"""The plan of a run before it begins: what it costs, and what its places lack."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Fabric, Round, Settings, State
from gpu_burnin.fleet.fabric import places
from gpu_burnin.fleet.fabric.cost import Cost, forecast, seconds_of_round
from gpu_burnin.fleet.fabric.planner import next_round
from gpu_burnin.fleet.plan.inventory import ask
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.prose import STANDARD_WIDTH, table_with_text, wrap
from gpu_burnin.system.quantities import count, duration
from gpu_burnin.types import JSON

SCHEMA = "muster-fabric-plan/v1"


@dataclass(frozen=True)
class Plan:
    """All of it. The plan is sound where there is no problem; notes are no problems."""

    nodes: int
    leaves: int
    cost: Cost
    first: Round | None
    first_s: float
    problems: tuple[str, ...]
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, JSON]:
        """Plain data for programs."""
        return {
            "schema": SCHEMA,
            "nodes": self.nodes,
            "leaves": self.leaves,
            "rounds": self.cost.rounds,
            "seconds": self.cost.seconds,
            "node_minutes": self.cost.node_s / 60,
            "more_rounds_for_suspects": self.cost.more_rounds,
            "more_node_minutes_for_each_fault": self.cost.more_node_s / 60,
            "stages": to_json(self.cost.stages),
            "first_round": to_json(self.first),
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def read(inventory: Sequence[str]) -> Fabric:
    """The GPU nodes of an inventory. Raises GpuBurninError."""
    return Fabric(given(inventory).nodes)


def given(inventory: Sequence[str], limit: str = "") -> places.Given:
    """What an inventory says of its GPU nodes, or of those of a limit. Raises GpuBurninError."""
    for source in inventory:
        if not Path(source).exists():
            raise GpuBurninError(f"{source} does not exist; give the inventory as -i FOLDER")
    named = ", ".join(inventory)
    found = ask(places.Given, "fabric_given", inventory, {"limit": limit}, f"{named} cannot be planned from")
    if not found.nodes:
        of_limit = f"--limit {limit} has no host of gpu_nodes; name GPU nodes"
        raise GpuBurninError(
            of_limit if limit else f"{named} has no host in gpu_nodes; add the GPU nodes to that group"
        )
    return found


def make(fabric: Fabric, settings: Settings) -> Plan:
    """The plan."""
    first = next_round(State(fabric, settings))
    made = first if isinstance(first, Round) else None
    return Plan(
        len(fabric.nodes),
        len(fabric.leaves),
        forecast(fabric, settings),
        made,
        seconds_of_round(made, settings) if made else 0.0,
        places.problems(fabric),
        places.notes(fabric),
    )


def render(plan: Plan, width: int = STANDARD_WIDTH) -> str:
    """Lines of at most `width` characters; the problems last, where a terminal ends."""
    cost = plan.cost
    head = (
        f"{count(plan.nodes, 'node')} on {count(plan.leaves, 'leaf', 'leaves')}: {count(cost.rounds, 'round')}, "
        f"{duration(cost.seconds)}, {cost.node_s / 60:,.0f} node-minutes where nothing fails"
    )
    lines = wrap(head, width)
    rows = [("", "rounds", "time", "node-minutes")]
    rows += [
        (stage.name, str(stage.rounds), duration(stage.seconds), f"{stage.node_s / 60:,.0f}") for stage in cost.stages
    ]
    lines += ["", *table_with_text(rows, width), ""]
    lines += wrap(
        f"where tests fail: {cost.more_rounds} or more rounds on top; about {cost.more_node_s / 60:,.0f} node-minutes "
        "for each node at fault",
        width,
    )
    lines += [line for note in plan.notes for line in wrap(note, width, "note: ", "  ")]
    if plan.problems:
        lines += ["", f"{count(len(plan.problems), 'problem').capitalize()}:"]
        lines += [line for problem in plan.problems for line in wrap(problem, width, "- ", "  ")]
    return "\n".join(lines) + "\n"
