"""What the SM kernels compute, as integer and IEEE 754 arithmetic in NumPy: the golden rows, made by the host.

Chains fold every step into a digest, h -> h * M + bits modulo 2^64 with M odd: a step that was wrong once
stays in the digest even where later steps forget it. Constants of the generators: Knuth, TAOCP 2, 3.3.4
(1664525), and L'Ecuyer, Math. Comp. 68 (1999) (6364136223846793005).

Fused multiply-add without an FMA of the host:

- FP32: a * x of two 24-bit numbers is exact in FP64. The sum with b is rounded to odd in FP64 (TwoSum gives
  its error; where it is not zero and the last bit is even, one step towards the error makes it odd) and then
  to nearest in FP32. That is the correctly rounded result because 53 >= 24 + 2 (Boldo and Melquiond,
  "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to odd", IEEE Trans.
  Computers 57 (2008) 462-471, theorem on double rounding).
- FP64: the algorithm of the same paper (section 5): exact product by Dekker's splitting, TwoSum twice, the
  two error terms added with rounding to odd, then one rounding to nearest.

Both need results that are neither subnormal nor infinite. |b| is from 2^-16 to 2^16 and |a| < 1, so |x| stays
below 2^17 times the number of steps. If a * x + b cancels, a * x is at least 2^-18 and a multiple of
2^-(18 + 2p), p = 24 or 53, and so is the sum: zero or above 2^-125 for FP64 and 2^-67 for FP32, far above the
subnormals. The chain y -> RN(RN(y * a) + x) keeps above them too: either |y * a| is below half of |x|, and y stays
above 2^-68, or both terms are multiples of 2^-(68 + p); x is never 0 twice in a row, and |a| >= 1/2. So a compiler's
-ftz=true (exact/digest.cu) would change no result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.sm.expected import Exact, Expected
from gpu_burnin.checks.sm.kernels import ATOMICS, CELLS, LANES, THREADS, WINDOW_BITS, WINDOW_WORDS
from gpu_burnin.checks.sm.special import special
from gpu_burnin.exact.operands import MASK64, U64, mix, random_words, stream_key

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
U32 = NDArray[np.uint32]

M64 = 0x9E3779B97F4A7C15
M32 = 0x9E3779B1
LCG32 = (1664525, 1013904223)
LCG64 = (6364136223846793005, 1442695040888963407)
STARTS = 8  # start values of a thread
_SPLIT = 134217729.0  # 2^27 + 1, Dekker


def kernel_key(seed: int, kernel: str) -> int:
    """The key of a kernel's start values."""
    return stream_key(seed, f"sm:{kernel}")


def expected(kernel: str, seed: int, rounds: int) -> Expected:
    """The row of words (see sm.words) that every block of this kernel has to give, or its bounds."""
    start = random_words(kernel_key(seed, kernel), 0, THREADS * STARTS).reshape(THREADS, STARTS)
    if kernel == "special":
        return special(start, rounds)
    with np.errstate(over="ignore"):  # integers wrap on purpose
        return Exact(_CHAINS[kernel](start, rounds))


# --- arithmetic ---


def rotl32(x: U32, count: Any) -> U32:
    """Rotate left by 0 .. 31, which may differ from element to element."""
    count = np.asarray(count, dtype=np.uint32)
    rotated: U32 = (x << count) | (x >> ((np.uint32(32) - count) & np.uint32(31)))
    return rotated


def two_sum(a: F64, b: F64) -> tuple[F64, F64]:
    """a + b = s + e exactly, s = RN(a + b) (Knuth, TAOCP 2, 4.2.2)."""
    s = a + b
    t = s - a
    return s, (a - (s - t)) + (b - t)


def two_product(a: F64, b: F64) -> tuple[F64, F64]:
    """a * b = p + e exactly, p = RN(a * b) (Dekker, Numer. Math. 18 (1971) 224)."""
    p = a * b
    ca, cb = _SPLIT * a, _SPLIT * b
    ah, bh = ca - (ca - a), cb - (cb - b)
    al, bl = a - ah, b - bh
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def add_to_odd(a: F64, b: F64) -> F64:
    """a + b rounded to odd: the neighbour with an odd last bit unless the sum is exact."""
    s, error = two_sum(a, b)
    even = (s.view(np.uint64) & np.uint64(1)) == 0
    towards = np.where(error > 0, np.inf, -np.inf)
    return np.where((error != 0) & even, np.nextafter(s, towards), s)


def fma32(a: F32, x: F32, b: F32) -> F32:
    """RN(a * x + b) in FP32, see the proof above."""
    return add_to_odd(a.astype(np.float64) * x.astype(np.float64), b.astype(np.float64)).astype(np.float32)


