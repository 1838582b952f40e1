"""Exact products on a device and their verification: the detector that check and self-test share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.port import read_matrix
from gpu_burnin.device.storage import STORAGE, Buffer
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.faults import Fault, Target
from gpu_burnin.exact.golden import DIGEST_KEY, GOLDEN_SEEDS
from gpu_burnin.exact.operands import I16, I64, U64, Digest, Operand, OperandRange, Scale
from gpu_burnin.exact.port import STORAGE_OF, Collected, Products

Pair = tuple[int, int]
# Which A and which B, so that no two products in a row are alike, not even when the round starts again.
ROUND: tuple[Pair, ...] = ((0, 0), (1, 0), (1, 1), (0, 1))


@dataclass(frozen=True)
class Shape:
    """C (m x n) = A (m x k) B (k x n)."""

    m: int
    n: int
    k: int

    @property
    def operations(self) -> int:
        """Multiplications and additions of one product."""
        return 2 * self.m * self.n * self.k

    def traffic_bytes(self, precision: str) -> int:
        """Device memory that one verified product moves at least: A and B read, C written and read once more."""
        operand, result = (STORAGE[name].size_bytes for name in STORAGE_OF[precision])
        return (self.m + self.n) * self.k * operand + 2 * self.m * self.n * result


@dataclass(frozen=True)
class Case:
    """One product: precision, operand range, shape and seeds define every bit of it; `scaled` adds powers of two."""

    precision: str
    operands: OperandRange
    shape: Shape
    seed_a: int
    seed_b: int
    scaled: bool = False

    @property
    def same_digest(self) -> tuple[str, int, int]:
        """What the expected digest depends on, within one shape."""
        return self.operands.name, self.seed_a, self.seed_b

    def host_operands(self) -> tuple[I64, I64]:
        """A and B in integers, without powers of two, made again on the host."""
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        return exact.operand_a(self.operands, self.seed_a, m, k), exact.operand_b(self.operands, self.seed_b, k, n)

    def scale(self) -> Scale | None:
        """The powers of two that the result carries."""
        rows, cols = self._exponents("a"), self._exponents("b")
        return None if rows is None or cols is None else Scale(rows, cols)

    def operand(self, side: str) -> Operand:
        """What to fill A ("a") or B ("b") with."""
        exponents = self._exponents(side)
        if side == "b" and self.operands.shift:
            base = np.zeros(self.shape.n, dtype=np.int16) if exponents is None else exponents
            exponents = (base - self.operands.shift).astype(np.int16)
        seed = self.seed_a if side == "a" else self.seed_b
        return exact.operand_for(self.operands, side, seed, exponents)

    def _exponents(self, side: str) -> I16 | None:
        if not self.scaled:
            return None
        seed, count = (self.seed_a, self.shape.m) if side == "a" else (self.seed_b, self.shape.n)
        return exact.scale_exponents(self.precision, self.operands, side, seed, count)


@dataclass(frozen=True)
class Expected:
    """What the product must give: a golden digest, or the Freivalds value of a challenge (w, v)."""

    digest: int | None = None
    bilinear: int | None = None
    w: U64 | None = None
    v: U64 | None = None


@dataclass(frozen=True)
class Outcome:
    """What was seen of one product. `problems` holds any of mismatch, nonfinite, noninteger, stale, not_launched.

    `evidence` are the bits of the wrong C, where they could be kept: the first wrong product of a batch.
    """

    case: Case
    expected: Expected
    digest: Digest
    problems: tuple[str, ...]
    evidence: NDArray[Any] | None = None

    @property
    def right(self) -> bool:
        """Nothing was wrong."""
        return not self.problems


@dataclass(frozen=True)
class Batch:
    """The outcomes of products made one after the other, the device time of all, and what a fault changed."""

    outcomes: tuple[Outcome, ...]
    seconds: float
    changed_bits: int | None = None


class Stream:
    """The device's one stream of work. Every product goes through it, so that each launch is accounted for."""

    def __init__(self, products: Products) -> None:
        self.products = products
        self._asked = 0
        self._wanted: list[int] = []
        products.collect()
        products.forget_kept()
        products.enqueue_check(products.device.allocate("int32", 16, 16), DIGEST_KEY, None, None)
        self._counted = products.collect().observed[0].launches

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer, skip: bool = False) -> None:
        """Enqueue a product; `skip` is a launch that gets lost on its way (fault injection)."""
        self._asked += 1
        if not skip:
            self.products.gemm(precision, a, b, c)

    def begin(self) -> None:
        """Device time counts from here: what others than run enqueued before does not count for the next batch."""
        self.products.collect()

    def timed(self, precision: str, a: Buffer, b: Buffer, c: Buffer, count: int) -> float:
        """Device seconds of `count` products one after the other, which nothing verifies; their launches are counted
        by the next check."""
        self.begin()
        for _ in range(count):
            self.gemm(precision, a, b, c)
        return self.products.collect().seconds

    def check(self, c: Buffer, scale: Scale | None, expected: int | None) -> None:
        """Enqueue the digest of C with the number of launches so far."""
        self.products.enqueue_check(c, DIGEST_KEY, scale, expected)
        self._wanted.append(self._asked)
        self._asked = 0

    def collect(self) -> tuple[Collected, tuple[bool, ...]]:
        """Wait for all checks; with each, whether as many products were launched before it as were asked for."""
        collected = self.products.collect()
        launched = []
        for seen, wanted in zip(collected.observed, self._wanted, strict=True):
            launched.append(seen.launches - self._counted == wanted)
            self._counted = seen.launches
        self._wanted = []
        return collected, tuple(launched)


