"""What the power check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.checks.power.wave import may_wave, waves_for
from gpu_burnin.hardware.skus import SkuTable
from gpu_burnin.settings.config import GRANTED, NEVER
from gpu_burnin.system.quantities import duration
from gpu_burnin.types import JSON


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """Which power waves the power check will make."""
    mixed = "products, copies and links under load together"
    waves = str(plan.options.get("power_waves", NEVER))
    made = waves_for(plan.level, plan.total_s, plan.backend == "cpu") if may_wave(waves) else ()
    on_top = ""
    if waves == GRANTED and waves_for(plan.level, plan.total_s):
        wait_s = float(str(plan.options["wave_wait_s"]))
        on_top = f"The power waves wait up to {duration(wait_s)} for a grant, which comes on top."
    hz = [wave.frequency_hz for wave in made]
    facts: dict[str, JSON] = {"power_waves": waves, "frequencies_hz": hz}
    if not hz:
        none = "at this level" if may_wave(waves) else "(never)"
        return Covers(facts, f"{mixed}; no power waves {none}", on_top=on_top)
    when = ", once they are granted" if waves == GRANTED else ""
    span = f"power waves on all GPUs at once, {min(hz):g} to {max(hz):g} Hz{when}"
    return Covers(facts, f"{span}; {mixed}", on_top=on_top)