def fma64(a: F64, x: F64, b: F64) -> F64:
    """RN(a * x + b) in FP64, see the proof above."""
    high, low = two_product(a, x)
    t, t_low = two_sum(b, low)
    v, v_low = two_sum(high, t)
    return v + add_to_odd(t_low, v_low)


# --- kernels ---


def _fold(h: U64, word: Any) -> U64:
    folded: U64 = h * np.uint64(M64) + word
    return folded


def _pair(high: Any, low: Any) -> U64:
    joined: U64 = (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)
    return joined


def _fp32(start: U64, rounds: int) -> U64:
    low = start.astype(np.uint32)
    sign, one, half = np.uint32(0x807FFFFF), np.uint32(0x3F800000), np.uint32(0x3F000000)
    x, y = (((low[:, i] & sign) | one).view(np.float32) for i in (0, 2))
    u, h = low[:, 1].copy(), start[:, 3].copy()
    for _ in range(rounds):
        u = u * np.uint32(LCG32[0]) + np.uint32(LCG32[1])
        v = u ^ (u >> np.uint32(16))
        a = ((v & sign) | half).view(np.float32)
        exponent = np.uint32(111) + ((u >> np.uint32(24)) & np.uint32(31))
        b = ((rotl32(v, 9) & sign) | (exponent << np.uint32(23))).view(np.float32)
        x = fma32(a, x, b)
        y = y * a + x  # two roundings: the GPU multiplies and adds apart
        h = _fold(h, _pair(x.view(np.uint32), y.view(np.uint32)))
    return np.concatenate([_pair(x.view(np.uint32), y.view(np.uint32)), h])


def _fp64(start: U64, rounds: int) -> U64:
    sign, one, half = (np.uint64(c << 48) for c in (0x800F, 0x3FF0, 0x3FE0))
    sign = sign | np.uint64((1 << 48) - 1)
    x, y = (((start[:, i] & sign) | one).view(np.float64) for i in (0, 2))
    u, h = start[:, 1].copy(), start[:, 3].copy()
    for _ in range(rounds):
        u = u * np.uint64(LCG64[0]) + np.uint64(LCG64[1])
        v = u ^ (u >> np.uint64(32))
        a = ((v & sign) | half).view(np.float64)
        exponent = np.uint64(1007) + ((u >> np.uint64(56)) & np.uint64(31))
        turned = (v << np.uint64(19)) | (v >> np.uint64(45))
        b = ((turned & sign) | (exponent << np.uint64(52))).view(np.float64)
        x = fma64(a, x, b)
        y = y * a + x
        h = _fold(_fold(h, x.view(np.uint64)), y.view(np.uint64))
    return np.concatenate([y.view(np.uint64), h])


def _popcount(x: U32) -> U32:
    return np.bitwise_count(x).astype(np.uint32)


def _leading_zeros(x: U32) -> U32:
    # frexp of an exact FP64 gives the position of the highest bit; its exponent is 0 for x = 0.
    return (32 - np.frexp(x.astype(np.float64))[1]).astype(np.uint32)


def _reversed_bits(x: U32) -> U32:
    bits = np.unpackbits(np.ascontiguousarray(x).view(np.uint8).reshape(-1, 4), axis=1, bitorder="little")
    return np.packbits(bits, axis=1).reshape(-1, 4)[:, ::-1].copy().view(np.uint32).reshape(-1)


