"""The kernels that are run on every SM: names, layout of their results, and the types that carry them.

Every block of a launch computes the same words, from the seed and the number of rounds alone, and says on
which SM it ran (%smid). So there is one expected row of words for all SMs, and a wrong row names its SM.
What each kernel computes is defined in golden.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.exact.operands import U64
from gpu_burnin.types import JSON

# Threads of a block: 32 warps, 8 on each of the four partitions of an SM (largest block, CUDA programming
# guide, technical specifications per compute capability).
THREADS = 1024
LANES = 32
KERNELS: tuple[str, ...] = ("fp32", "fp64", "int", "special", "shuffle", "shared", "atomic")
# What a block writes for its SM when %smid changed under it (PTX ISA, %smid: a preempted thread may move), and
# what stands there when the block never wrote.
MOVED = -1
UNWRITTEN = -2

# The special functions in the order of their results; the last two are correctly rounded, no approximations.
FUNCTIONS: tuple[str, ...] = ("ex2", "lg2", "sin", "cos", "rsqrt", "rcp", "sqrt", "tanh", "sqrt_rn", "div_rn")
SPECIAL_WORDS = len(FUNCTIONS) // 2  # two FP32 results share a word, the earlier in the low half
# A window of shared memory is tested at a time (u32 words); rounds go through all windows of a block.
WINDOW_BITS = 13
WINDOW_WORDS = 1 << WINDOW_BITS
# Operations of the atomic kernel; each has CELLS results in shared memory (u32) and as many in global (u64).
ATOMICS: tuple[str, ...] = ("add", "min", "max", "xor", "cas", "ticket", "order")
CELLS = 32
ATOMIC_WORDS = 2 * len(ATOMICS) * CELLS


@dataclass(frozen=True)
class SmRun:
    """What a kernel gave: `smid` (one per block) and `rows` (blocks x words), and how many ids there are.

    `nsmid` is %nsmid: ids are below it, and there may be more ids than SMs (PTX ISA, %nsmid). `launches` is
    the number of launches that the blocks come from, `seconds` the device's time for them.
    """

    smid: NDArray[np.int32]
    rows: U64
    nsmid: int
    launches: int = 1
    seconds: float = 0.0


@dataclass(frozen=True)
class SmFault:
    """A fault to be put under the detector: which (faults.FAULT_NAMES), in which kernel, on which SM.

    `sm` counts the SMs that took part, modulo their number. `kernel` None means every kernel.
    """

    name: str
    kernel: str | None
    sm: int
    seed: int

    def hits(self, kernel: str) -> bool:
        """Whether the fault is in this kernel."""
        return self.kernel in (None, kernel)


def words(kernel: str, rounds: int) -> int:
    """Words of 64 bits that one block gives. Raises KeyError for an unknown kernel."""
    if kernel not in KERNELS:
        raise KeyError(f"unknown SM kernel {kernel!r}: choose from {', '.join(KERNELS)}")
    if kernel == "special":
        return rounds * SPECIAL_WORDS * THREADS
    return ATOMIC_WORDS if kernel == "atomic" else 2 * THREADS


def functions_at(word: int) -> tuple[str, str]:
    """The functions whose results share a word of the special kernel, the one in the low half first."""
    pair = word // THREADS % SPECIAL_WORDS
    return FUNCTIONS[2 * pair], FUNCTIONS[2 * pair + 1]


def place(kernel: str, word: int) -> dict[str, JSON]:
    """What a word is: the thread with its lane and the value it holds, or the cell of an atomic."""
    if kernel == "atomic":
        space, rest = divmod(word, len(ATOMICS) * CELLS)
        operation, cell = divmod(rest, CELLS)
        return {"space": ("shared", "global")[space], "operation": ATOMICS[operation], "cell": cell}
    part, thread = divmod(word, THREADS)
    at: dict[str, JSON] = {"thread": thread, "lane": thread % LANES}
    if kernel == "special":
        return {**at, "round": part // SPECIAL_WORDS, "functions": list(functions_at(word))}
    return {**at, "value": ("last", "digest of all steps")[part]}
