"""The plan of a fleet out of what its inventory says. Pure."""

from __future__ import annotations

from gpu_burnin.fleet.plan import control_plane, places, work
from gpu_burnin.fleet.plan.given import Given
from gpu_burnin.fleet.plan.model import FleetPlan


def make(given: Given, gpu_watts: float | None = None) -> FleetPlan:
    """All figures, and all that contradicts them. `gpu_watts` is what a GPU draws at full load, where that is known."""
    return FleetPlan(
        fleet=given.name,
        nodes=given.planned_nodes,
        sections=(
            control_plane.section(given),
            work.certificates(given),
            work.joining(given),
            work.burning(given, gpu_watts),
            work.retests(given),
            places.network(given),
            places.monitoring(given),
        ),
        problems=(*given.faults, *control_plane.problems(given), *work.problems(given), *places.problems(given)),
    )
