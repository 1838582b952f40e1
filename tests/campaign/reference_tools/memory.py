"""What the tools' rules say of faulty memory: their patterns over the same model of cells (faults/cells.py).

gpu-burn keeps one product in many slots, DCGM's memory plugin stores five bytes after each other everywhere and reads
each back at once. DCGM's memtest (level 4 only) is not part of the rule: it is off below that level, and two of its
eleven tests are on by default (nvvs/plugin_src/memtest).
"""

from __future__ import annotations

import numpy as np

from tests.campaign.faults.cells import Cells, Words
from tests.campaign.model import MISSED, SEEN
from tests.campaign.reference_tools import detection_rules as rules

# testVals of runTestDeviceMemory, nvvs/plugin_src/memory/memory.cpp (NVIDIA/DCGM 0d22068).
DCGM_BYTES = (0x00, 0xAA, 0x55, 0xFF, 0x00)
_SLOTS = 4
_PASSES = 3
_PART = 32


def memory_view(gpu_burn: Cells, dcgm: Cells) -> dict[str, str]:
    """SEEN or MISSED for both tools, each on cells of its own."""
    return {
        "gpu-burn": SEEN if gpu_burn_sees(gpu_burn) else MISSED,
        "dcgm": SEEN if dcgm_memory_sees(dcgm) else MISSED,
    }


def dcgm_memory_sees(cells: Cells) -> bool:
    """memsetval and memcheckval of the memory plugin, over all of the memory though it may leave 25 % out."""
    memory = np.zeros(cells.words, dtype=np.uint64)
    for byte in DCGM_BYTES:
        value = np.uint64(int.from_bytes(bytes([byte]) * 8, "little"))
        memory[...] = value
        cells.stored(memory, 0, memory.size)
        cells.loading(memory, 0, memory.size)
        if (memory != value).any():
            return True
    return False


def gpu_burn_sees(cells: Cells) -> bool:
    """The same product in every slot, pass after pass, each slot compared with the first (compare.cu)."""
    memory = np.zeros(cells.words, dtype=np.uint64)
    slot_words = memory.size // _SLOTS
    product = _slot(slot_words)
    for _ in range(_PASSES):
        for slot in range(_SLOTS):
            memory[slot * slot_words : (slot + 1) * slot_words] = product
            cells.stored(memory, slot * slot_words, slot_words)
        cells.loading(memory, 0, memory.size)
        slots = [memory[slot * slot_words : (slot + 1) * slot_words].view(np.float32) for slot in range(_SLOTS)]
        if rules.gpu_burn_says_faulty([rules.gpu_burn_errors(slots)]):
            return True
    return False


def _slot(words: int) -> Words:
    """Words of FP32 results such as the tool has, a small part of its product repeated."""
    part = rules.own_product(1, _PART, _PART, rules.GPU_BURN_K, "fp32").reshape(-1)
    return np.resize(part, 2 * words).view(np.uint64)
