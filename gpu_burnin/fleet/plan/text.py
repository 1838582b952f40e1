"""The plan of a fleet as text."""

from __future__ import annotations

from gpu_burnin.fleet.plan.model import FleetPlan
from gpu_burnin.system.prose import STANDARD_WIDTH, table_with_text, wrap
from gpu_burnin.system.quantities import count

_LEAST_SOURCE = 24


def summary(plan: FleetPlan) -> str:
    """Whether the inventory fits the plan, in one sentence."""
    nodes = count(plan.nodes, "planned node")
    found = count(len(plan.problems), "problem") if plan.problems else "the inventory fits the plan"
    return f"{plan.fleet or 'The fleet'}, {nodes}: {found}"


def render(plan: FleetPlan, width: int = STANDARD_WIDTH) -> str:
    """Lines of at most `width` characters, but for longer words. The problems come last, where a terminal ends."""
    lines = wrap(summary(plan), width)
    for section in plan.sections:
        rows = [("", "plan", "inventory", "from")]
        rows += [(figure.name, figure.shown, figure.given or "-", figure.source) for figure in section.figures]
        lines += ["", section.title, *table_with_text(rows, width, least=_LEAST_SOURCE)]
    if plan.problems:
        lines += ["", f"{count(len(plan.problems), 'problem').capitalize()}:"]
        lines += [line for problem in plan.problems for line in wrap(problem.line, width, "- ", "  ")]
    return "\n".join(lines) + "\n"
