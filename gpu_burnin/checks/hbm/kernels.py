"""The kernels of kernels.cu: names, layout of their results, and the constants that they share with the host."""

from __future__ import annotations

from gpu_burnin.checks.hbm.patterns import CHECKER, GAMMA, KINDS, LANES, MAX_KEPT, MIX, MODULO
from gpu_burnin.device.cuda_source import cuda_source

# Blocks on an SM at a time: all of a launch's blocks run from its start, so that none is left for a second turn.
BLOCKS_PER_SM = 4
UNROLL = 4
ACCESS_BYTES = 16

# Words of the results, all 64 bits wide: wrong words, records asked for, union of the wrong bits, words counted by
# lane, words compared, one that nobody reads, the 64 lanes, then the records (offset, expected, got).
FOUND, RECORDS, BITS, LANE_WORDS, COMPARED, TOUCHED, FIRST_LANE = 0, 1, 2, 3, 4, 5, 6
FIRST_RECORD = FIRST_LANE + LANES
RECORD_WORDS = 3
RESULT_WORDS = FIRST_RECORD + RECORD_WORDS * MAX_KEPT
# Wrong words that one thread counts by lane and records: where all memory is wrong, the kernel still comes to an end.
LANE_WORDS_PER_THREAD = 8

KERNELS: tuple[str, ...] = ("touch", *(f"{action}_{kind}" for kind in KINDS for action in ("write", "verify")))
SOURCE = cuda_source(
    __package__,
    "kernels.cu",
    BLOCKS_PER_SM=BLOCKS_PER_SM,
    UNROLL=UNROLL,
    GAMMA=f"{GAMMA:#x}ULL",
    MIX=f"{MIX:#x}ULL",
    CHECKER_EVEN=f"{CHECKER[0]:#x}ULL",
    CHECKER_ODD=f"{CHECKER[1]:#x}ULL",
    MODULO=f"{MODULO}u",
    LANES=LANES,
    FOUND=FOUND,
    RECORDS=RECORDS,
    BITS=BITS,
    LANE_WORDS=LANE_WORDS,
    COMPARED=COMPARED,
    TOUCHED=TOUCHED,
    FIRST_LANE=FIRST_LANE,
    FIRST_RECORD=FIRST_RECORD,
    RECORD_WORDS=RECORD_WORDS,
    MAX_KEPT=f"{MAX_KEPT}ULL",
    LANE_WORDS_PER_THREAD=LANE_WORDS_PER_THREAD,
    **{f"KIND_{kind.upper()}": number for kind, number in KINDS.items()},
)
