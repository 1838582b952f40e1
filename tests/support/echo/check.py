"""The echo check."""

from __future__ import annotations

import time

import numpy as np
from gpu_burnin.checks.echo.result import EchoCoverage

from gpu_burnin.checks import CheckContext
from gpu_burnin.hardware import make_reason
from gpu_burnin.types import CheckResult, Measurement, SelftestResult, verdict_of


class Check:
    """Words that go there and come back."""

    name = "echo"

    def run(self, ctx: CheckContext) -> CheckResult:
        """One round of 4,096 words."""
        began = time.monotonic()
        wrong = _wrong(ctx.seed, flipped="flipped" in ctx.inject)
        seconds = time.monotonic() - began
        rate = (Measurement("echo_throughput", 4096 * 8 / seconds, "B/s"),)
        covered = EchoCoverage(echoed=4096, wrong=wrong, verified_s=seconds, simulated=True)
        reasons = [make_reason("HBM_BIT_ERROR", self.name, f"{wrong} words came back as others", gpu=ctx.uuid)] * bool(
            wrong
        )
        return CheckResult(self.name, ctx.uuid, verdict_of(reasons), seconds, rate, covered, reasons=tuple(reasons))

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """One bit flipped on the way."""
        began = time.monotonic()
        seen = _wrong(ctx.seed, flipped=True) == 1
        latency_s = time.monotonic() - began
        return (SelftestResult("flipped", self.name, ctx.uuid, True, seen, latency_s, "words", changed_bits=1),)


def _wrong(seed: int, *, flipped: bool) -> int:
    sent = np.random.default_rng(seed).integers(0, 1 << 63, 4096, dtype=np.uint64)
    back = sent.copy()
    back[7] ^= np.uint64(flipped)
    return int((sent != back).sum())
