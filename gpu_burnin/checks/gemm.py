"""The gemm check: exact matrix products in every precision, each one verified."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from gpu_burnin.checks import CheckContext
from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import Backend, BackendError
from gpu_burnin.compute.faults import FAULTS, Fault
from gpu_burnin.compute.golden import GOLDEN_SEEDS, fresh_seeds, shipped_shapes
from gpu_burnin.compute.locate import locate
from gpu_burnin.compute.product import Case, Expected, Outcome, ProductUnit, Shape, expect
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, Action, CheckResult, Measurement, Reason, verdict_of

_MAX_LOCATED = 4
_PROGRESS_EVERY_S = 0.5


@dataclass
class _Tally:
    """What one run of the check has seen so far."""

    products: Counter[str] = field(default_factory=Counter)
    ranges: dict[str, set[str]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    golden: int = 0
    freivalds: int = 0
    wrong: int = 0
    errors: list[dict[str, JSON]] = field(default_factory=list)
    reasons: list[Reason] = field(default_factory=list)


class Check:
    """Rotates through precisions, operand ranges, golden and fresh seeds until the budget is spent."""

    name = "gemm"
    per_gpu = True

    def run(self, ctx: CheckContext) -> CheckResult:
        """At least one whole round, then more while time is left. Raises BackendError without a backend."""
        if ctx.backend is None:
            raise BackendError("the gemm check needs a backend: this is a fault of the caller")
        started = time.monotonic()
        shape = shape_of(ctx)
        units = {p: ProductUnit(ctx.backend, p, shape) for p in ctx.backend.precisions}
        fault = next((FAULTS[name] for name in ctx.inject if name in FAULTS), None)
        tally = _Tally()
        shown = started
        for index, step in enumerate(_schedule(ctx, ctx.backend.precisions, shape)):
            now = time.monotonic()
            if step.optional and now - started >= ctx.budget_s:
                break
            # The second product carries an injected fault: stale results need a first one.
            _one(ctx, units[step.case.precision], step, tally, fault if index == 1 else None)
            if now - shown >= _PROGRESS_EVERY_S:
                shown = now
                ctx.progress({"products": sum(tally.products.values()), "wrong": tally.wrong})
        seconds = time.monotonic() - started
        tally.reasons += _coverage_reasons(ctx, ctx.backend)
        return CheckResult(
            name=self.name,
            gpu=ctx.gpu.uuid if ctx.gpu else None,
            verdict=verdict_of(tally.reasons),
            seconds=seconds,
            measurements=tuple(_throughput(tally, shape)),
            coverage=_coverage(ctx.backend, tally, shape),
            errors=tuple(tally.errors),
            reasons=tuple(tally.reasons),
        )


def shape_of(ctx: CheckContext) -> Shape:
    """The product's shape from the plan's sizes."""
    return Shape(ctx.shapes["gemm_m"], ctx.shapes["gemm_n"], ctx.shapes["gemm_k"])


@dataclass(frozen=True)
class _Step:
    """One product to make; an optional one may be left out when time is up."""

    case: Case
    fresh: bool
    optional: bool


def _schedule(ctx: CheckContext, precisions: tuple[str, ...], shape: Shape) -> Iterator[_Step]:
    """Endless rounds; the first has no optional step. Golden seeds alternate, fresh ones never come twice."""
    has_golden = (shape.m, shape.n, shape.k) in shipped_shapes()
    seeds = fresh_seeds(ctx.seed)
    for index in itertools.count():
        for precision in precisions:
            ranges = [r for r in exact.ranges_for(precision) if exact.is_exact(precision, r, shape.k)]
            for operands in ranges if has_golden else ():
                case = Case(precision, operands, shape, GOLDEN_SEEDS[index % len(GOLDEN_SEEDS)])
                yield _Step(case, fresh=False, optional=index > 0)
            # Without golden digests every range is met by fresh seeds, else one range a round.
            start = index % len(ranges)
            for operands in ranges[start : start + 1] if has_golden else ranges:
                yield _Step(Case(precision, operands, shape, next(seeds)), fresh=True, optional=index > 0)


def _one(ctx: CheckContext, unit: ProductUnit, step: _Step, tally: _Tally, fault: Fault | None) -> None:
    case = step.case
    expected = expect(case, step.fresh)
    outcome = unit.run(case, expected, fault)
    tally.products[case.precision] += 1
    tally.ranges.setdefault(case.precision, set()).add(case.operands.name)
    tally.seconds[case.precision] = tally.seconds.get(case.precision, 0.0) + outcome.seconds
    tally.golden += expected.digest is not None
    tally.freivalds += expected.digest is None
    if outcome.right:
        return
    tally.wrong += 1
    if tally.wrong > _MAX_LOCATED:
        return
    entries, repeat = _examine(unit, case, expected, outcome)
    tally.errors += entries
    tally.reasons.append(_reason(ctx, case, outcome, entries, repeat))


def _examine(unit: ProductUnit, case: Case, expected: Expected, outcome: Outcome) -> tuple[list[dict[str, JSON]], str]:
    """Locate the error, then run the same product again: "right", "same" or "other" says how the repeat came out."""
    entries = locate(unit, case)
    again = unit.repeat(case, expected)
    repeat = "right" if again.right else "same" if again.digest == outcome.digest else "other"
    common: dict[str, JSON] = {"problems": list(outcome.problems), "repeat": repeat}
    if not entries:
        entries = [{"precision": case.precision, "range": case.operands.name, "seed": f"{case.seed:#x}"}]
    return [{**entry, **common} for entry in entries], repeat


def _reason(ctx: CheckContext, case: Case, outcome: Outcome, entries: list[dict[str, JSON]], repeat: str) -> Reason:
    first = entries[0]
    place = (
        f"first at {first['matrix']}[{first['row']}, {first['col']}]: expected {first['expected']}, got {first['got']}"
        if "row" in first
        else "no wrong element was found afterwards"
    )
    nonfinite = "nonfinite" in outcome.problems
    what = "holds NaN or Inf" if nonfinite else "is stale" if "stale" in outcome.problems else "is wrong"
    if "not_launched" in outcome.problems:
        what = "was not computed"
    return make_reason(
        "GEMM_NONFINITE" if nonfinite else "GEMM_MISMATCH",
        "gemm",
        f"{case.precision} product {what}, {place}; a repeat came out {_REPEAT_WORDS[repeat]}",
        gpu=ctx.gpu.uuid if ctx.gpu else None,
        evidence={**first, "digest": f"{outcome.digest.value:#018x}", "nonfinite": outcome.digest.nonfinite},
    )


_REPEAT_WORDS = {"right": "right", "same": "wrong in the same way", "other": "wrong in another way"}


def _coverage_reasons(ctx: CheckContext, backend: Backend) -> list[Reason]:
    """On a real GPU: exact results cannot tell which unit made them, and FP8 needs a library not bound yet."""
    if backend.simulated:
        return []
    missing = sorted(set(exact.PRECISIONS) - set(backend.precisions))
    return [
        make_reason(
            "COVERAGE_LOW",
            "gemm",
            "the gemm check did not prove which data path made the products"
            + (f" and did not cover {', '.join(missing)}" if missing else ""),
            gpu=ctx.gpu.uuid if ctx.gpu else None,
            evidence={"data_path_proven": False, "precisions_missing": list(missing)},
            action=Action.NONE,  # no retest with this version can change it
        )
    ]


def _throughput(tally: _Tally, shape: Shape) -> Iterator[Measurement]:
    for precision, seconds in tally.seconds.items():
        rate = shape.operations * tally.products[precision] / max(seconds, 1e-9) / 1e12
        unit = "TOP/s" if precision == "int8" else "TFLOP/s"
        yield Measurement(f"gemm_{precision}_throughput", rate, unit)


def _coverage(backend: Backend, tally: _Tally, shape: Shape) -> dict[str, JSON]:
    return {
        "shape": [shape.m, shape.n, shape.k],
        "products": dict(tally.products),
        "ranges": {precision: sorted(names) for precision, names in tally.ranges.items()},
        "verified_by_golden": tally.golden,
        "verified_by_freivalds": tally.freivalds,
        "wrong_products": tally.wrong,
        "precisions_not_covered": sorted(set(exact.PRECISIONS) - set(tally.products)),
        "data_path_proven": False,
        "simulated": backend.simulated,
    }