class ProductUnit:
    """Buffers of one precision and shape: two A, two B and one C.

    Four products can be made of what is loaded. They follow each other in one C, and no two neighbours have the
    same digest, so that a result that was not written is seen.
    """

    def __init__(self, stream: Stream, precision: str, shape: Shape) -> None:
        operand, result = STORAGE_OF[precision]
        self.stream, self.products, self.device = stream, stream.products, stream.products.device
        self.precision, self.shape = precision, shape
        allocate = self.device.allocate
        self.a: tuple[Buffer, Buffer] = (allocate(operand, shape.m, shape.k), allocate(operand, shape.m, shape.k))
        self.b: tuple[Buffer, Buffer] = (
            allocate(operand, shape.k, shape.n, transposed=True),
            allocate(operand, shape.k, shape.n, transposed=True),
        )
        self.c: Buffer = allocate(result, shape.m, shape.n)
        self._cases: dict[Pair, Case] = {}
        self._scales: dict[Pair, Scale | None] = {}
        self._last: tuple[str, int, int] | None = None
        self._last_digest: int | None = None
        self._cleared = 0

    def load(
        self,
        operands: OperandRange,
        seeds_a: tuple[int, int] = GOLDEN_SEEDS,
        seeds_b: tuple[int, int] = GOLDEN_SEEDS,
        scaled: bool = False,
    ) -> None:
        """Fill both A and both B."""
        self._cases = {
            (i, j): Case(self.precision, operands, self.shape, seeds_a[i], seeds_b[j], scaled) for i, j in ROUND
        }
        self._scales = {pair: case.scale() for pair, case in self._cases.items()}
        self.reload()

    def reload(self) -> None:
        """Fill all operands again with what was loaded last."""
        for i in (0, 1):
            self.products.fill(self.a[i], self._cases[i, 0].operand("a"))
            self.products.fill(self.b[i], self._cases[0, i].operand("b"))

    def case(self, pair: Pair) -> Case:
        """The product of A[pair[0]] and B[pair[1]] as loaded."""
        return self._cases[pair]

    def run(
        self,
        pairs: Sequence[Pair],
        expected: Sequence[Expected],
        fault: Fault | None = None,
        fault_seed: int = 0,
        enqueued: Callable[[], None] | None = None,
    ) -> Batch:
        """Multiply pair after pair and verify each; `fault` changes the last, at a place that depends on
        `fault_seed` (self-test and --inject only). `enqueued` is called before the wait for the last of them.

        Raises ValueError when a product would expect the digest of the one before it: a stale result would
        look right.
        """
        outcomes: list[Outcome] = []
        waiting: list[tuple[Case, Expected]] = []
        seconds = 0.0
        changed: int | None = None
        self.stream.begin()
        for index, (pair, want) in enumerate(zip(pairs, expected, strict=True)):
            case = self._cases[pair]
            if case.same_digest == self._last:
                raise ValueError("the same product twice into one buffer: a stale result would look right")
            self._last = case.same_digest
            changed = self._launch(pair, fault if index == len(pairs) - 1 else None, fault_seed)
            self.stream.check(self.c, self._scales[pair], want.digest)
            waiting.append((case, want))
            if want.w is not None and want.v is not None:  # the result is needed before the next one replaces it
                value = self.products.bilinear(self.c, want.w, want.v, self._scales[pair])
                seconds += self._collect(waiting, outcomes, value)
        if enqueued is not None:
            enqueued()
        seconds += self._collect(waiting, outcomes, None)
        return Batch(tuple(outcomes), seconds, changed)

    def _collect(self, waiting: list[tuple[Case, Expected]], outcomes: list[Outcome], bilinear: int | None) -> float:
        """Judge the waiting products; `bilinear` is the value of the last of them. Returns device seconds."""
        collected, launched = self.stream.collect()
        kept = None
        if collected.kept is not None:
            kept = self.products.kept_matrix(self.c)
            self.products.forget_kept()
        for index, (case, want) in enumerate(waiting):
            digest = collected.observed[index].digest
            problems = self._problems(want, digest, bilinear, launched[index])
            evidence = kept if index == collected.kept else None
            if problems and want.bilinear is not None:
                evidence = read_matrix(self.device, self.c)
            outcomes.append(Outcome(case, want, digest, problems, evidence))
            self._last_digest = digest.value
        waiting.clear()
        return collected.seconds

    def repeat(self, pair: Pair, expected: Expected) -> Outcome:
        """The same product once more, with fresh operands, into a C without any result; C is empty afterwards too."""
        self.reload()
        self.clear()
        outcome = self.run((pair,), (expected,)).outcomes[0]
        self.clear()
        return outcome

    def clear(self) -> None:
        """Overwrite C with random bits, others each time: what is not written afterwards never repeats either."""
        self._cleared += 1
        self.products.fill_random(self.c, exact.stream_key(self._cleared, "clear"))
        self._last, self._last_digest = None, None

    def _launch(self, pair: Pair, fault: Fault | None, fault_seed: int) -> int | None:
        """One product; returns how many bits a fault changed."""
        a, b = self.a[pair[0]], self.b[pair[1]]
        if fault is None:
            self.stream.gemm(self.precision, a, b, self.c)
            return None
        target = Target(self.device, a, b, self.c, fault_seed)
        fault.prepare(target)
        fault.on_operands(target)
        self.stream.gemm(self.precision, a, b, self.c, skip=fault.skips_launch)
        fault.on_result(target)
        return None if fault.skips_launch else target.changed_bits

    def _problems(self, want: Expected, digest: Digest, bilinear: int | None, launched: bool) -> tuple[str, ...]:
        wrong = want.digest is not None and digest.value != want.digest
        wrong |= want.bilinear is not None and bilinear != want.bilinear
        seen = {
            "not_launched": not launched,
            "stale": wrong and digest.value == self._last_digest,
            "nonfinite": digest.nonfinite > 0,
            "noninteger": digest.noninteger > 0,
            "mismatch": wrong,
        }
        return tuple(name for name, is_seen in seen.items() if is_seen)
