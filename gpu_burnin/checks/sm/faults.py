"""Faults of single SMs, put into the buffers that the kernels wrote, below the detector."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.sm.kernels import ATOMICS, CELLS, FUNCTIONS, LANES, THREADS, UNWRITTEN, SmFault
from gpu_burnin.exact.operands import U64, mix

# Each fault with the kernels that it can be in; "bitflip" and the last four go with any.
_KERNELS: dict[str, tuple[str, ...]] = {
    "stuck_bit": ("fp32", "fp64", "int", "shared"),
    "dropped_lane": ("shuffle",),
    "lost_atomic": ("atomic",),
    "wrong_special": ("special",),
    "special_everywhere": ("special",),
}
# Names for --inject (plan.CHECK_FAULTS["sm"]).
FAULT_NAMES: tuple[str, ...] = (*_KERNELS, "absent_sm", "bad_smid", "skipped_launch")
STUCK_BIT = np.uint64(1 << 3)


def make_fault(name: str, seed: int, kernel: str | None = None) -> SmFault:
    """A fault on an SM that depends on the seed only; KeyError for an unknown name or a kernel it cannot be in.

    Without a `kernel`, one that the fault can be in is chosen, or every kernel where the SM itself is at fault.
    """
    if name not in (*FAULT_NAMES, "bitflip"):
        raise KeyError(f"unknown SM fault {name!r}: choose from {', '.join(FAULT_NAMES)}")
    draw = mix(seed)
    fit = _KERNELS.get(name)
    if kernel is not None and fit is not None and kernel not in fit:
        raise KeyError(f"SM fault {name} does not go with the kernel {kernel}: choose from {', '.join(fit)}")
    if kernel is None and fit is not None:
        kernel = fit[draw % len(fit)]
    return SmFault(name, kernel, draw >> 8, draw)


def inject(fault: SmFault, kernel: str, smid: NDArray[np.int32], rows: U64, nsmid: int) -> None:
    """Change the results of one launch in place, as the fault would have made them."""
    ids = np.unique(smid[smid >= 0])
    if not fault.hits(kernel) or ids.size == 0:
        return
    hit = smid == ids[fault.sm % ids.size]
    if fault.name == "absent_sm":
        smid[hit] = ids[(fault.sm + 1) % ids.size]
    elif fault.name == "bad_smid":
        smid[hit] = nsmid + 17
    elif fault.name == "skipped_launch":
        smid[:], rows[:] = UNWRITTEN, 0
    elif fault.name == "special_everywhere":
        rows[:, _special_word(fault)] ^= np.uint64(1 << 22)  # the highest bit of a mantissa
    elif fault.name == "bitflip":  # in one block alone: the smallest change there is
        block = int(np.flatnonzero(hit)[0])
        rows[block, fault.seed % rows.shape[1]] ^= np.uint64(1) << np.uint64(fault.seed % 64)
    else:
        rows[hit] = _corrupted(fault, rows[hit])


def _corrupted(fault: SmFault, rows: U64) -> U64:
    """Rows of the SM at fault."""
    if fault.name == "stuck_bit":
        return rows | STUCK_BIT
    if fault.name == "dropped_lane":  # a lane has its neighbour's words
        lane = fault.seed % (LANES - 1)
        lanes = rows.reshape(len(rows), -1, LANES)
        lanes[:, :, lane] = lanes[:, :, lane + 1]
        return lanes.reshape(rows.shape)
    if fault.name == "lost_atomic":  # one of the tickets was never drawn
        ticket = (fault.seed & 1) * len(ATOMICS) * CELLS + ATOMICS.index("ticket") * CELLS + fault.seed % CELLS
        rows[:, ticket] -= np.uint64(1)
    else:  # wrong_special: one unit in the last place, which only the other SMs can show
        rows[:, _special_word(fault)] ^= np.uint64(1)
    return rows


def _special_word(fault: SmFault) -> int:
    """A word of the first round with ex2 in its low half."""
    assert FUNCTIONS[0] == "ex2"
    return fault.seed % THREADS
