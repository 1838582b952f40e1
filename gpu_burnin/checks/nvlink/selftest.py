"""The self-test of the NVLink check: faults in copies from a GPU to itself, which the comparison must see and name.

It proves the patterns, the comparison and the naming on this device's memory; links between GPUs have no part in it.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.nvlink.port import (
    DATA_FAULTS,
    DIRECTIONS,
    STRUCK,
    Direction,
    NvlinkPort,
    PieceFault,
    nvlink_port,
    transfer_key,
)
from gpu_burnin.checks.pcie.port import Kind
from gpu_burnin.checks.selftest import hindered, injected
from gpu_burnin.hardware.reasons import make_reason
from gpu_burnin.types import Reason, SelftestResult

_RUN_FAULTS = (Kind.CORRUPTED, Kind.DROPPED)
_MOST_BYTES = 1 << 20


def run(ctx: CheckContext) -> tuple[SelftestResult, ...]:
    """Two faults, or with ctx.selftest_full every kind in both directions. Nothing without a device."""
    if ctx.device is None or ctx.gpu is None:
        return ()
    port, own = nvlink_port(ctx.device), ctx.gpu.uuid
    size_bytes = min(ctx.shapes["transfer_bytes"], _MOST_BYTES)
    try:
        return tuple(_faults(ctx, port, own, size_bytes))
    finally:
        port.close()


def _faults(ctx: CheckContext, port: NvlinkPort, own: str, size_bytes: int) -> Iterator[SelftestResult]:
    directions = DIRECTIONS if ctx.selftest_full else DIRECTIONS[:1]
    for number, direction in enumerate(directions):
        port.attach(own, port.export(own, [own], size_bytes))
        # A copy without a fault first: where it is wrong, the fault is real.
        if wrong := _copied(ctx, port, own, direction, 1000 * number):
            yield hindered(ctx, "nvlink", f"{Kind.CORRUPTED} {direction}", _real(own, direction, wrong))
            return
        for turn, fault in enumerate(DATA_FAULTS if ctx.selftest_full else _RUN_FAULTS):
            port.inject(own, fault)
            started = time.perf_counter()
            found = _copied(ctx, port, own, direction, 1000 * number + turn + 1)
            latency_s = time.perf_counter() - started
            if beside := tuple(one for one in found if not _planted(fault, one)):
                yield hindered(ctx, "nvlink", f"{fault} {direction}", _real(own, direction, beside), beside=True)
                return
            seen = {one.kind for one in found} == {fault}
            yield injected(
                ctx, "nvlink", f"{fault} {direction}", seen, latency_s,
                changed_bits=_changed_bits(found[0]) if found and fault is Kind.CORRUPTED else None,
            )  # fmt: skip


def _copied(ctx: CheckContext, port: NvlinkPort, own: str, direction: Direction, turn: int) -> tuple[PieceFault, ...]:
    """What is wrong with one copy from this GPU to itself."""
    key = transfer_key(ctx.seed, own, own, turn)
    port.fill(own, key)
    port.clear(own)
    port.begin(own, direction)
    port.finish()
    return port.verify(own, key)


def _planted(fault: Kind, found: PieceFault) -> bool:
    """Whether the injected fault did this: it changes one word of the struck piece, or moves that piece."""
    struck = {STRUCK, STRUCK - 1} if fault is Kind.REORDERED else {STRUCK}
    return found.piece in struck and (fault is not Kind.CORRUPTED or found.wrong_words == 1)


def _changed_bits(fault: PieceFault) -> int:
    """How many bits differ in the first wrong word."""
    return (fault.expected ^ fault.got).bit_count()


def _real(own: str, direction: Direction, wrong: tuple[PieceFault, ...]) -> Reason:
    """No link and no other GPU has a part in these copies: the fault is this GPU's."""
    first = wrong[0].to_json()
    message = (
        f"a copy of this GPU to itself arrived wrong in {len(wrong)} of its pieces ({first['kind']}, first at offset "
        f"{first['offset_bytes']}: expected {first['expected']}, got {first['got']})"
    )
    return make_reason("P2P_CORRUPTED", "nvlink", message, gpu=own, details={**first, "direction": direction})
