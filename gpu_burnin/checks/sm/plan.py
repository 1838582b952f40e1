"""What the sm check is meant to cover, before it runs."""

from __future__ import annotations

from gpu_burnin.checks.planned import Covers, PlannedRun
from gpu_burnin.checks.sm.kernels import KERNELS
from gpu_burnin.checks.sm.result import LEAST_SHARE
from gpu_burnin.hardware.skus import SkuTable


def covers(plan: PlannedRun, skus: SkuTable) -> Covers:
    """How many SMs the sm check will reach."""
    share = LEAST_SHARE
    text = "every SM" if share == 1 else f"{share * 100:.0f} % of the SMs"
    return Covers({"sms_least_share": share}, text, len(KERNELS))
