"""The memory check: every cell written and read back under patterns that catch different faults."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from gpu_burnin.checks import CheckContext
from gpu_burnin.compute.backend import Backend, BackendError
from gpu_burnin.compute.exact import mix
from gpu_burnin.compute.patterns import MODULO, WORD_BYTES, MemoryFaults, Pattern
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.selftest import injected
from gpu_burnin.types import JSON, Action, CheckResult, Measurement, Reason, SelftestResult, verdict_of

# Bit positions and rare positions visited in one round, by level: a quick run samples, an extended one has
# all.
_WALKING_STEPS = {"quick": 4, "standard": 16, "extended": 64}
_MODULO_STEPS = {"quick": 2, "standard": 5, "extended": 20}

# The self-test uses little memory: a detector sees a wrong word the same way in a small buffer.
_SELFTEST_BYTES = 1 << 20

Tamper = Callable[[Any], None]


@dataclass
class Scan:
    """A memory test under way: faults so far and what was covered. `tamper` strikes once, after the first write."""

    backend: Backend
    memory: Any
    size_bytes: int
    tamper: Tamper | None = None
    faults: MemoryFaults = field(default_factory=MemoryFaults)
    moved_bytes: int = 0
    patterns: set[str] = field(default_factory=set)

    def write(self, pattern: Pattern) -> None:
        """Write a pattern everywhere."""
        self.backend.memory_write(self.memory, pattern)
        self.moved_bytes += self.size_bytes
        if self.tamper is not None:
            strike, self.tamper = self.tamper, None
            strike(self.memory)

    def verify(self, pattern: Pattern, then: Pattern | None = None, downwards: bool = False) -> None:
        """Compare everywhere, and write `then` behind the comparison."""
        self.faults = self.faults + self.backend.memory_verify(self.memory, pattern, then, downwards)
        self.moved_bytes += self.size_bytes * (1 if then is None else 2)
        self.patterns.add(pattern.name)


def address_in_cell(scan: Scan) -> None:
    """Each cell holds its own address, then the complement: finds address lines that are stuck or joined."""
    pattern = Pattern("address")
    scan.write(pattern)
    scan.verify(pattern, then=pattern.complement())
    scan.verify(pattern.complement())


def moving_inversions(scan: Scan, key: int) -> None:
    """Random words, inverted upwards and back downwards: finds coupling between cells in both directions."""
    pattern = Pattern("random", key)
    scan.write(pattern)
    scan.verify(pattern, then=pattern.complement())
    scan.verify(pattern.complement(), then=pattern, downwards=True)
    scan.verify(pattern)


def walking_bit(scan: Scan, position: int) -> None:
    """One bit set in 64, then one clear: finds data lines that are stuck or joined."""
    pattern = Pattern("walking", position)
    scan.write(pattern)
    scan.verify(pattern, then=pattern.complement())
    scan.verify(pattern.complement())


def modulo_20(scan: Scan, position: int) -> None:
    """Rare cells among complements, with a stride that no row or burst length divides: finds neighbour disturb."""
    pattern = Pattern("modulo", position)
    scan.write(pattern)
    scan.write(pattern)
    scan.verify(pattern, then=pattern.complement())
    scan.verify(pattern.complement())


class Check:
    """Runs the patterns over the planned memory, at least one round, then more while time is left."""

    name = "hbm"
    per_gpu = True

    def run(self, ctx: CheckContext) -> CheckResult:
        """Raises BackendError without a backend or without memory for the test."""
        backend = ctx.backend
        if backend is None:
            raise BackendError("the hbm check needs a backend: this is a fault of the caller")
        gpu = ctx.gpu.uuid if ctx.gpu else None
        if not backend.covers_memory:
            return _not_covered(gpu, ctx)
        started = time.monotonic()
        size_bytes = ctx.shapes["hbm_bytes"]
        scan = Scan(backend, backend.memory_allocate(size_bytes), size_bytes, _tamper(ctx, size_bytes))
        rounds = 0
        while rounds == 0 or time.monotonic() - started < ctx.budget_s:
            for step in _round(scan, ctx, rounds):
                step()
                ctx.progress(_shown(ctx, scan, time.monotonic() - started))
                if rounds and time.monotonic() - started >= ctx.budget_s:
                    break
            rounds += 1
        seconds = time.monotonic() - started
        reasons = _reasons(gpu, scan)
        rate = Measurement("hbm_rate", scan.moved_bytes / max(seconds, 1e-9), "B/s")
        return CheckResult(
            name=self.name,
            gpu=gpu,
            verdict=verdict_of(reasons),
            seconds=seconds,
            measurements=(rate,),
            coverage=_coverage(ctx, scan, rounds),
            errors=scan.faults.recorded,
            reasons=reasons,
        )

    def selftest(self, ctx: CheckContext) -> tuple[SelftestResult, ...]:
        """Flip one bit of one cell behind a pattern; nothing where the backend has no memory kernels."""
        backend = ctx.backend
        if backend is None or not backend.covers_memory:
            return ()
        size_bytes = min(ctx.shapes["hbm_bytes"], _SELFTEST_BYTES)
        memory = backend.memory_allocate(size_bytes)
        pattern = Pattern("random", ctx.seed)
        backend.memory_write(memory, pattern)
        # A detector that cries always is not taken for a good one.
        trusted = backend.memory_verify(memory, pattern).count == 0
        backend.memory_flip(memory, mix(ctx.seed) % (size_bytes // WORD_BYTES) * WORD_BYTES, 1 << (ctx.seed % 64))
        started = time.perf_counter()
        faults = backend.memory_verify(memory, pattern)
        seen = trusted and faults.count == 1
        return (injected(ctx, "hbm", "bitflip cell", seen, time.perf_counter() - started, changed_bits=1),)


def _shown(ctx: CheckContext, scan: Scan, seconds: float) -> dict[str, JSON]:
    """For the live display."""
    return {
        "phase": "memory patterns",
        "rate": scan.moved_bytes / max(seconds, 1e-9) / 1e9,
        "rate_unit": "GB/s",
        "errors": scan.faults.count,
        "done": min(1.0, seconds / ctx.budget_s) if ctx.budget_s > 0 else 1.0,
    }


def _round(scan: Scan, ctx: CheckContext, index: int) -> Iterator[Callable[[], None]]:
    """The steps of one round; positions move on from round to round until all are visited."""
    walking, modulo = _WALKING_STEPS[ctx.level], _MODULO_STEPS[ctx.level]
    yield partial(address_in_cell, scan)
    yield partial(moving_inversions, scan, mix(ctx.seed + index))
    for i in range(walking):
        yield partial(walking_bit, scan, (i * (64 // walking) + index) % 64)
    for i in range(modulo):
        yield partial(modulo_20, scan, (i * (MODULO // modulo) + index) % MODULO)


def _tamper(ctx: CheckContext, size_bytes: int) -> Tamper | None:
    """An injected flip: one bit ("bitflip") or a byte lane of two words ("stuck")."""
    backend = ctx.backend
    offset = mix(ctx.seed) % (size_bytes // WORD_BYTES) * WORD_BYTES
    if backend is None or not {"bitflip", "stuck"} & set(ctx.inject):
        return None
    if "bitflip" in ctx.inject:
        return lambda memory: backend.memory_flip(memory, offset, 1 << 17)

    def stuck(memory: Any) -> None:
        for word in (offset, (offset + WORD_BYTES) % size_bytes):  # never one word twice: that would undo it
            backend.memory_flip(memory, word, 0xFF00)

    return stuck


def _reasons(gpu: str | None, scan: Scan) -> tuple[Reason, ...]:
    if scan.faults.count == 0:
        return ()
    first = scan.faults.recorded[0]
    return (
        make_reason(
            "HBM_BIT_ERROR",
            "hbm",
            f"{scan.faults.count} memory words came back wrong, first at offset "
            f"{first['offset_bytes']} under {first['pattern']}: expected {first['expected']}, "
            f"got {first['got']}",
            gpu=gpu,
            evidence={**first, "wrong_words": scan.faults.count},
        ),
    )


def _coverage(ctx: CheckContext, scan: Scan, rounds: int) -> dict[str, JSON]:
    return {
        "memory": "host memory, no GPU memory" if scan.backend.simulated else "device memory",
        "covered_bytes": scan.size_bytes,
        "gpu_memory_bytes": ctx.gpu.memory_bytes if ctx.gpu else None,
        "bytes_moved": scan.moved_bytes,
        "rounds": rounds,
        "patterns": sorted(scan.patterns),
        "wrong_words": scan.faults.count,
        "simulated": scan.backend.simulated,
    }


def _not_covered(gpu: str | None, ctx: CheckContext) -> CheckResult:
    reason = make_reason(
        "COVERAGE_LOW",
        "hbm",
        "GPU memory was not tested: this version has no memory kernels for the cuda backend",
        gpu=gpu,
        evidence={"covered_bytes": 0},
        action=Action.NONE,  # no retest with this version can change it
    )
    coverage: dict[str, JSON] = {
        "covered_bytes": 0,
        "gpu_memory_bytes": ctx.gpu.memory_bytes if ctx.gpu else None,
        "patterns": [],
    }
    return CheckResult("hbm", gpu, reason.severity, 0.0, (), coverage, (), (reason,))
