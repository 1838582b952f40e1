"""The power check: all GPUs swing between rest and full load together, then everything at once. Exact throughout.

Swings of load find what a steady load does not: a supply, a regulator or a cable that gives way on an edge. The
products on the edges are exact, so a GPU that computes wrong for a moment is caught. What the GPUs drew, how fast they
ran and how hot they were is judged after the run out of the samples (judge/power.py). Seen on one GPU at a time; a
common start of several has not run on hardware.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from gpu_burnin.checks import CheckContext, needed_device
from gpu_burnin.checks.pcie.port import Kind, WrongCopy, not_planted, pcie_port
from gpu_burnin.checks.power import grant as power_grant
from gpu_burnin.checks.power import waves as power_waves
from gpu_burnin.checks.power.grant import Grant
from gpu_burnin.checks.power.load import FALLING, RISING, Burst, Load, Wrong
from gpu_burnin.checks.power.mixed import Mixed, MixedLoad
from gpu_burnin.checks.power.result import NoWaves, PowerCoverage
from gpu_burnin.checks.power.wave import ON_DEVICE, WAVE_SHARE, Wave, total_s, waves_for
from gpu_burnin.checks.power.waves import Waves, run_waves
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.checks.together import Clock, Group
from gpu_burnin.exact.port import Products, products_on
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import JSON, CheckResult, Measurement, Reason, SelftestResult, verdict_of

# Mixed load of a run with little time, with a GPU and without one: the samples come in seconds, and two ends of
# seconds have to lie in it.
_LEAST_MIXED_S, _LEAST_MIXED_SIMULATED_S = 2.2, 0.05
# Without a GPU more of it shows nothing more; in an extended run the samplers get something to look at.
_MOST_MIXED_SIMULATED_S = 1.0
# Products are chosen for the shortest half period there can be, also where no waves are made.
_SHORTEST_HALF_S = 0.01
_SELFTEST_PRODUCTS = 4
# A detector sees a wrong element the same way in a small matrix.
_SELFTEST_SIDE = 512


class Check:
    """Synchronised waves, if the level has them and the site allows it, then the mixed load."""

    name = "power"

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or Clock()

    def run(self, ctx: CheckContext) -> CheckResult:
        """Raises DeviceError without a device, or when the GPUs fall out of step."""
        with products_on(needed_device(ctx, self.name)) as products:
            return self._run(ctx, products)

    def _run(self, ctx: CheckContext, products: Products) -> CheckResult:
        device = products.device
        began_s = time.monotonic()
        group = Group(ctx)
        wanted = waves_for(ctx.level, WAVE_SHARE * group.budget_s, device.simulated)
        load = Load(ctx, products, ON_DEVICE.fill * _SHORTEST_HALF_S)
        early = _early(load)
        prepared_s = time.monotonic() - began_s
        waves, grant = self._waves(ctx, group, load, wanted)
        # The time of waiting for the grant is not of the budget.
        spent_s = prepared_s + (waves.ended_s - waves.started_s if waves else 0.0)
        mixed_s = _mixed_s(ctx.level, device.simulated, group.budget_s - spent_s)
        # The members began to prepare at different moments, but have to end together.
        mixed_s = group.least(mixed_s)
        wrong_before = bool(early or (waves and waves.reasons))
        mixed = MixedLoad(ctx, group, device, load, self._clock).run(mixed_s, wrong_before)
        reasons = [*[reason for _, reason in early], *(waves.reasons if waves else ()), *mixed.reasons]
        reasons += power_waves.low(ctx, waves) if waves else []
        reasons += _mixed_low(ctx, mixed, wrong_before)
        errors = [entry for entries, _ in early for entry in entries]
        errors += [*(waves.errors if waves else ()), *mixed.errors]
        return CheckResult(
            name=self.name,
            gpu=group.uuid,
            verdict=verdict_of(reasons),
            seconds=time.monotonic() - began_s,
            measurements=_measurements(load, mixed),
            coverage=_coverage(load, bool(wanted), waves, grant, mixed),
            errors=tuple(errors),
            reasons=tuple(reasons),
            series=power_waves.series(waves) if waves else (),
        )

    def _waves(
        self, ctx: CheckContext, group: Group, load: Load, wanted: tuple[Wave, ...]
    ) -> tuple[Waves | None, Grant]:
        """The waves, or None where there are none, and what became of the grant for them."""
        if not wanted:
            return None, Grant(False, f"the level {ctx.level} has no waves")
        grant = power_grant.ask(group, ctx.options, total_s(wanted), ctx.progress)
        if not grant.run:
            return None, grant
        done = run_waves(ctx, group, load, wanted, self._clock)
        return done, power_grant.over(group, grant)

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """A wrong product on either edge, a launch that gets lost, a copy that comes wrong: each has to be seen."""
        if ctx.device is None:
            return ()
        sizes = {**ctx.shapes, **{key: min(ctx.shapes[key], _SELFTEST_SIDE) for key in ("gemm_m", "gemm_n", "gemm_k")}}
        injections = (("bitflip", RISING), ("bitflip", FALLING), ("skipped_launch", FALLING))
        with products_on(ctx.device) as products:
            load = Load(replace(ctx, shapes=sizes), products, ON_DEVICE.fill * _SHORTEST_HALF_S)
            results = [hindered(ctx, self.name, "all", real) for _, real in _early(load)]
            for fault, edge in injections:
                if not any(result.real for result in results):  # a load that is wrong by itself proves no detector
                    results.append(_selftest_result(ctx, load, fault, edge))
        return (*results, _transfer_seen(ctx))


def _mixed_s(level: str, simulated: bool, left_s: float) -> float:
    """Seconds of mixed load, of those that are left of the budget."""
    if not simulated:
        return max(_LEAST_MIXED_S, left_s)
    most_s = left_s if level == "extended" else min(left_s, _MOST_MIXED_SIMULATED_S)
    return max(_LEAST_MIXED_SIMULATED_S, most_s)


def _early(load: Load) -> list[tuple[list[dict[str, JSON]], Reason]]:
    """A product that was wrong before any wave, while the load was measured."""
    wrong = load.first.wrong[:1]
    return [load.reason(one, "while the load was measured", {"phase": "start"}) for one in wrong]


def _selftest_result(ctx: CheckContext, load: Load, fault: str, edge: str) -> SelftestResult:
    """One fault in a burst that follows one without: where that is wrong, the fault is real."""
    name = f"{fault} {edge}"
    if wrong := load.burst(_SELFTEST_PRODUCTS).wrong:
        return hindered(ctx, "power", name, load.reason(wrong[0], "in a burst of products", {})[1])
    started = time.perf_counter()
    burst = load.burst(_SELFTEST_PRODUCTS, (fault,), edge)
    latency_s = time.perf_counter() - started
    return injected(ctx, "power", name, _only(burst, edge, fault), latency_s, burst.changed_bits)


def _only(burst: Burst, edge: str, fault: str) -> bool:
    """Whether exactly the product at the edge is wrong, by the detector that the fault is meant for."""
    meant = "not_launched" if fault == "skipped_launch" else "mismatch"
    found: list[Wrong] = [wrong for wrong in burst.wrong if meant in wrong.outcome.problems]
    return len(burst.wrong) == 1 and [wrong.edge for wrong in found] == [edge]


def _transfer_seen(ctx: CheckContext) -> SelftestResult:
    """A copy of two that comes wrong, after two that came right."""
    assert ctx.device is not None
    link = pcie_port(ctx.device)
    link.open(min(ctx.shapes["transfer_bytes"], 1 << 16))
    try:
        link.fill(ctx.seed)
        link.begin("duplex", 2)
        link.finish()
        if before := link.verify().wrong:
            return hindered(ctx, "power", "corrupted transfer", _copies_wrong(ctx, before))
        link.inject(Kind.CORRUPTED, ctx.seed)
        started = time.perf_counter()
        link.begin("duplex", 2)
        link.finish()
        found = link.verify()
        latency_s = time.perf_counter() - started
        if beside := not_planted(link.planted(), found):
            return hindered(ctx, "power", "corrupted transfer", _copies_wrong(ctx, beside), beside=True)
    finally:
        link.close()
    seen = bool(found.wrong) and all(one.kind is Kind.CORRUPTED for one in found.wrong)
    return injected(ctx, "power", "corrupted transfer", seen, latency_s)


def _copies_wrong(ctx: CheckContext, wrong: Sequence[WrongCopy]) -> Reason:
    """Copies of so few are all looked into."""
    words = f"{len(wrong)} copies between host and GPU arrived wrong"
    return make_reason("PCIE_DATA", "power", words, gpu=ctx.uuid, details=wrong[0].to_json())


def _measurements(load: Load, mixed: Mixed) -> tuple[Measurement, ...]:
    if not mixed.busy_s:
        return ()
    rate = mixed.products * load.unit.shape.operations / mixed.busy_s / 1e12
    return (Measurement(f"mixed_{load.precision}_throughput", rate, "TFLOP/s"),)


def _mixed_low(ctx: CheckContext, mixed: Mixed, wrong_before: bool) -> list[Reason]:
    """The mixed load without copies over PCIe is less than it has to be; a GPU without a peer is no fault."""
    if mixed.host.why is None or wrong_before:
        return []
    message = f"the mixed load ran without copies between host and GPU: {mixed.host.why}"
    gpu = ctx.uuid
    return [make_reason("COVERAGE_LOW", "power", message, gpu=gpu, details={"pcie": to_json(mixed.host.result)})]


def _coverage(load: Load, wanted: bool, waves: Waves | None, grant: Grant, mixed: Mixed) -> PowerCoverage:
    shape = load.unit.shape
    return PowerCoverage(
        waves=NoWaves(wanted=wanted, why=grant.why) if waves is None else power_waves.waves_made(waves, grant.request),
        mixed=mixed.result,
        precision=load.precision,
        shape=(shape.m, shape.n, shape.k),
        products=load.products,
        wrong_products=load.wrong,
        bytes_moved=load.bytes_moved,
        pcie_bytes_moved=mixed.host.bytes,
        peer_bytes_moved=mixed.peer.bytes,
        simulated=load.device.simulated,
        **load.time.counted(),
        # What is waited in exchanges, the worker adds.
        waited_s=round(grant.looked_s, 3) if grant.looked_s else None,
    )
