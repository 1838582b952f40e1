"""What the reference tools' rules say of a product fault: the same fault in slots as the tools have them.

Each tool gets the fault twice, in the outputs of this project's own kind of product and in those of its own operands
(uniform in [0, 10), K = 8192, or 2048 for FP16, where DCGM's 8192 overflows); it is credited when it sees either.
A fault that comes once is in one slot of three, after a right reference slot, with the right result of the pass
before still in memory below; one that is always there is in all of them, which is how deterministic hardware faults,
wrong libraries and operands corrupted at upload look to a tool that is its own reference.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.device.port import read_matrix, write_matrix
from gpu_burnin.device.storage import Buffer, values_from_raw
from gpu_burnin.exact import operands
from gpu_burnin.exact.faults import Fault, Target
from gpu_burnin.exact.port import STORAGE_OF
from gpu_burnin.exact.product import Case, Shape
from tests.campaign.model import MISSED, NOT_TESTED, SEEN
from tests.campaign.reference_tools import detection_rules as rules
from tests.support.devices import ComputingDevice

_ROWS = 32
_SLOTS = 3
# Sets of operands that are made; the tools have a single one.
_SETS = 4


def products_view(fault: Fault, precision: str, seed: int, *, always: bool) -> dict[str, str]:
    """SEEN, MISSED or NOT_TESTED for each tool."""
    return {
        "gpu-burn": _view(fault, precision, seed, always, rules.GPU_BURN_PRECISIONS, rules.GPU_BURN_K, _gpu_burn),
        "dcgm": _view(fault, precision, seed, always, rules.DCGM_PRECISIONS, rules.DCGM_K, _dcgm),
    }


def _gpu_burn(slots: rules.Slots) -> bool:
    return rules.gpu_burn_says_faulty([rules.gpu_burn_errors(slots)])


def _dcgm(slots: rules.Slots) -> bool:
    return rules.dcgm_fails(rules.dcgm_counts(slots))


def _view(fault: Fault, precision: str, seed: int, always: bool, tested: frozenset[str], k: int, sees: Any) -> str:
    if precision not in tested:
        return NOT_TESTED
    own_k = rules.DCGM_K_DEFAULT if precision == "fp16" else k
    found = sees(_slots(fault, *_exact_operands(precision, seed), seed, always)) or sees(
        _slots(fault, *_tool_operands(precision, seed, own_k), seed, always)
    )
    return SEEN if found else MISSED


_Buffers = tuple[ComputingDevice, str, Buffer, Buffer, Buffer]


class _HalfResults(ComputingDevice):
    """FP16 products with FP16 results, as cublasHgemm's."""

    def gemm(self, precision: str, a: Buffer, b: Buffer, c: Buffer) -> None:
        left, right = (x.data.view(np.float16).astype(np.float32) for x in (a, b))
        with np.errstate(over="ignore", invalid="ignore"):
            c.data[...] = (left @ right.T).astype(np.float16).view(np.uint16)


def _buffers(precision: str, k: int) -> _Buffers:
    operand, result = STORAGE_OF[precision]
    device = ComputingDevice()
    if precision == "fp16":
        device, result = _HalfResults(), "fp16"
    a, b = device.allocate(operand, _ROWS, k), device.allocate(operand, k, _ROWS, transposed=True)
    return device, precision, a, b, device.allocate(result, _ROWS, _ROWS)


def _exact_operands(precision: str, seed: int) -> _Buffers:
    """This project's product: small integers, exact."""
    made = _buffers(precision, _ROWS)
    device, _, a, b, _ = made
    case = Case(precision, operands.ranges_for(precision)[0], Shape(_ROWS, _ROWS, _ROWS), seed, seed + 1)
    device.fill(a, case.operand("a"))
    device.fill(b, case.operand("b"))
    return made


def _tool_operands(precision: str, seed: int, k: int) -> _Buffers:
    """The tools' product, a small part of it."""
    made = _buffers(precision, k)
    _, _, a, b, _ = made
    left, right = _tool_operand_bits(precision, seed % _SETS, k)
    a.data[...], b.data[...] = left, right
    return made


@cache
def _tool_operand_bits(precision: str, seed: int, k: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Bits of A, and of B column by column."""
    kinds = {"fp64": np.float64, "fp32": np.float32, "fp16": np.float16}
    left, right = rules.own_operands(seed, _ROWS, _ROWS, k, kinds[precision])
    bits = np.dtype(f"u{left.itemsize}")
    return left.view(bits), np.ascontiguousarray(right.T).view(bits)


def _slots(
    fault: Fault, device: ComputingDevice, precision: str, a: Buffer, b: Buffer, c: Buffer, seed: int, always: bool
) -> list[NDArray[Any]]:
    """The results in memory after a pass, the right ones of the pass before in them before it."""
    device.gemm(precision, a, b, c)  # the pass before: the same operands, so the same right result in every slot
    right = read_matrix(device, c)
    target = Target(device, a, b, c, seed)
    if always:
        fault.on_operands(target)  # corrupted once, at the upload
    out = []
    for slot in range(_SLOTS):
        injected = always or slot == 1
        write_matrix(device, c, right)
        if injected:
            fault.prepare(target)
            if not always:
                fault.on_operands(target)
        if not (injected and fault.skips_launch):
            device.gemm(precision, a, b, c)
        if injected:
            _inject(fault, target)
        out.append(values_from_raw(device.read_raw(c, 0, c.elements), c.storage.name).copy())
    return out


def _inject(fault: Fault, target: Target) -> None:
    """The fault's change of the result; FP16 has its own special values."""
    special = {"nan": 0x7E00, "inf": 0xFC00}.get(fault.name)
    if special is None or target.c.storage.name != "fp16":
        fault.on_result(target)
    else:
        target.poke_result(target.place(target.c.elements), lambda _: special)
