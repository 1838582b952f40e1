"""The self-test: in every run and on every GPU, faults are injected below the detectors, which must see them."""

from __future__ import annotations

import time
from collections.abc import Iterable

from gpu_burnin.checks import CheckContext
from gpu_burnin.compute import exact, golden
from gpu_burnin.compute.backend import Backend
from gpu_burnin.compute.faults import FAULTS, SELFTEST_FAULTS, Fault
from gpu_burnin.compute.patterns import Pattern
from gpu_burnin.compute.product import Case, ProductUnit, Shape, expect
from gpu_burnin.types import SelftestResult

SCOPE_DEVICE = "device buffers"
SCOPE_CPU = "detector logic only"
# The self-test uses small products: a detector sees a wrong element the same way in a small matrix.
_LIMIT_SIMULATED, _LIMIT_DEVICE = 128, 512
_MEMORY_BYTES = 1 << 20


def run_selftest(check: str, ctx: CheckContext) -> tuple[SelftestResult, ...]:
    """Inject the faults that belong to a check; nothing for a check without detectors on the device."""
    if ctx.backend is None:
        return ()
    if check == "gemm":
        return tuple(_gemm(ctx, ctx.backend))
    if check == "hbm" and ctx.backend.covers_memory:
        return (_memory(ctx, ctx.backend),)
    return ()


def _gemm(ctx: CheckContext, backend: Backend) -> Iterable[SelftestResult]:
    limit = _LIMIT_SIMULATED if backend.simulated else _LIMIT_DEVICE
    shape = Shape(*(min(ctx.shapes[key], limit) for key in ("gemm_m", "gemm_n", "gemm_k")))
    for precision in backend.precisions:
        unit = ProductUnit(backend, precision, shape)
        operands = exact.ranges_for(precision)[0]
        seeds = iter(golden.GOLDEN_SEEDS * len(SELFTEST_FAULTS))
        for name in SELFTEST_FAULTS:
            clean, broken = (Case(precision, operands, shape, next(seeds)) for _ in range(2))
            yield _inject(ctx, unit, clean, broken, FAULTS[name], fresh=False)
        # Fresh seeds are verified by another detector, which has to see a wrong value of its own.
        seeds = golden.fresh_seeds(ctx.seed ^ 0x5E1F)
        clean, broken = (Case(precision, operands, shape, next(seeds)) for _ in range(2))
        yield _inject(ctx, unit, clean, broken, FAULTS["wrong_value"], fresh=True)


def _inject(
    ctx: CheckContext, unit: ProductUnit, clean: Case, broken: Case, fault: Fault, fresh: bool
) -> SelftestResult:
    """A right product first, so that a detector that cries always is not taken for a good one."""
    trusted = unit.run(clean, expect(clean, fresh)).right
    expected = expect(broken, fresh)
    started = time.perf_counter()
    outcome = unit.run(broken, expected, fault)
    seen = trusted and not outcome.right
    if fresh:  # the digest is not compared on fresh seeds: Freivalds' value alone has to differ
        seen = trusted and "mismatch" in outcome.problems
    name = f"{fault.name} {clean.precision}" + (" (fresh seed)" if fresh else "")
    return _result(ctx, "gemm", name, seen, time.perf_counter() - started)


def _memory(ctx: CheckContext, backend: Backend) -> SelftestResult:
    size_bytes = min(ctx.shapes["hbm_bytes"], _MEMORY_BYTES)
    memory = backend.memory_allocate(size_bytes)
    pattern = Pattern("random", ctx.seed)
    backend.memory_write(memory, pattern)
    trusted = backend.memory_verify(memory, pattern).count == 0
    backend.memory_flip(memory, exact.mix(ctx.seed) % (size_bytes // 8) * 8, 1 << (ctx.seed % 64))
    started = time.perf_counter()
    faults = backend.memory_verify(memory, pattern)
    return _result(ctx, "hbm", "cell flip", trusted and faults.count == 1, time.perf_counter() - started)


def _result(ctx: CheckContext, check: str, fault: str, detected: bool, latency_s: float) -> SelftestResult:
    assert ctx.backend is not None
    return SelftestResult(
        fault=fault,
        check=check,
        gpu=ctx.gpu.uuid if ctx.gpu else None,
        injected=True,
        detected=detected,
        latency_s=latency_s,
        scope=SCOPE_CPU if ctx.backend.simulated else SCOPE_DEVICE,
    )