def _int(start: U64, rounds: int) -> U64:
    x, y, z = start[:, 0].astype(np.uint32), start[:, 1].astype(np.uint32), start[:, 2].copy()
    for _ in range(rounds):
        x = x * (y | np.uint32(1)) + np.uint32(M32)
        y = y ^ ((x.astype(np.uint64) * y.astype(np.uint64)) >> np.uint64(32)).astype(np.uint32)
        y = rotl32(y, x >> np.uint32(27))
        y = y + _popcount(x) + (_leading_zeros(y) << np.uint32(8))
        x = x ^ (_reversed_bits(y) >> np.uint32(3))
        shifted = (x.view(np.int32) >> (y & np.uint32(31)).view(np.int32)).view(np.uint32)
        x = np.where(shifted.view(np.int32) < y.view(np.int32), x + shifted, x - shifted)
        z = _fold(z, _pair(x, y))
        z = z ^ (x // ((y >> np.uint32(7)) | np.uint32(1))).astype(np.uint64)
    return np.concatenate([_pair(x, y), z])


def _shuffle(start: U64, rounds: int) -> U64:
    shape = (THREADS // LANES, LANES)
    v, h = start[:, 0].astype(np.uint32).reshape(shape), start[:, 1].reshape(shape)
    lane = np.arange(LANES)
    total = np.zeros_like(v)
    for r in range(rounds):
        total = np.broadcast_to(v.sum(axis=1, dtype=np.uint32)[:, None], shape)
        moved = v[:, (lane * (2 * (r & 15) + 1) + r) & 31]
        distance = 1 + r % 31
        up = np.where(lane >= distance, np.roll(v, distance, axis=1), v)
        down = np.where(lane + distance < LANES, np.roll(v, -distance, axis=1), v)
        votes = ((v >> np.uint32(r & 31)) & np.uint32(1)).astype(np.uint64) << lane.astype(np.uint64)
        h = _fold(_fold(_fold(h, _pair(total, moved)), _pair(up, down)), votes.sum(axis=1, dtype=np.uint64)[:, None])
        v = v * np.uint32(M32) + moved + total
    return np.concatenate([_pair(v, total).reshape(-1), h.reshape(-1)])


def hash32(index: Any, key: int) -> U32:
    """A 32-bit word for each index: what the shared-memory and atomic kernels write."""
    x = np.asarray(index, dtype=np.uint32) * np.uint32(M32) + np.uint32(key & 0xFFFFFFFF)
    x = (x ^ (x >> np.uint32(15))) * np.uint32(0x85EBCA77)
    hashed: U32 = x ^ (x >> np.uint32(13))
    return hashed


def step_key(seed_word: int, step: int) -> int:
    """The 32-bit key of one round."""
    return mix((seed_word + step) & MASK64) & 0xFFFFFFFF


def _shared(start: U64, rounds: int) -> U64:
    seed_word, h = int(start[0, 0]), start[:, 1].copy()
    thread = np.arange(THREADS)
    address = np.arange(WINDOW_WORDS)
    last = np.zeros(THREADS, dtype=np.uint64)
    for r in range(rounds):
        key, flip, turn = step_key(seed_word, r), (37 * r) & (WINDOW_WORDS - 1), r % WINDOW_BITS
        for k in range(WINDOW_WORDS // THREADS):
            h = _fold(h, hash32(_turn(thread + k * THREADS, flip, turn), key).astype(np.uint64))
        # Whose word now lies at an address: undo the turn, then the flip.
        owner = _rotate(address, WINDOW_BITS - turn) ^ flip
        memory = hash32(address, key) ^ hash32(owner, ~key)
        wide = memory.view(np.uint64)
        for k in range(WINDOW_WORDS // 2 // THREADS):
            last = wide[thread + k * THREADS]
            h = _fold(h, last)
    return np.concatenate([last, h])


def _rotate(index: NDArray[Any], count: int) -> NDArray[Any]:
    rotated: NDArray[Any] = ((index << count) | (index >> (WINDOW_BITS - count))) & (WINDOW_WORDS - 1)
    return rotated


def _turn(index: NDArray[Any], flip: int, turn: int) -> NDArray[Any]:
    """The address that is read for an index: a permutation of the window with every kind of bank conflict."""
    return _rotate(index ^ flip, turn)


def _atomic(start: U64, rounds: int) -> U64:
    seed_word = int(start[0, 0])
    thread = np.arange(THREADS)
    narrow = np.zeros((len(ATOMICS), CELLS), dtype=np.uint32)
    wide = np.zeros((len(ATOMICS), CELLS), dtype=np.uint64)
    narrow[ATOMICS.index("min")], wide[ATOMICS.index("min")] = 0xFFFFFFFF, MASK64
    for r in range(rounds):
        value = hash32(thread, step_key(seed_word, r))
        spread, crowded = (5 * thread + r) % CELLS, (thread // 8 + r) % CELLS
        for cells, values in ((narrow, value), (wide, value.astype(np.uint64) * np.uint64(M64))):
            for name, operation, target in (
                ("add", np.add, spread), ("min", np.minimum, crowded), ("max", np.maximum, crowded),
                ("xor", np.bitwise_xor, spread), ("cas", np.add, crowded),
            ):  # fmt: skip
                operation.at(cells[ATOMICS.index(name)], target, values)
            cells[ATOMICS.index("ticket")] += cells.dtype.type(THREADS // CELLS)
    # Each ticket is drawn once, in whatever order: the sum of their hashes is known.
    drawn = hash32(np.arange(rounds * (THREADS // CELLS)), seed_word)
    narrow[ATOMICS.index("order")] = drawn.sum(dtype=np.uint32)
    wide[ATOMICS.index("order")] = (drawn.astype(np.uint64) * np.uint64(M64)).sum(dtype=np.uint64)
    return np.concatenate([narrow.reshape(-1).astype(np.uint64), wide.reshape(-1)])


_CHAINS = {"fp32": _fp32, "fp64": _fp64, "int": _int, "shuffle": _shuffle, "shared": _shared, "atomic": _atomic}
