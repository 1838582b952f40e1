"""What the state check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.settings.expectations import expectations_of
from gpu_burnin.telemetry.node_links import node_links_of
from gpu_burnin.types import JSON


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """Which values of how many GPUs the state check will hold against their data."""
    expected, links = expectations_of(plan.options), node_links_of(plan.options)
    told = f"settings, counters and links of {len(plan.gpus)} GPU{'s' * (len(plan.gpus) != 1)} against their data"
    facts: dict[str, JSON] = {"gpus": len(plan.gpus), "expect": expected.to_json(), "node_links": links.why or None}
    return Covers(facts, "; ".join(part for part in (told, expected.summary(), links.why) if part))
