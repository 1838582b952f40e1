// The SM kernels: what golden.py defines, thread by thread.
//
// Compiled by NVRTC, without headers. primitives.cuh holds everything that only a GPU has; this is plain C++ on top of
// it and of CUDA's intrinsics, so that tests can compile it for the host. Intrinsics that name their rounding are never
// fused by the compiler.


#define ALL_LANES 0xFFFFFFFFU
#define ARGUMENTS u64* values, int* smid, int* ids, u64* scratch, u64 key, int rounds, u32 shared_words
// Every kernel: one row of words for each block.
#define KERNEL(name) extern "C" __global__ void __launch_bounds__(THREADS) name(ARGUMENTS)

__device__ u64 mixed(u64 z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}
__device__ u64 start(u64 key, u32 t, u32 column) {
    return mixed((u64)(t * STARTS + column + 1) * 0x9E3779B97F4A7C15ULL + key);
}
__device__ u64 fold(u64 h, u64 word) { return h * M64 + word; }
__device__ u64 pair(u32 high, u32 low) { return ((u64)high << 32) | low; }
__device__ u32 rotl(u32 x, u32 count) { return (x << count) | (x >> ((32 - count) & 31)); }
__device__ u32 hash32(u32 index, u32 key) {
    u32 x = index * M32 + key;
    x = (x ^ (x >> 15)) * 0x85EBCA77U;
    return x ^ (x >> 13);
}
__device__ u32 step_key(u64 seed_word, int step) { return (u32)mixed(seed_word + (u64)step); }

// The SM on which the block was from first to last.
__device__ void report(int* smid, int* ids, u32 first) {
    if (threadIdx.x != 0) return;
    smid[blockIdx.x] = first == sm_id() ? (int)first : MOVED;
    ids[0] = (int)sm_ids();
}

KERNEL(sm_fp32) {
    u32 where = sm_id(), t = threadIdx.x;
    float x = __uint_as_float(((u32)start(key, t, 0) & 0x807FFFFFU) | 0x3F800000U);
    float y = __uint_as_float(((u32)start(key, t, 2) & 0x807FFFFFU) | 0x3F800000U);
    u32 u = (u32)start(key, t, 1);
    u64 h = start(key, t, 3);
    for (int r = 0; r < rounds; r++) {
        u = u * LCG32_A + LCG32_C;
        u32 v = u ^ (u >> 16);
        float a = __uint_as_float((v & 0x807FFFFFU) | 0x3F000000U);
        float b = __uint_as_float((rotl(v, 9) & 0x807FFFFFU) | ((111U + ((u >> 24) & 31U)) << 23));
        x = __fmaf_rn(a, x, b);
        y = __fadd_rn(__fmul_rn(y, a), x);
        h = fold(h, pair(__float_as_uint(x), __float_as_uint(y)));
    }
    u64* row = values + (u64)blockIdx.x * 2 * THREADS;
    row[t] = pair(__float_as_uint(x), __float_as_uint(y));
    row[THREADS + t] = h;
    report(smid, ids, where);
}

