"""The self-test of the NVLink check: faults in copies from a GPU to itself, which the comparison must see and name.

It proves the patterns, the comparison and the naming on this device's memory; links between GPUs have no part in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpu_burnin.checks import CheckContext
from gpu_burnin.compute.host_link import Kind
from gpu_burnin.compute.peer import DATA_FAULTS, DIRECTIONS, Direction, PeerPort, transfer_key
from gpu_burnin.selftest import injected
from gpu_burnin.types import SelftestResult

_RUN_FAULTS = (Kind.CORRUPTED, Kind.DROPPED)
_MOST_BYTES = 1 << 20


def run(ctx: CheckContext) -> tuple[SelftestResult, ...]:
    """Two faults, or with ctx.selftest_full every kind in both directions. Nothing without a backend."""
    if ctx.backend is None or ctx.gpu is None:
        return ()
    port, own = ctx.backend.peers(), ctx.gpu.uuid
    size_bytes = min(ctx.shapes["transfer_bytes"], _MOST_BYTES)
    try:
        return tuple(_faults(ctx, port, own, size_bytes))
    finally:
        port.close()


def _faults(ctx: CheckContext, port: PeerPort, own: str, size_bytes: int) -> Iterator[SelftestResult]:
    directions = DIRECTIONS if ctx.selftest_full else DIRECTIONS[:1]
    for number, direction in enumerate(directions):
        port.attach(own, port.export(own, [own], size_bytes))
        # A detector that cries always is not taken for a good one.
        trusted = _copied(ctx, port, own, direction, 1000 * number)[0] == set()
        for turn, fault in enumerate(DATA_FAULTS if ctx.selftest_full else _RUN_FAULTS):
            port.strike(own, fault)
            started = time.perf_counter()
            kinds, changed_bits = _copied(ctx, port, own, direction, 1000 * number + turn + 1)
            seen = trusted and kinds == {fault}
            yield injected(
                ctx, "nvlink", f"{fault} {direction}", seen, time.perf_counter() - started,
                changed_bits=changed_bits if fault is Kind.CORRUPTED else None,
            )  # fmt: skip


def _copied(
    ctx: CheckContext, port: PeerPort, own: str, direction: Direction, turn: int
) -> tuple[set[Kind], int | None]:
    """Kinds of fault seen in one copy from this GPU to itself, and how many bits differ in the first wrong word."""
    key = transfer_key(ctx.seed, own, own, turn)
    port.fill(own, key)
    port.clear(own)
    port.begin(own, direction, 1)
    port.finish()
    faults = port.verify(own, key)
    bits = (faults[0].expected ^ faults[0].got).bit_count() if faults else None
    return {fault.kind for fault in faults}, bits
