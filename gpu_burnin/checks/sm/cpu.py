"""The simulated SMs of the CPU device: the kernels of golden.py run thread by thread, by other means.

Integers are Python's, the fused multiply-add is that of the C library, shuffles go lane by lane, shared memory
and atomics are written and read one access at a time. So a slip in a golden row does not repeat itself here.
"""

from __future__ import annotations

import ctypes
import math
import random
import struct
import time
from collections.abc import Callable
from functools import cache, lru_cache

import numpy as np

from gpu_burnin.checks.sm.faults import STUCK_BIT, inject
from gpu_burnin.checks.sm.golden import LCG32, LCG64, M32, M64, STARTS, kernel_key
from gpu_burnin.checks.sm.kernels import (
    ATOMICS,
    CELLS,
    FUNCTIONS,
    LANES,
    SPECIAL_WORDS,
    THREADS,
    UNWRITTEN,
    WINDOW_BITS,
    WINDOW_WORDS,
    SmFault,
    SmRun,
    words,
)
from gpu_burnin.device.cpu import SIMULATED_MULTIPROCESSORS
from gpu_burnin.device.port import Device
from gpu_burnin.exact.operands import MASK64, U64, mix

_BLOCKS_PER_SM = 2
_MASK32 = (1 << 32) - 1
_GAMMA = 0x9E3779B97F4A7C15
# Faults that are in the arithmetic of the simulated SM; the others change what it has written.
_COMPUTED = ("stuck_bit", "dropped_lane", "lost_atomic", "wrong_special")


def make_port(_: Device) -> CpuSm:
    """See Device.port."""
    return CpuSm()


class CpuSm:
    """The SmPort protocol on simulated SMs."""

    simulated = True
    multiprocessors = SIMULATED_MULTIPROCESSORS

    def run(self, kernel: str, seed: int, rounds: int, fault: SmFault | None = None) -> SmRun:
        """See `run`."""
        return run(kernel, seed, rounds, fault)


def run(kernel: str, seed: int, rounds: int, fault: SmFault | None = None) -> SmRun:
    """One launch with two blocks on each of 16 SMs, in an order that depends on the seed."""
    started = time.perf_counter()
    order = np.random.default_rng(mix(seed)).permutation(SIMULATED_MULTIPROCESSORS * _BLOCKS_PER_SM)
    smid = (order % SIMULATED_MULTIPROCESSORS).astype(np.int32)
    rows = np.tile(_block(kernel, seed, rounds, None), (smid.size, 1))
    if fault is not None and fault.hits(kernel):
        if fault.name in _COMPUTED:
            rows[smid == fault.sm % SIMULATED_MULTIPROCESSORS] = _block(kernel, seed, rounds, fault)
        else:
            inject(fault, kernel, smid, rows, SIMULATED_MULTIPROCESSORS)
    launches = 0 if (smid == UNWRITTEN).all() else 1
    return SmRun(smid, rows, SIMULATED_MULTIPROCESSORS, launches, time.perf_counter() - started)


@lru_cache(maxsize=16)  # the self-test changes the same healthy rows again and again
def _block(kernel: str, seed: int, rounds: int, fault: SmFault | None) -> U64:
    row = np.array(_PROGRAMS[kernel](kernel_key(seed, kernel), rounds, fault), dtype=np.uint64)
    assert row.size == words(kernel, rounds)
    return row


def _start(key: int, thread: int, column: int) -> int:
    return mix((thread * STARTS + column + 1) * _GAMMA + key)


def _stuck(fault: SmFault | None, word: int) -> int:
    """A word as it leaves an arithmetic unit that may hold one bit at 1."""
    return word if fault is None else word | int(STUCK_BIT)


# --- floating point ---


@cache
def _libm() -> tuple[Callable[[float, float, float], float], Callable[[float, float, float], float]]:
    """fmaf and fma of the C library (C17, 7.12.13.1: rounded once)."""
    library = ctypes.CDLL("libm.so.6")
    single, double = library.fmaf, library.fma
    single.argtypes, single.restype = [ctypes.c_float] * 3, ctypes.c_float
    double.argtypes, double.restype = [ctypes.c_double] * 3, ctypes.c_double
    return single, double


