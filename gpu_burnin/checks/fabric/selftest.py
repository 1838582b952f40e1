"""The comparison is tried on planted faults before a member trusts it: each collective and type, wrong by one bit."""

from __future__ import annotations

import numpy as np

from gpu_burnin.checks.fabric.collectives import compared
from gpu_burnin.checks.nccl.operations import KINDS, expected_bits, operation
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import mix

COLLECTIVES: tuple[str, ...] = ("all_to_all", "all_reduce", "all_gather")
_SIZE_BYTES = 4096


def kinds_of(ranks: int) -> tuple[str, ...]:
    """Types in which a sum of so many parts is exact."""
    return tuple(kind for kind, row in KINDS.items() if row.exact_bits >= (ranks - 1).bit_length())


async def selftest(ranks: int, rank: int, seed: int) -> int:
    """How many planted faults the comparison has found. Raises DeviceError when it misses one, or finds one in what is
    right."""
    found = 0
    for number, (collective, kind) in enumerate((c, k) for c in COLLECTIVES for k in kinds_of(ranks)):
        op = operation(collective, kind, _SIZE_BYTES, ranks, rank, mix(seed + number))
        got = expected_bits(op, 0, op.recv_elements)
        clean = await compared(op, got)
        position = mix(seed ^ number) % op.recv_elements
        got[position] ^= np.array(4, dtype=got.dtype)
        planted = await compared(op, got)
        if clean.outcome.wrong or [wrong.position for wrong in planted.outcome.recorded] != [position]:
            raise DeviceError(
                f"this host's own comparison of {collective} ({kind}) is wrong, so it can say nothing of others: test "
                "its memory and CPU"
            )
        found += 1
    return found
