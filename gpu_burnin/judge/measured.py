"""The one step before judging: what telemetry and the model's data add to the results of the checks. Pure."""

from __future__ import annotations

from dataclasses import replace

from gpu_burnin.judge.floors import at_lowered_power, with_floors
from gpu_burnin.judge.mig import without_floors
from gpu_burnin.judge.observations import Observations
from gpu_burnin.judge.power import with_power


def measured(seen: Observations) -> Observations:
    """The same run with floors written into its measurements, and into the power check what the samplers saw of it."""
    seen = replace(seen, results=without_floors(seen))
    results = with_floors(at_lowered_power(seen), seen.gpus, simulated=seen.simulated, skus=seen.rules.skus)
    return replace(seen, results=with_power(replace(seen, results=results)))