def _float(bits: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", bits))[0]
    return value


def _single(value: float) -> int:
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    return bits


def _double(bits: int) -> float:
    value: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return value


def _wide(value: float) -> int:
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


def _rotl(x: int, count: int, width: int = 32) -> int:
    count %= width
    return ((x << count) | (x >> (width - count))) & ((1 << width) - 1)


def _fp32(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    fma = _libm()[0]
    last, digest = [], []
    for t in range(THREADS):
        x, y = (_float((_start(key, t, i) & 0x807FFFFF) | 0x3F800000) for i in (0, 2))
        u, h = _start(key, t, 1) & _MASK32, _start(key, t, 3)
        word = 0
        for _ in range(rounds):
            u = (u * LCG32[0] + LCG32[1]) & _MASK32
            v = u ^ (u >> 16)
            a = _float((v & 0x807FFFFF) | 0x3F000000)
            b = _float((_rotl(v, 9) & 0x807FFFFF) | ((111 + (u >> 24 & 31)) << 23))
            x = _float(_stuck(fault, _single(fma(a, x, b))))
            product = _float(_single(y * a))  # FP64 holds it exactly, struct rounds it to nearest
            # The FP64 sum of two FP32 numbers rounds to FP32 as the exact sum does (53 >= 2 * 24 + 2, Figueroa 1995).
            y = _float(_single(product + x))
            word = _single(x) << 32 | _single(y)
            h = (h * M64 + word) & MASK64
        last.append(word)
        digest.append(h)
    return last + digest


def _fp64(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    fma = _libm()[1]
    last, digest = [], []
    for t in range(THREADS):
        x, y = (_double((_start(key, t, i) & 0x800FFFFFFFFFFFFF) | 0x3FF0 << 48) for i in (0, 2))
        u, h = _start(key, t, 1), _start(key, t, 3)
        for _ in range(rounds):
            u = (u * LCG64[0] + LCG64[1]) & MASK64
            v = u ^ (u >> 32)
            a = _double((v & 0x800FFFFFFFFFFFFF) | 0x3FE0 << 48)
            b = _double((_rotl(v, 19, 64) & 0x800FFFFFFFFFFFFF) | (1007 + (u >> 56 & 31)) << 52)
            x = _double(_stuck(fault, _wide(fma(a, x, b))))
            y = y * a + x
            h = ((h * M64 + _wide(x)) * M64 + _wide(y)) & MASK64
        last.append(_wide(y))
        digest.append(h)
    return last + digest


def _special(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    row = [0] * words("special", rounds)
    for t in range(THREADS):
        starts = [_start(key, t, i) for i in range(STARTS)]
        for r in range(rounds):
            found = [_single(value) for value in _functions(t, [_rotl(w, 7 * r, 64) for w in starts])]
            if fault is not None and r == 0 and t == fault.seed % THREADS:
                found[0] ^= 1  # one unit in the last place: within the documented error
            for p in range(SPECIAL_WORDS):
                row[(r * SPECIAL_WORDS + p) * THREADS + t] = found[2 * p + 1] << 32 | found[2 * p]
    return row


def _functions(t: int, w: list[int]) -> list[float]:
    """The special functions of one thread in the order of FUNCTIONS, right to less than the documented errors."""

    def made(column: int, least: int, exponents: int, mask: int = 0x007FFFFF) -> float:
        return _float((w[column] & mask) | (least + (w[column] >> 40 & (exponents - 1))) << 23)

    signed = 0x807FFFFF
    results = {
        "ex2": 2.0 ** made(0, 117, 16, signed),
        "lg2": math.log2(made(1, 126, 2) if t % 2 == 0 else made(1, 64, 128)),
        "sin": math.sin(made(2, 121, 8, signed)),
        "cos": math.cos(made(3, 121, 8, signed)),
        "rsqrt": 1 / math.sqrt(made(4, 64, 128)),
        "rcp": 1 / made(5, 64, 128, signed),
        "sqrt": math.sqrt(made(6, 64, 128)),
        "tanh": math.tanh(made(7, 122, 8, signed)),
        # FP64 quotients and roots round to FP32 as the exact ones do (53 >= 2 * 24 + 2, Figueroa 1995).
        "sqrt_rn": math.sqrt(made(4, 64, 128)),
        "div_rn": made(5, 96, 64, signed) / made(6, 96, 64),
    }
    return [results[name] for name in FUNCTIONS]


# --- integers ---


def _signed(x: int) -> int:
    return x - (1 << 32) if x >> 31 else x


def _int(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    last, digest = [], []
    for t in range(THREADS):
        x, y, z = _start(key, t, 0) & _MASK32, _start(key, t, 1) & _MASK32, _start(key, t, 2)
        for _ in range(rounds):
            x = _stuck(fault, (x * (y | 1) + M32) & _MASK32)
            y ^= x * y >> 32
            y = _rotl(y, x >> 27)
            y = (y + x.bit_count() + ((32 - y.bit_length()) << 8)) & _MASK32
            x ^= int(f"{y:032b}"[::-1], 2) >> 3
            shifted = _signed(x) >> (y & 31)
            x = (x + shifted if shifted < _signed(y) else x - shifted) & _MASK32
            z = (z * M64 + (x << 32 | y)) & MASK64
            z ^= x // (y >> 7 | 1)
        last.append(x << 32 | y)
        digest.append(z)
    return last + digest


def _shuffle(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    last, digest = [], []
    dropped = -1 if fault is None else fault.seed % LANES
    for warp in range(THREADS // LANES):
        threads = range(warp * LANES, (warp + 1) * LANES)
        v, h = [_start(key, t, 0) & _MASK32 for t in threads], [_start(key, t, 1) for t in threads]
        total = list(v)
        for r in range(rounds):
            total = list(v)
            for distance in (16, 8, 4, 2, 1):
                # A dropped lane is heard as 0 by the lane that reads it.
                total = [
                    (own + (0 if i ^ distance == dropped else total[i ^ distance])) & _MASK32
                    for i, own in enumerate(total)
                ]
            step = 1 + r % 31
            moved = [v[(i * (2 * (r % 16) + 1) + r) % LANES] for i in range(LANES)]
            up = [v[i - step] if i >= step else v[i] for i in range(LANES)]
            down = [v[i + step] if i + step < LANES else v[i] for i in range(LANES)]
            votes = sum((value >> r % 32 & 1) << i for i, value in enumerate(v))
            for i in range(LANES):
                for word in (total[i] << 32 | moved[i], up[i] << 32 | down[i], votes):
                    h[i] = (h[i] * M64 + word) & MASK64
                v[i] = (v[i] * M32 + moved[i] + total[i]) & _MASK32
        last += [v[i] << 32 | total[i] for i in range(LANES)]
        digest += h
    return last + digest


def _hash(index: int, key: int) -> int:
    x = (index * M32 + key) & _MASK32
    x = ((x ^ (x >> 15)) * 0x85EBCA77) & _MASK32
    return x ^ (x >> 13)


def _shared(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    h, last = [_start(key, t, 1) for t in range(THREADS)], [0] * THREADS
    memory = [0] * WINDOW_WORDS
    for r in range(rounds):
        step, flip = mix(_start(key, 0, 0) + r) & _MASK32, 37 * r % WINDOW_WORDS
        for i in range(WINDOW_WORDS):
            memory[i] = _stuck(fault, _hash(i, step))
        for i in range(WINDOW_WORDS):
            at, t = _rotl(i ^ flip, r % WINDOW_BITS, WINDOW_BITS), i % THREADS
            h[t] = (h[t] * M64 + memory[at]) & MASK64
            memory[at] ^= _hash(i, ~step & _MASK32)
        for i in range(WINDOW_WORDS // 2):
            t = i % THREADS
            last[t] = memory[2 * i + 1] << 32 | memory[2 * i]
            h[t] = (h[t] * M64 + last[t]) & MASK64
    return last + h


def _atomic(key: int, rounds: int, fault: SmFault | None) -> list[int]:
    seed_word = _start(key, 0, 0)
    lost = None if fault is None else fault.seed % THREADS
    spaces = []
    for mask in (_MASK32, MASK64):
        cells = [[mask if name == "min" else 0] * CELLS for name in ATOMICS]
        for r in range(rounds):
            step = mix(seed_word + r) & _MASK32
            threads = list(range(THREADS))
            random.Random(r).shuffle(threads)  # the order of atomics is not defined
            for t in threads:
                if r == 0 and t == lost:
                    continue
                value = _hash(t, step) * (1 if mask == _MASK32 else M64) & mask
                spread, crowded = (5 * t + r) % CELLS, (t // 8 + r) % CELLS
                add, least, most, xor, cas, ticket, order = cells
                add[spread] = (add[spread] + value) & mask
                least[crowded] = min(least[crowded], value)
                most[crowded] = max(most[crowded], value)
                xor[spread] ^= value
                cas[crowded] = (cas[crowded] + value) & mask
                drawn, ticket[crowded] = ticket[crowded], ticket[crowded] + 1
                scale = 1 if mask == _MASK32 else M64
                order[crowded] = (order[crowded] + _hash(drawn, seed_word & _MASK32) * scale) & mask
        spaces += [cell for operation in cells for cell in operation]
    return spaces


_PROGRAMS: dict[str, Callable[[int, int, SmFault | None], list[int]]] = {
    "fp32": _fp32,
    "fp64": _fp64,
    "int": _int,
    "special": _special,
    "shuffle": _shuffle,
    "shared": _shared,
    "atomic": _atomic,
}
