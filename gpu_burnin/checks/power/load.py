"""The load of the power check: back-to-back products with known digests, each one verified."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.verified import VerifiedTime
from gpu_burnin.checks.wrong_product import describe
from gpu_burnin.device.port import Device
from gpu_burnin.exact import operands
from gpu_burnin.exact.expected import expected_digests
from gpu_burnin.exact.faults import FAULTS, Fault
from gpu_burnin.exact.golden import shipped_shapes
from gpu_burnin.exact.port import Products
from gpu_burnin.exact.product import ROUND, Outcome, Pair, ProductUnit, Shape, Stream
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import JSON, Reason

# The precision that loads most units of a GPU at once, as far as it has them.
_PREFERRED = ("bf16", "fp16", "tf32", "fp32", "fp64")
# Several products have to fit into the shortest half period, or the first and the last were the same one.
LEAST_PRODUCTS = 4
_PROBE_PRODUCTS = 8
# Work before the first wave, so that clocks have come up when a product's time is taken.
_WARM_S, _WARM_SIMULATED_S = 0.2, 0.005
# Without a GPU the products are as small as they can be: it is the logic that is run.
_SIDE_SIMULATED = 64
# A GPU slows down within a second of full load when it comes to its power limit: what is launched at a time is short,
# so that it still ends at the edge.
_PIECE_S = 0.05
RISING, FALLING, HIGH = "rising", "falling", "high"
_DROPPED = FAULTS["skipped_launch"]


@dataclass(frozen=True)
class Wrong:
    """A wrong product of a burst: at which edge (RISING the first, FALLING the last, else HIGH)."""

    edge: str
    pair: Pair
    outcome: Outcome


@dataclass(frozen=True)
class Burst:
    """Products one after the other: how many, the device's seconds for them, and those that were wrong."""

    products: int
    seconds: float
    wrong: tuple[Wrong, ...]
    changed_bits: int | None = None


def shapes_for(ctx: CheckContext, device: Device) -> tuple[Shape, ...]:
    """Shapes to choose from, largest first: those with shipped digests up to the plan's.

    Digests of another shape cost whole products on the host, so the plan's own shape is taken only when it is
    smaller than all shipped ones.
    """
    plan = Shape(ctx.shapes["gemm_m"], ctx.shapes["gemm_n"], ctx.shapes["gemm_k"])
    side = _SIDE_SIMULATED if device.simulated else max(plan.m, plan.n, plan.k)
    fitting = [
        Shape(m, n, k)
        for m, n, k in shipped_shapes()
        if m <= min(plan.m, side) and n <= min(plan.n, side) and k <= min(plan.k, side)
    ]
    return tuple(sorted(fitting, key=lambda shape: -shape.operations)) or (plan,)


