"""Time of the power check on the CPU device, which passes by work and waiting: a slow host misses no edge."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_burnin.checks import together
from gpu_burnin.checks.power import check as power
from gpu_burnin.checks.together import Clock
from gpu_burnin.exact import cpu as exact_cpu
from gpu_burnin.exact.cpu import CpuProducts
from tests.support.clocks import ThreadClock, use

_LOOK_S, _PRODUCT_S = 0.0001, 0.002


def own_power_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU of run_together gets a clock of its own: a product takes 2 ms, a look at the clock 0.1 ms."""
    clock = ThreadClock(_LOOK_S)
    gemm = CpuProducts.gemm

    def timed(self: CpuProducts, precision: str, a: Any, b: Any, c: Any) -> None:
        gemm(self, precision, a, b, c)
        clock.sleep(_PRODUCT_S)

    monkeypatch.setattr(CpuProducts, "gemm", timed)
    use(monkeypatch, clock, power, together, exact_cpu)
    monkeypatch.setattr(power, "Clock", lambda: Clock(clock.monotonic, clock.sleep))
