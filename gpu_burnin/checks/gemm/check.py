"""The gemm check: exact matrix products in every precision, each one verified."""

from __future__ import annotations

from gpu_burnin.checks import CheckContext, needed_device
from gpu_burnin.checks.gemm import selftest as gemm_selftest
from gpu_burnin.checks.gemm.data_path import judge_path, simulated_path
from gpu_burnin.checks.gemm.phases import Session
from gpu_burnin.checks.gemm.result import DataPath, GemmCoverage
from gpu_burnin.exact import operands
from gpu_burnin.exact.port import products_on
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.hardware.skus import Sku, load_skus
from gpu_burnin.types import CheckResult, SelftestResult, verdict_of, word_text


class Check:
    """Probes, then exact, random and light products in all precisions until the budget is spent."""

    name = "gemm"

    def run(self, ctx: CheckContext) -> CheckResult:
        """Every phase at least once, then more while time is left. Raises DeviceError without a device."""
        device = needed_device(ctx, self.name)
        with products_on(device) as products:
            session = Session(ctx, products)
            session.run()
        sku = None if device.simulated or ctx.gpu is None else load_skus().skus.get(ctx.gpu.sku)
        paths = data_paths(session, sku)
        wanted = operands.PRECISIONS if sku is None else sku.precisions
        # A probe alone covers nothing: its product is not verified.
        missing = [precision for precision in wanted if precision not in session.tally.ranges]
        reasons = [*session.tally.reasons]
        coverage = _coverage(session, paths, missing)
        # What a check skips because it has found a fault is no shortfall of its own.
        shorts = () if device.simulated or reasons else coverage.shortfalls(() if sku is None else sku.precisions)
        for short in shorts:
            reasons.append(make_reason("COVERAGE_LOW", "gemm", short.message, gpu=ctx.uuid, details=short.details))
        return CheckResult(
            name=self.name,
            gpu=ctx.uuid,
            verdict=verdict_of(reasons),
            seconds=session.seconds,
            measurements=tuple(session.tally.measurements()),
            coverage=coverage,
            errors=tuple(session.tally.errors),
            reasons=tuple(reasons),
            series=tuple(session.tally.series()),
        )

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Faults in every precision, found by golden digest and by Freivalds' check."""
        return gemm_selftest.run(ctx)


def data_paths(session: Session, sku: Sku | None) -> dict[str, DataPath]:
    """The data path of each precision, by the probes' bits and the best rates measured."""
    rates, peaks = session.tally.best_rates(), None if sku is None else sku.peaks
    if session.device.simulated:
        return {precision: simulated_path(precision, rates.get(precision)) for precision in session.probes}
    return {precision: judge_path(probe, rates, peaks) for precision, probe in session.probes.items()}


def _coverage(session: Session, paths: dict[str, DataPath], missing: list[str]) -> GemmCoverage:
    tally, shape = session.tally, session.shape
    return GemmCoverage(
        shape=(shape.m, shape.n, shape.k),
        phases=dict(tally.phases),
        products=dict(tally.products),
        ranges={precision: tuple(sorted(names)) for precision, names in tally.ranges.items()},
        scaled=tuple(sorted(tally.scaled)),
        verified_by=dict(tally.kinds),
        wrong_products=tally.wrong,
        precisions_not_covered=tuple(missing),
        data_path=paths,
        random_digests={
            precision: tuple(word_text(digests[i]) for i in sorted(digests))
            for precision, digests in tally.random_digests.items()
        },
        algorithms=dict(tally.algorithms),
        bytes_moved=tally.bytes_moved,
        **tally.time.counted(),
        simulated=session.device.simulated,
    )