class Load:
    """Makes bursts of products. `product_s` is the device time of one, as the newest burst had it.

    The shape is the largest of which LEAST_PRODUCTS fit into `longest_s` seconds. Every product is verified by its
    digest, and every launch is counted on the device, so that a lost one is seen as a wrong product.
    """

    def __init__(self, ctx: CheckContext, products: Products, longest_s: float) -> None:
        self.ctx, self.device = ctx, products.device
        self.precision = next(name for name in _PREFERRED if name in products.precisions)
        self.bytes_moved = self.products = self.wrong = 0
        self.product_s = 0.0
        self.time = VerifiedTime()
        self.first = Burst(0, 0.0, ())
        self._stream = Stream(products)
        for shape in shapes_for(ctx, self.device):
            self._use(shape)
            if self.product_s * LEAST_PRODUCTS <= longest_s:
                break
        if not self.first.wrong:
            self.first = self._run(self.count_for(_WARM_SIMULATED_S if self.device.simulated else _WARM_S))

    def _use(self, shape: Shape) -> None:
        self.unit = ProductUnit(self._stream, self.precision, shape)
        # Powers of two on rows and columns move the exponent bits too: more power, and still one right result.
        self.unit.load(operands.ranges_for(self.precision)[0], scaled=operands.can_scale(self.precision))
        self._expected = expected_digests({pair: self.unit.case(pair) for pair in ROUND})
        self._pairs = itertools.cycle(ROUND)
        self.unit.clear()
        self.first = self._run(_PROBE_PRODUCTS)  # the first one pays for what libraries load
        self.product_s = self.first.seconds / _PROBE_PRODUCTS
        if not self.first.wrong:
            self.first = self._run(_PROBE_PRODUCTS)

    def count_for(self, seconds: float) -> int:
        """How many products fill some seconds of the device; at least the two of the edges."""
        return max(2, int(seconds / max(self.product_s, 1e-6)))

    def burst(
        self,
        products: int,
        faults: tuple[str, ...] = (),
        edge: str = FALLING,
        enqueued: Callable[[], None] | None = None,
    ) -> Burst:
        """Make `products` (2 or more) and wait for them; `enqueued` is called before the wait.

        `faults` of gpu_burnin.exact.faults change the product at `edge`, RISING or FALLING.
        """
        fault = FAULTS[faults[0]] if faults else None
        if fault is not None and edge == RISING:
            first = self._run(1, fault, RISING)
            rest = self._run(products - 1, enqueued=enqueued)
            wrong = (*first.wrong, *rest.wrong)
            return Burst(products, first.seconds + rest.seconds, wrong, first.changed_bits)
        return self._run(products, fault, enqueued=enqueued)

    def burst_for(
        self, seconds: float, faults: tuple[str, ...] = (), now: Callable[[], float] = time.monotonic
    ) -> Burst:
        """A burst that lasts `seconds` of the clock `now`, launched piece by piece; `faults` change its last product.

        It ends early after a piece with a wrong product.
        """
        end_s = now() + seconds
        pieces: list[Burst] = []
        last = False
        while not last and not (pieces and pieces[-1].wrong):
            left_s = end_s - now()
            last = left_s <= 1.5 * _PIECE_S
            pieces.append(self.burst(self.count_for(left_s if last else _PIECE_S), faults if last else ()))
        return _joined(pieces, complete=last)

    def lost_burst(self, products: int) -> Burst:
        """A burst of which every launch is lost on its way (--inject idle)."""
        bursts = [self._run(1, _DROPPED, RISING if n == 0 else FALLING) for n in range(min(products, 2))]
        wrong = tuple(wrong for burst in bursts for wrong in burst.wrong)
        return Burst(products, sum(burst.seconds for burst in bursts), wrong)

    def _run(
        self, products: int, fault: Fault | None = None, only: str = "", enqueued: Callable[[], None] | None = None
    ) -> Burst:
        pairs = [next(self._pairs) for _ in range(products)]
        batch = self.unit.run(pairs, [self._expected[pair] for pair in pairs], fault, self.ctx.seed, enqueued)
        last = len(pairs) - 1
        wrong = tuple(
            Wrong(only or (RISING if index == 0 else FALLING if index == last else HIGH), pair, outcome)
            for index, (pair, outcome) in enumerate(zip(pairs, batch.outcomes, strict=True))
            if not outcome.right
        )
        self.products += products
        self.wrong += len(wrong)
        self.time.add(batch.seconds)
        self.bytes_moved += products * self.unit.shape.traffic_bytes(self.precision)
        if fault is None and not wrong:
            self.product_s = batch.seconds / products
        return Burst(products, batch.seconds, wrong, batch.changed_bits)

    def reason(self, wrong: Wrong, where: str, details: dict[str, JSON]) -> tuple[list[dict[str, JSON]], Reason]:
        """Locate a wrong product: entries for the list of errors and a POWER_MISMATCH that says `where` it was."""
        entries, found = describe(self.ctx, self.unit, wrong.pair, wrong.outcome)
        self._pairs = itertools.cycle(ROUND)  # C is empty now: any product may come next
        numbers: dict[str, JSON] = {**details, "edge": wrong.edge}
        return [{**entry, **numbers} for entry in entries], make_reason(
            "POWER_MISMATCH",
            "power",
            f"{where}: {found.message}",
            gpu=found.gpu,
            details={**found.details, **numbers},
        )


def _joined(pieces: Sequence[Burst], complete: bool) -> Burst:
    """One burst of its pieces: only the first begins at an edge, and only the last of a complete one ends at one."""
    wrong: list[Wrong] = []
    for number, piece in enumerate(pieces):
        edges = {RISING} if number == 0 else set()
        edges |= {FALLING} if complete and piece is pieces[-1] else set()
        wrong += [one if one.edge in edges else replace(one, edge=HIGH) for one in piece.wrong]
    products, seconds = sum(piece.products for piece in pieces), sum(piece.seconds for piece in pieces)
    return Burst(products, seconds, tuple(wrong), pieces[-1].changed_bits)
