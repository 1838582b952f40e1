"""The self-test of the gemm check: faults in the real buffers, below the detectors, which must see them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.checks.wrong_product import describe
from gpu_burnin.device.storage import STORAGE
from gpu_burnin.exact import golden
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.expected import expected_digests
from gpu_burnin.exact.faults import FAULTS, SELFTEST_FAULTS, Fault, flip_bit
from gpu_burnin.exact.fresh import make_set
from gpu_burnin.exact.port import STORAGE_OF, products_on
from gpu_burnin.exact.product import ROUND, Expected, Outcome, Pair, ProductUnit, Shape, Stream
from gpu_burnin.types import SelftestResult

# The self-test uses small products: a detector sees a wrong element the same way in a small matrix.
_LIMIT_SIMULATED, _LIMIT_DEVICE = 64, 512
_SEED_BITS = 0x5E1F
# The problem that has to be seen where another detector than the digest is meant.
_MEANT = {"stale": "stale", "skipped_launch": "not_launched", "nan": "nonfinite", "inf": "nonfinite"}


def run(ctx: CheckContext) -> tuple[SelftestResult, ...]:
    """The few faults of a run, or with ctx.selftest_full all: every fault and every single bit, with golden
    digests (also of results with powers of two) and with fresh seeds. Nothing without a device."""
    if ctx.device is None:
        return ()
    limit = _LIMIT_SIMULATED if ctx.device.simulated else _LIMIT_DEVICE
    shape = Shape(*(min(ctx.shapes[key], limit) for key in ("gemm_m", "gemm_n", "gemm_k")))
    with products_on(ctx.device) as products:
        stream = Stream(products)
        return tuple(result for p in products.precisions for result in _precision(ctx, stream, p, shape))


def _precision(ctx: CheckContext, stream: Stream, precision: str, shape: Shape) -> Iterator[SelftestResult]:
    """The faults of one precision, up to the first product that is wrong without one: it proves no detector there."""
    for result in _faults(ctx, ProductUnit(stream, precision, shape), shape):
        yield result
        if result.real is not None:
            return


def _faults(ctx: CheckContext, unit: ProductUnit, shape: Shape) -> Iterator[SelftestResult]:
    precision = unit.precision
    operands = exact.ranges_for(precision)[0]
    names = tuple(FAULTS) if ctx.selftest_full else SELFTEST_FAULTS
    loads = [(False, "")]
    if ctx.selftest_full and exact.can_scale(precision):
        loads.append((True, " scaled"))
    for scaled, suffix in loads:
        unit.load(operands, scaled=scaled)
        expected = expected_digests({pair: unit.case(pair) for pair in ROUND})
        for name in names:
            yield _inject(ctx, unit, expected, FAULTS[name], suffix)
    if ctx.selftest_full:
        unit.load(operands)
        for bit in range(8 * STORAGE[STORAGE_OF[precision][1]].size_bytes):
            yield _inject(ctx, unit, expected, flip_bit(bit), f" bit {bit}")
    # Fresh seeds are verified by another detector, which has to see a wrong value of its own.
    made = make_set(operands, shape, golden.fresh_seeds(ctx.seed ^ _SEED_BITS))
    assert made is not None
    unit.load(operands, made.seeds_a, made.seeds_b)
    for name in names if ctx.selftest_full else ("wrong_value",):
        yield _inject(ctx, unit, made.expected, FAULTS[name], " (fresh seed)")


def _inject(
    ctx: CheckContext, unit: ProductUnit, expected: Mapping[Pair, Expected], fault: Fault, suffix: str
) -> SelftestResult:
    """A product without a fault first, whose right result is known: where it is wrong, the fault is real."""
    pairs = ROUND[:2]
    started = time.perf_counter()
    batch = unit.run(pairs, [expected[pair] for pair in pairs], fault, ctx.seed)
    latency_s = time.perf_counter() - started
    if fault.touches_operands:
        unit.reload()
    clean, broken = batch.outcomes
    name = f"{fault.name} {unit.precision}{suffix}"
    if not clean.right:
        return hindered(ctx, "gemm", name, describe(ctx, unit, pairs[0], clean)[1])
    return injected(ctx, "gemm", name, _detected(fault, broken), latency_s, batch.changed_bits)


def _detected(fault: Fault, outcome: Outcome) -> bool:
    """Whether the detector that the fault is meant for saw it; INT32 has no NaN and no infinity."""
    meant = _MEANT.get(fault.name)
    if fault.name == "wrong_value":  # no counter of non-integers helps here
        meant = "mismatch"
    if meant == "stale" and outcome.case.scaled:  # read with other powers of two the old digest does not come back
        meant = "mismatch"
    if meant is None or (meant == "nonfinite" and outcome.case.precision == "int8"):
        return not outcome.right
    return meant in outcome.problems
