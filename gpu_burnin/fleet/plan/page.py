"""The plan of a fleet as one page that loads nothing."""

from __future__ import annotations

from gpu_burnin import __version__
from gpu_burnin.fleet.plan.model import SCHEMA, FleetPlan
from gpu_burnin.fleet.plan.text import summary
from gpu_burnin.report import html


def render(plan: FleetPlan) -> str:
    """The page."""
    return html.fill("plan.html.j2", plan=plan, summary=summary(plan), schema=SCHEMA, version=__version__)
