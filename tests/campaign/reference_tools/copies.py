"""What the tools' rules say of a faulty wire: their buffers and comparisons over the same model (faults/wires.py).

nvbandwidth sends one pattern many times and compares the buffer once, at the end; DCGM's pcie plugin compares nothing
of what goes between host and GPU, and between two GPUs one small and one large copy (Brokenp2p). What is slow and right
neither of them fails: nvbandwidth knows no thresholds, DCGM's are 0 by default.
"""

from __future__ import annotations

import numpy as np

from tests.campaign.faults.wires import Wire, Words
from tests.campaign.model import MISSED, NOT_TESTED, SEEN

# defaultLoopCount of common.h; words of a buffer here, where the tool has 512 MiB.
_LOOPS = 16
_WORDS = 1 << 11
# Seeds of memory_utils.cpp: the destination must end with the words of the second (NVIDIA/nvbandwidth 97ffb1e).
_BEFORE, _AFTER = 0xCAFEBABE, 0xBAADF00D
# Brokenp2p.cpp (NVIDIA/DCGM 2fc25ad): one int in each 64 KiB, the rest 0, into memory of ones.
_STRIDE_BYTES = 64 * 1024


def host_view(wire: Wire) -> dict[str, str]:
    """For copies between host and GPU: DCGM times them and looks at nothing."""
    return {"gpu-burn": NOT_TESTED, "dcgm": MISSED, "nvbandwidth": SEEN if nvbandwidth_sees(wire) else MISSED}


def gpu_pair_view(nvbandwidth: Wire, dcgm: Wire) -> dict[str, str]:
    """For copies between two GPUs, each tool on a wire of its own."""
    return {
        "gpu-burn": NOT_TESTED,
        "dcgm": SEEN if dcgm_p2p_sees(dcgm) else MISSED,
        "nvbandwidth": SEEN if nvbandwidth_sees(nvbandwidth) else MISSED,
    }


def slow_view() -> dict[str, str]:
    """For a link that is slow and right."""
    return {"gpu-burn": NOT_TESTED, "dcgm": MISSED, "nvbandwidth": MISSED}


def nvbandwidth_sees(wire: Wire) -> bool:
    """The same data in every loop, compared when all are over (memcmpPattern in memcpy.cpp)."""
    source, target = _xorshift(_AFTER), _xorshift(_BEFORE)
    wire.batch(_LOOPS)
    for _ in range(_LOOPS):
        wire.carry(target, source)
    wire.end()
    return bool((target != source).any())


def dcgm_p2p_sees(wire: Wire) -> bool:
    """Eight bytes, compared, then all, compared (CheckPairP2pWindow)."""
    source = np.zeros(_STRIDE_BYTES // 8 * 4, dtype=np.uint64)
    offsets = np.arange(0, source.size, _STRIDE_BYTES // 8)
    source[offsets] = offsets * 8
    target = np.full(source.size, np.iinfo(np.uint64).max, dtype=np.uint64)
    for words in (1, source.size):
        wire.batch(1)
        wire.carry(target[:words], source[:words])
        wire.end()
        if (target[:words] != source[:words]).any():
            return True
    return False


def _xorshift(seed: int) -> Words:
    """xorshift2MBPattern: 32-bit words, each made of the one before."""
    value, out = seed, np.empty(2 * _WORDS, dtype=np.uint32)
    for index in range(out.size):
        value ^= value << 13 & 0xFFFFFFFF
        value ^= value >> 17
        value ^= value << 5 & 0xFFFFFFFF
        out[index] = value
    return out.view(np.uint64)
