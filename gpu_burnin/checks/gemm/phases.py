"""The phases of the gemm check: probes, cold, exact, random, hot and light products."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence

from gpu_burnin.checks import CheckContext, done_share
from gpu_burnin.checks.gemm.errors import describe_probe, describe_unstable
from gpu_burnin.checks.gemm.probe import BitProbe, probe_bits
from gpu_burnin.checks.gemm.tally import Tally, rate_unit
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.checks.wrong_product import Found, describe
from gpu_burnin.device.port import read_matrix
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.expected import expected_digests
from gpu_burnin.exact.faults import FAULTS, Fault
from gpu_burnin.exact.fresh import FreshSet, FreshSupply
from gpu_burnin.exact.golden import DIGEST_KEY, shipped_shapes
from gpu_burnin.exact.operands import OperandRange
from gpu_burnin.exact.port import Products
from gpu_burnin.exact.product import ROUND, Expected, Outcome, Pair, ProductUnit, Shape, Stream
from gpu_burnin.types import JSON

# Device time of one batch: short enough to tell of a fault at once, long enough to keep Python out of the way.
_BATCH_S = 0.2
_MAX_BATCH = 1024
# Device time of one batch of plain products, of two for each precision; in the simulation one product each.
_PLAIN_S = 0.1
# Two products, each twice: the least that can differ.
_LEAST_RANDOM = 4
_PROGRESS_EVERY_S = 0.5
# A precision that is slow on this GPU (FP64 of some models) leaves what the cold phase does not reach in this time to
# the rotation.
_COLD_S = 4.0
# A check that has located this many wrong products has seen enough, and ends.
MAX_LOCATED = 4
# One cycle of the phases, and the share of it at which each ends.
_CYCLE_S = 60.0
_SHARES = {"exact": 0.5, "random": 0.7, "hot": 0.9, "light": 1.0}
# Light load: small products with pauses in which the GPU falls idle, so that its clocks go up to the maximum.
_LIGHT_SIZES = (512, 256, 128, 64)
_LIGHT_SIZE_SIMULATED = 64
_LIGHT_GAP_S = 0.005


def shape_of(ctx: CheckContext) -> Shape:
    """The product's shape from the plan's sizes."""
    return Shape(ctx.shapes["gemm_m"], ctx.shapes["gemm_n"], ctx.shapes["gemm_k"])


def fresh_order(precisions: Sequence[str], k: int) -> tuple[OperandRange, ...]:
    """All ranges that have a Freivalds check, those first that more precisions share."""
    held = [r for p in precisions for r in exact.ranges_for(p) if r.rounds_to is None and exact.is_exact(p, r, k)]
    shared = {operands.name: sum(other.name == operands.name for other in held) for operands in held}
    unique = {operands.name: operands for operands in held}
    # The first range of each precision, then the rest.
    first = {exact.ranges_for(p)[0].name for p in precisions}
    return tuple(sorted(unique.values(), key=lambda r: (r.name not in first, -shared[r.name])))


class Session:
    """One run of the check on one GPU. `tally` holds what was seen so far."""

    def __init__(self, ctx: CheckContext, products: Products) -> None:
        self.ctx, self.products, self.device, self.shape = ctx, products, products.device, shape_of(ctx)
        self.tally = Tally(time=VerifiedTime.of(products.precisions))
        self.probes: dict[str, BitProbe] = {}
        self._stream = Stream(products)
        self._units: dict[tuple[str, Shape], ProductUnit] = {}
        self._cost_s: dict[str, float] = {}
        self._fault: Fault | None = next((FAULTS[name] for name in ctx.inject if name in FAULTS), None)
        self._started = self._shown = time.monotonic()
        self._has_golden = (self.shape.m, self.shape.n, self.shape.k) in shipped_shapes()
        self._next_load = 0
        self._turn = 0

    @property
    def seconds(self) -> float:
        """Since the start."""
        return time.monotonic() - self._started

    def run(self) -> None:
        """Every phase at least once, then cycles of them until the budget is spent or enough was found."""
        with FreshSupply(fresh_order(self.products.precisions, self.shape.k), self.shape, self.ctx.seed) as supply:
            self._probe()
            self._cold(supply)
            self._once()
            while not self._over():
                begun = time.monotonic()
                length = min(_CYCLE_S, self.ctx.budget_s - self.seconds)
                for phase, share in _SHARES.items():
                    while time.monotonic() < begun + share * length and not self._over():
                        self._step(phase, supply)

    # --- phases ---

    def _step(self, phase: str, supply: FreshSupply) -> None:
        if phase == "random":
            self._random()
        elif phase == "light":
            self._light()
        else:
            self._exact(phase, supply)

    def _once(self) -> None:
        """The phases that the cold one leaves out, however little time there is."""
        self._random(least=True)
        self._plain()
        self._light()

    def _probe(self) -> None:
        """Which data path each precision takes; a precision on another path keeps to what that path can hold."""
        for precision in self.products.precisions:
            unit = self._unit(precision)
            self._show(f"{precision} probe")
            probe = self.probes[precision] = probe_bits(unit, self.ctx.seed)
            self.tally.algorithms[precision] = self.products.algorithm(precision, unit.a[0], unit.b[0], unit.c)
            self.tally.made("probe", unit, 1)
            if probe.errors is not None:
                self.tally.wrong += 1
                if not self._enough:
                    self._found(describe_probe(self.ctx, probe, probe.errors))

    def _cold(self, supply: FreshSupply) -> None:
        """Every precision in every range, with and without powers of two, and each precision with fresh seeds.

        While the host has no fresh set ready, the GPU goes on with the rotation.
        """
        for precision in self.products.precisions:
            until = time.monotonic() + _COLD_S
            for number, (operands, scaled) in enumerate(self._loads(precision)):
                if self._enough or (number > 0 and time.monotonic() >= until):
                    break
                if self._has_golden or operands.rounds_to is not None:
                    self._golden("cold", precision, operands, scaled, ROUND)
        missing = {key for p in self.products.precisions for r in self._ranges(p) if (key := self._fresh_key(p, r))}
        while missing and not self._enough:
            made = supply.take(wait=not self._has_golden)
            if made is not None:
                missing -= {self._fresh_key(p, made.operands) for p in self._fresh("cold", made, least=True)}
            else:
                self._golden("exact", *self._golden_load(), ROUND)

    def _fresh_key(self, precision: str, operands: OperandRange) -> tuple[str, ...]:
        """What has to be met once by fresh seeds: a precision, or without golden digests each range of it."""
        if operands.rounds_to is not None:
            return ()
        return (precision,) if self._has_golden else (precision, operands.name)

    def _exact(self, phase: str, supply: FreshSupply) -> None:
        """One step of the rotation. After each round of golden ones comes a fresh set, if the host has one ready."""
        self._turn += 1
        made = None
        if not self._has_golden or self._turn % (1 + len(self.products.precisions)) == 0:
            made = supply.take(wait=not self._has_golden)
        if made is not None:
            self._fresh(phase, made, least=False)
        else:
            precision, operands, scaled = self._golden_load()
            self._golden(phase, precision, operands, scaled, self._pairs(self._unit(precision)))

    def _golden(self, phase: str, precision: str, operands: OperandRange, scaled: bool, pairs: Sequence[Pair]) -> None:
        unit = self._unit(precision)
        unit.load(operands, scaled=scaled)
        expected = expected_digests({pair: unit.case(pair) for pair in ROUND})
        self._batch(phase, unit, pairs, expected, "golden" if self._has_golden else "host")

    def _fresh(self, phase: str, made: FreshSet, least: bool) -> list[str]:
        """The four products of a set in every precision that has its range; returns these precisions.

        They are verified by Freivalds' check; after that their digests are known, and more of them follow.
        """
        done = []
        for precision in self.products.precisions:
            if made.operands not in self._ranges(precision):
                continue
            done.append(precision)
            unit = self._unit(precision)
            scaled = exact.can_scale(precision) and exact.mix(made.seeds_a[0] + len(done)) & 1 == 1
            unit.load(made.operands, made.seeds_a, made.seeds_b, scaled)
            outcomes = self._batch(phase, unit, ROUND, made.expected, "freivalds")
            if self._enough:
                return done
            if len(outcomes) == len(ROUND) and all(outcome.right for outcome in outcomes):
                known = {pair: Expected(digest=o.digest.value) for pair, o in zip(ROUND, outcomes, strict=True)}
                self._batch(phase, unit, ROUND if least else self._pairs(unit), known, "repeated")
        return done

    def _random(self, least: bool = False) -> None:
        """Random operands in every precision: two products in turn, each the same bits each time."""
        for precision in self.products.precisions:
            if self._enough:
                return
            unit = self._unit(precision)
            for side, buffers in (("a", unit.a), ("b", unit.b)):
                for i, buffer in enumerate(buffers):
                    self.products.fill_random(buffer, exact.stream_key(self.ctx.seed, f"random {side}{i}"))
            self._random_products(unit, 0.0 if least else _BATCH_S)

    def _random_products(self, unit: ProductUnit, seconds: float) -> None:
        known = self.tally.random_digests.setdefault(unit.precision, {})
        until = time.monotonic() + seconds
        unit.clear()
        for index in itertools.count():
            which = index % 2
            if index >= _LEAST_RANDOM and which == 0 and time.monotonic() >= until:
                return
            digest = self._random_product(unit, which)
            if digest != known.setdefault(which, digest) or known.get(1 - which) == digest:
                self.tally.wrong += 1
                got = read_matrix(self.device, unit.c)
                unit.clear()
                again = self._random_product(unit, which)
                self._found(describe_unstable(self.ctx, unit, got, known[which], digest, again))
                return
            self._show(f"{unit.precision} random")

    def _random_product(self, unit: ProductUnit, which: int) -> int:
        """The digest of one product; the host waits for it, so its clock has the time that the GPU was at work."""
        started = time.monotonic()
        self._stream.gemm(unit.precision, unit.a[which], unit.b[which], unit.c)
        digest = self.products.digest_bits(unit.c, DIGEST_KEY)
        self.tally.made("random", unit, 1)
        self.tally.time.add(time.monotonic() - started, unit.precision)
        return digest

    def _plain(self) -> None:
        """Time products that nothing verifies, of each precision whose data path rates decide, and of its rivals.

        The operands are those of the random phase. There and back again, so that each precision meets the GPU as cool
        and as hot as the others; the better of its two batches counts.
        """
        rivals = {name for probe in self.probes.values() for name in probe.rivals}
        names = [p for p, probe in self.probes.items() if probe.rivals or p in rivals]
        for precision in (*names, *reversed(names)):
            if self._enough:
                return
            unit, count = self._unit(precision), 1
            if not self.device.simulated:
                count = max(1, min(_MAX_BATCH, int(_PLAIN_S / max(self._cost_s.get(precision, _PLAIN_S), 1e-6))))
            seconds = self._stream.timed(precision, unit.a[0], unit.b[0], unit.c, count)
            self.tally.timed_plain(unit, count, seconds)
            unit.clear()

    def _light(self) -> None:
        """Small products one by one, with a pause before each."""
        least = min(self.shape.m, self.shape.n, self.shape.k)
        sizes = [s for s in _LIGHT_SIZES if not self.device.simulated or s <= _LIGHT_SIZE_SIMULATED]
        size = next((s for s in sizes if s <= least), least)
        for precision in self.products.precisions:
            unit = self._unit(precision, Shape(size, size, size))
            unit.load(self._ranges(precision)[0])
            expected = expected_digests({pair: unit.case(pair) for pair in ROUND})
            for pair in ROUND:
                if self._enough:
                    return
                time.sleep(_LIGHT_GAP_S)  # the load pattern itself, not a wait for anything
                self._batch("light", unit, (pair,), expected, "golden")

    # --- one batch ---

    def _batch(
        self, phase: str, unit: ProductUnit, pairs: Sequence[Pair], expected: Mapping[Pair, Expected], kind: str
    ) -> tuple[Outcome, ...]:
        """Make products, count them, and look into the first wrong one."""
        fault = None
        if self._fault is not None and len(pairs) > 1:  # it needs a product before it, to bring back a stale result
            fault, self._fault, pairs = self._fault, None, pairs[:2]
        batch = unit.run(pairs, [expected[pair] for pair in pairs], fault, self.ctx.seed)
        self.tally.made(phase, unit, len(pairs))
        self.tally.time.add(batch.seconds, unit.precision)
        for outcome in batch.outcomes:
            self.tally.verified(outcome, kind)
        wrong = [(pair, o) for pair, o in zip(pairs, batch.outcomes, strict=True) if not o.right]
        # A batch with a wrong product also takes the time in which its result is kept and read.
        if unit.shape == self.shape and kind != "freivalds" and fault is None and not wrong:
            self._cost_s[unit.precision] = batch.seconds / len(pairs)
            self.tally.timed(unit.precision, unit.shape, len(pairs), batch.seconds)
        self.tally.wrong += len(wrong)
        if wrong:
            pair, outcome = next(((p, o) for p, o in wrong if o.evidence is not None), wrong[0])
            self._show(f"{unit.precision} wrong", at_once=True)
            self._found(describe(self.ctx, unit, pair, outcome))
        self._show(f"{unit.precision} {batch.outcomes[0].case.operands.name}", unit.precision)
        return batch.outcomes

    def _found(self, found: Found) -> None:
        entries, reason = found
        self.tally.errors += entries
        self.tally.reasons.append(reason)
        self.tally.located += 1
        self._show(reason.code, at_once=True)

    # --- helpers ---

    @property
    def _enough(self) -> bool:
        return self.tally.located >= MAX_LOCATED

    def _over(self) -> bool:
        return self._enough or self.seconds >= self.ctx.budget_s

    def _unit(self, precision: str, shape: Shape | None = None) -> ProductUnit:
        key = (precision, shape or self.shape)
        if key not in self._units:
            self._units[key] = ProductUnit(self._stream, *key)
        return self._units[key]

    def _ranges(self, precision: str) -> list[OperandRange]:
        """The ranges that are exact in a precision, and on the data path that its probe has seen."""
        names = {r.name for r in exact.ranges_for(self.probes[precision].acts_as)}
        held = [r for r in exact.ranges_for(precision) if exact.is_exact(precision, r, self.shape.k)]
        return [r for r in held if r.name in names]

    def _loads(self, precision: str) -> list[tuple[OperandRange, bool]]:
        kinds = (False, True) if exact.can_scale(precision) else (False,)
        return [(operands, scaled) for operands in self._ranges(precision) for scaled in kinds]

    def _golden_load(self) -> tuple[str, OperandRange, bool]:
        """The next one: the precisions in turn, each moving on through its ranges, with and without powers of two.

        A counter and not a generator: one that the session keeps would keep the session, and with it device memory.
        """
        index, which = divmod(self._next_load, len(self.products.precisions))
        self._next_load += 1
        precision = self.products.precisions[which]
        loads = self._loads(precision)
        operands, scaled = loads[index % len(loads)]
        return precision, operands, scaled

    def _pairs(self, unit: ProductUnit) -> tuple[Pair, ...]:
        """Whole rounds of products that take about one batch's time."""
        cost_s = max(self._cost_s.get(unit.precision, _BATCH_S), 1e-6)
        return ROUND * max(1, min(_MAX_BATCH, int(_BATCH_S / cost_s)) // len(ROUND))

    def _show(self, phase: str, precision: str | None = None, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._shown < _PROGRESS_EVERY_S and not at_once:
            return
        self._shown = now
        done = done_share(self.seconds, self.ctx.budget_s)
        message: dict[str, JSON] = {"phase": phase, "errors": self.tally.wrong, "done": done}
        if precision is not None and precision in self.tally.rates:
            message |= {"rate": self.tally.rates[precision].last, "rate_unit": rate_unit(precision)}
        self.ctx.progress(message)