KERNEL(sm_fp64) {
    u32 where = sm_id(), t = threadIdx.x;
    double x = __longlong_as_double((start(key, t, 0) & 0x800FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
    double y = __longlong_as_double((start(key, t, 2) & 0x800FFFFFFFFFFFFFULL) | 0x3FF0000000000000ULL);
    u64 u = start(key, t, 1), h = start(key, t, 3);
    for (int r = 0; r < rounds; r++) {
        u = u * LCG64_A + LCG64_C;
        u64 v = u ^ (u >> 32), turned = (v << 19) | (v >> 45);
        double a = __longlong_as_double((v & 0x800FFFFFFFFFFFFFULL) | 0x3FE0000000000000ULL);
        double b = __longlong_as_double((turned & 0x800FFFFFFFFFFFFFULL) | ((1007ULL + ((u >> 56) & 31ULL)) << 52));
        x = __fma_rn(a, x, b);
        y = __dadd_rn(__dmul_rn(y, a), x);
        h = fold(fold(h, (u64)__double_as_longlong(x)), (u64)__double_as_longlong(y));
    }
    u64* row = values + (u64)blockIdx.x * 2 * THREADS;
    row[t] = (u64)__double_as_longlong(y);
    row[THREADS + t] = h;
    report(smid, ids, where);
}

KERNEL(sm_int) {
    u32 where = sm_id(), t = threadIdx.x;
    u32 x = (u32)start(key, t, 0), y = (u32)start(key, t, 1);
    u64 z = start(key, t, 2);
    for (int r = 0; r < rounds; r++) {
        x = x * (y | 1U) + M32;
        y ^= __umulhi(x, y);
        y = rotl(y, x >> 27);
        y += (u32)__popc(x) + ((u32)__clz((int)y) << 8);
        x ^= __brev(y) >> 3;
        u32 shifted = (u32)((int)x >> (y & 31U));
        x = (int)shifted < (int)y ? x + shifted : x - shifted;
        z = fold(z, pair(x, y));
        z ^= (u64)(x / ((y >> 7) | 1U));
    }
    u64* row = values + (u64)blockIdx.x * 2 * THREADS;
    row[t] = pair(x, y);
    row[THREADS + t] = z;
    report(smid, ids, where);
}

// Any mantissa; exponent field least .. least + exponents - 1.
__device__ float made(u64 word, u32 least, u32 exponents, u32 mask) {
    u32 exponent = least + ((u32)(word >> 40) & (exponents - 1));
    return __uint_as_float(((u32)word & mask) | (exponent << 23));
}

KERNEL(sm_special) {
    u32 where = sm_id(), t = threadIdx.x;
    const u32 plain = 0x007FFFFFU, with_sign = 0x807FFFFFU;
    u64* row = values + (u64)blockIdx.x * rounds * SPECIAL_WORDS * THREADS + t;
    for (int r = 0; r < rounds; r++) {
        u32 turn = (u32)(7 * r) & 63U;
        u64 w[STARTS];
        for (u32 i = 0; i < STARTS; i++) {
            u64 word = start(key, t, i);
            w[i] = (word << turn) | (word >> ((64 - turn) & 63U));
        }
        u32 found[2 * SPECIAL_WORDS] = {
            __float_as_uint(sp_ex2(made(w[0], 117, 16, with_sign))),
            __float_as_uint(sp_lg2(t % 2 == 0 ? made(w[1], 126, 2, plain) : made(w[1], 64, 128, plain))),
            __float_as_uint(sp_sin(made(w[2], 121, 8, with_sign))),
            __float_as_uint(sp_cos(made(w[3], 121, 8, with_sign))),
            __float_as_uint(sp_rsqrt(made(w[4], 64, 128, plain))),
            __float_as_uint(sp_rcp(made(w[5], 64, 128, with_sign))),
            __float_as_uint(sp_sqrt(made(w[6], 64, 128, plain))),
            __float_as_uint(sp_tanh(made(w[7], 122, 8, with_sign))),
            __float_as_uint(__fsqrt_rn(made(w[4], 64, 128, plain))),
            __float_as_uint(__fdiv_rn(made(w[5], 96, 64, with_sign), made(w[6], 96, 64, plain))),
        };
        for (u32 p = 0; p < SPECIAL_WORDS; p++)
            row[((u64)r * SPECIAL_WORDS + p) * THREADS] = pair(found[2 * p + 1], found[2 * p]);
    }
    report(smid, ids, where);
}

KERNEL(sm_shuffle) {
    u32 where = sm_id(), t = threadIdx.x, lane = t & 31U;
    u32 v = (u32)start(key, t, 0), total = 0;
    u64 h = start(key, t, 1);
    for (int r = 0; r < rounds; r++) {
        total = v;
        for (int distance = 16; distance > 0; distance /= 2) total += __shfl_xor_sync(ALL_LANES, total, distance);
        u32 moved = __shfl_sync(ALL_LANES, v, (int)((lane * (2U * (r & 15) + 1U) + r) & 31U));
        u32 up = __shfl_up_sync(ALL_LANES, v, 1U + r % 31);
        u32 down = __shfl_down_sync(ALL_LANES, v, 1U + r % 31);
        u32 votes = __ballot_sync(ALL_LANES, (int)((v >> (r & 31)) & 1U));
        h = fold(fold(fold(h, pair(total, moved)), pair(up, down)), votes);
        v = v * M32 + moved + total;
    }
    u64* row = values + (u64)blockIdx.x * 2 * THREADS;
    row[t] = pair(v, total);
    row[THREADS + t] = h;
    report(smid, ids, where);
}

__device__ u32 rotated(u32 index, u32 count) {
    return ((index << count) | (index >> (WINDOW_BITS - count))) & (WINDOW_WORDS - 1);
}

// One window a round, until all the shared memory of the block was in one; the last window ends where it ends.
KERNEL(sm_shared) {
    DYNAMIC_SHARED(dynamic);
    u32 where = sm_id(), t = threadIdx.x;
    u32 windows = (shared_words + WINDOW_WORDS - 1) / WINDOW_WORDS;
    u64 seed_word = start(key, 0, 0), h = start(key, t, 1), last = 0;
    for (int r = 0; r < rounds; r++) {
        u32 base = (r % windows) * WINDOW_WORDS;
        if (base + WINDOW_WORDS > shared_words) base = (shared_words - WINDOW_WORDS) & ~1U;
        u32* window = (u32*)dynamic + base;
        u32 step = step_key(seed_word, r), flip = (37U * r) & (WINDOW_WORDS - 1), turn = r % WINDOW_BITS;
        for (u32 i = t; i < WINDOW_WORDS; i += THREADS) window[i] = hash32(i, step);
        __syncthreads();
        for (u32 i = t; i < WINDOW_WORDS; i += THREADS) {
            u32* at = window + rotated(i ^ flip, turn);
            h = fold(h, *at);
            *at ^= hash32(i, ~step);  // its own word, which no other thread reads before the barrier
        }
        __syncthreads();
        for (u32 i = t; i < WINDOW_WORDS / 2; i += THREADS) {
            last = ((u64*)window)[i];
            h = fold(h, last);
        }
        __syncthreads();
    }
    u64* row = values + (u64)blockIdx.x * 2 * THREADS;
    row[t] = last;
    row[THREADS + t] = h;
    report(smid, ids, where);
}

// The operations on one set of cells, in the order of sm.ATOMICS.
#define STRIKE(T, cells, value, drawn_hash) { \
    T v = (value); \
    atomicAdd(&(cells)[spread], v); \
    atomicMin(&(cells)[CELLS + crowded], v); \
    atomicMax(&(cells)[2 * CELLS + crowded], v); \
    atomicXor(&(cells)[3 * CELLS + spread], v); \
    T* p = &(cells)[4 * CELLS + crowded]; \
    T seen, old = *(volatile T*)p; \
    do { seen = old; old = atomicCAS(p, seen, seen + v); } while (old != seen); \
    u32 drawn = (u32)atomicAdd(&(cells)[5 * CELLS + crowded], (T)1); \
    atomicAdd(&(cells)[6 * CELLS + crowded], (T)(drawn_hash)); }

KERNEL(sm_atomic) {
    DYNAMIC_SHARED(dynamic);
    u32 where = sm_id(), t = threadIdx.x;
    u32* narrow = (u32*)dynamic;
    u64* wide = scratch + (u64)blockIdx.x * ATOMICS * CELLS;
    u64 seed_word = start(key, 0, 0);
    if (t < ATOMICS * CELLS) {
        bool least = t / CELLS == 1;
        narrow[t] = least ? ~0U : 0U;
        wide[t] = least ? ~0ULL : 0ULL;
    }
    __threadfence();
    __syncthreads();
    for (int r = 0; r < rounds; r++) {
        u32 spread = (5U * t + r) % CELLS, crowded = (t / 8 + r) % CELLS;
        u32 word = hash32(t, step_key(seed_word, r));
        STRIKE(u32, narrow, word, hash32(drawn, (u32)seed_word))
        STRIKE(u64, wide, word * M64, hash32(drawn, (u32)seed_word) * M64)
    }
    __threadfence();
    __syncthreads();
    u64* row = values + (u64)blockIdx.x * 2 * ATOMICS * CELLS;
    if (t < ATOMICS * CELLS) {
        row[t] = narrow[t];
        row[ATOMICS * CELLS + t] = atomicAdd(&wide[t], 0ULL);  // read where the atomics work, past any stale cache
    }
    report(smid, ids, where);
}
