"""One exact product on a backend and its verification: the detector that check and self-test share."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from gpu_burnin.compute import exact
from gpu_burnin.compute.backend import STORAGE_OF, Backend, Buffer
from gpu_burnin.compute.exact import I64, U64, Digest, OperandRange
from gpu_burnin.compute.faults import Fault, Target
from gpu_burnin.compute.golden import DIGEST_KEY, shipped_digest


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


@dataclass(frozen=True)
class Case:
    """One product: precision, operand range, shape and seed define every bit of it."""

    precision: str
    operands: OperandRange
    shape: Shape
    seed: int

    def host_operands(self) -> tuple[I64, I64]:
        """A and B in integers, made again on the host."""
        m, n, k = self.shape.m, self.shape.n, self.shape.k
        return exact.operand_a(self.operands, self.seed, m, k), exact.operand_b(self.operands, self.seed, k, n)


@dataclass(frozen=True)
class Expected:
    """What the product must give: a golden digest, or the Freivalds value of a challenge."""

    digest: int | None = None
    bilinear: int | None = None
    w: U64 | None = None
    v: U64 | None = None


@dataclass(frozen=True)
class Outcome:
    """What was seen of one product. `problems` holds any of mismatch, nonfinite, noninteger, stale, not_launched."""

    digest: Digest
    seconds: float
    problems: tuple[str, ...]

    @property
    def right(self) -> bool:
        """Nothing was wrong."""
        return not self.problems


def expect(case: Case, fresh: bool) -> Expected:
    """Golden digest where one is shipped and `fresh` is False, else a Freivalds value made on the host."""
    shape = case.shape
    if not fresh:
        golden = shipped_digest(case.operands, case.seed, shape.m, shape.n, shape.k)
        if golden is not None:
            return Expected(digest=golden)
    a, b = case.host_operands()
    w, v = exact.challenge(case.seed, shape.m, shape.n)
    return Expected(bilinear=exact.expected_bilinear(a, b, w, v), w=w, v=v)


class ProductUnit:
    """The three buffers of one precision and shape. Products into C follow each other and never expect the same."""

    def __init__(self, backend: Backend, precision: str, shape: Shape) -> None:
        operand, result = STORAGE_OF[precision]
        self.backend, self.precision, self.shape = backend, precision, shape
        self.a: Buffer = backend.allocate(operand, shape.m, shape.k)
        self.b: Buffer = backend.allocate(operand, shape.k, shape.n)
        self.c: Buffer = backend.allocate(result, shape.m, shape.n)
        self._last_digest: int | None = None
        self._last_case: Case | None = None

    def run(self, case: Case, expected: Expected, fault: Fault | None = None) -> Outcome:
        """Fill, multiply, verify. `fault` corrupts real buffers on the way (self-test and --inject only).

        Raises ValueError when the same case is run twice in a row: a stale result could not be told apart.
        """
        if case == self._last_case:
            raise ValueError("the same product twice into one buffer: a stale result would look right")
        if case.precision != self.precision or case.shape != self.shape:
            raise ValueError(f"this unit is for {self.precision} {self.shape}, not for {case.precision} {case.shape}")
        backend = self.backend
        operands, seed = case.operands, case.seed
        target = Target(backend, self.a, self.b, self.c, seed)
        if fault is not None:
            fault.prepare(target)
        backend.fill(self.a, exact.stream_key(seed, "a"), operands.ra, operands.signed, operands.stride)
        backend.fill(self.b, exact.stream_key(seed, "b"), operands.rb, operands.signed, 1)
        if fault is not None:
            fault.on_operands(target)
        before = backend.launches()
        backend.synchronize()
        started = time.perf_counter()
        if fault is None or not fault.skips_launch:
            backend.gemm(self.precision, self.a, self.b, self.c)
        backend.synchronize()
        seconds = time.perf_counter() - started
        if fault is not None:
            fault.on_result(target)
        problems, digest = self._verify(expected, backend.launches() - before)
        self._last_digest, self._last_case = digest.value, case
        return Outcome(digest, seconds, problems)

    def repeat(self, case: Case, expected: Expected) -> Outcome:
        """The same product once more, after C was overwritten with bits that no product gives."""
        bits = np.full(self.c.elements, -1).astype(f"u{self.c.storage.size_bytes}")
        self.backend.write_raw(self.c, 0, bits)
        self._last_digest, self._last_case = None, None
        return self.run(case, expected)

    def _verify(self, expected: Expected, launched: int) -> tuple[tuple[str, ...], Digest]:
        digest = self.backend.digest(self.c, DIGEST_KEY)
        wrong = expected.digest is not None and digest.value != expected.digest
        if expected.w is not None and expected.v is not None:
            wrong = self.backend.bilinear(self.c, expected.w, expected.v) != expected.bilinear
        seen = {
            "not_launched": launched != 1,
            "stale": wrong and digest.value == self._last_digest,
            "nonfinite": digest.nonfinite > 0,
            "noninteger": digest.noninteger > 0,
            "mismatch": wrong,
        }
        return tuple(name for name, is_seen in seen.items() if is_seen), digest
