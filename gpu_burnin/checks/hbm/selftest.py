"""The self-test of the hbm check: faults in a small piece of memory, which its own comparison must see."""

from __future__ import annotations

import time

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.hbm.faults import FAULTS, FaultyMemory
from gpu_burnin.checks.hbm.patterns import Pattern
from gpu_burnin.checks.hbm.port import hbm_port
from gpu_burnin.checks.hbm.rounds import Scan, Step, address_in_cell, moving_inversions, retention, wrong_words
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.device.port import Device
from gpu_burnin.types import SelftestResult

# A comparison sees a wrong word the same way in little memory.
_MOST_BYTES = 1 << 20
_LEAST_BYTES = 4096
_WAIT_S = 0.01
_ONE = ("bitflip",)


def run(ctx: CheckContext) -> tuple[SelftestResult, ...]:
    """One flipped bit in a run of checks, all of memory_faults.FAULTS when the whole table is asked for."""
    if ctx.device is None:
        return ()
    names = tuple(FAULTS) if ctx.selftest_full else _ONE
    return tuple(_inject(ctx, ctx.device, name) for name in names)


def _inject(ctx: CheckContext, device: Device, name: str) -> SelftestResult:
    size_bytes = min(ctx.shapes["hbm_bytes"] or _MOST_BYTES, _MOST_BYTES)
    memory = hbm_port(device)
    fault = FAULTS[name](max(size_bytes, _LEAST_BYTES), ctx.seed, waits=True)
    try:
        memory.take(max(size_bytes, _LEAST_BYTES))
        # Without a fault first: where a word is wrong, the fault is real.
        healthy = _scan(Scan(memory, size_bytes), ctx.seed)
        for real in wrong_words(ctx.uuid, healthy):
            return hindered(ctx, "hbm", f"{name} {fault.part}", real)
        started = time.perf_counter()
        faulty = _scan(Scan(FaultyMemory(memory, fault), size_bytes), ctx.seed)
        latency_s = time.perf_counter() - started
    finally:
        memory.give_back()
    detected = faulty.damage.words > 0
    return injected(ctx, "hbm", f"{name} {fault.part}", detected, latency_s, changed_bits=fault.changed_bits)


def _scan(scan: Scan, seed: int) -> Scan:
    """Tests until one sees something."""
    pattern = Pattern("random", seed)
    for step in (
        Step("inversions random", lambda s: moving_inversions(s, pattern)),
        # Neighbours differ in every bit: a bit that follows its neighbour's shows for certain.
        Step("inversions checker", lambda s: moving_inversions(s, Pattern("checker"))),
        Step("address", address_in_cell),
        Step("retention", lambda s: retention(s, pattern, _WAIT_S, lambda: None)),
    ):
        if not scan.damage.words:
            scan.do(step)
    return scan
