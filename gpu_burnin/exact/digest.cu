// What reads results: digest of every product, keeping a bad one, Freivalds' value.
//
// Each kernel does what the function of the same meaning in digest.py or freivalds.py does, integer for integer. The
// digest of a word that holds an integer below 2^31 takes 12 integer operations: place 1, key 8, multiply-add 1,
// sign 2.
//
// A mode that takes FP32 subnormals for 0 (-ftz=true, which CuPy forces on what it compiles) would let an element whose
// right value is 0 hide any flipped mantissa bit. nvrtc.OPTIONS leave it off, and nothing here rests on that: what a
// value is, is decided by its bits, in integers, also where arithmetic gave 0 (Fp32), and FP32 becomes FP64 by integers
// too. FP64 has no such mode.
//
// FOLD is 2^32 modulo PRIME: PRIME is 2^32 - FOLD.

struct Flaws { u32 nonfinite, noninteger; };
// A result, row by row; the exponents are null where it is not scaled. Element (i, j) carries
// 2^(row_exponents[i] + col_exponents[j]).
struct Matrix {
    const void* data;
    u64 count, cols;
    const short *row_exponents, *col_exponents;
};

__device__ u32 digest_key(u32 x) {
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    return x ^ (x >> 16);
}

// An FP32 value as a double, subnormals too: a conversion would take them for 0.
__device__ double exact_double(u32 bits) {
    u32 exponent = bits >> 23 & 0xFF, fraction = bits & 0x7FFFFF;
    if (exponent != 0) return (double)__uint_as_float(bits);
    double v = (double)fraction * power_of_two(-149);
    return bits >> 31 ? -v : v;
}

// The integer in a value without its 2^e, 0 where there is none. The general way, in double arithmetic.
__device__ i64 integer_of(double raw, int e, Flaws* flaws) {
    if (!isfinite(raw)) { flaws->nonfinite += 1; return 0; }
    double v = e == 0 ? raw : raw * power_of_two(-e);
    bool lost = v == 0.0 && raw != 0.0;
    if (lost || rint(v) != v || fabs(v) > EXACT_LIMIT) { flaws->noninteger += 1; return 0; }
    return (i64)v;
}

// Share of the digest of any integer: its two signed 32-bit digits, each with its own key.
__device__ u64 digest_any(i64 v, u32 x) {
    i64 low = (int)v, high = (v - low) >> 32;
    return (u64)low * digest_key(x) + (u64)high * digest_key(x + 1);
}

// A sum of digit * key over signed 32-bit digits: an unsigned sum, and what the signs take away from its upper half.
struct Sum {
    u64 plain;
    u32 upper;
    __device__ void add(int digit, u32 x) {
        u32 key = digest_key(x);
        plain += (u64)(u32)digit * key;
        upper += (u32)(digit >> 31) * key;
    }
    __device__ u64 value() const { return plain + ((u64)upper << 32); }
};

// How a type of result is read: elements in a 16-byte load; `usual`, the digest of one load in the fast way, which
// sets a bit of `odd` below the highest where that way was not right; `any`, of one element in the general way. e is
// its power of two; `row` and `col`, one for each column, are the factors that take it away
// (exact.cuda.inverse_factors).
struct Int32 {
    enum { PER_LOAD = 4 };
    template <bool SCALED>
    static __device__ void usual(uint4 w, u32 x, float, const float*, Sum* sum, u32*) {
        sum->add((int)w.x, x);
        sum->add((int)w.y, x + 2);
        sum->add((int)w.z, x + 4);
        sum->add((int)w.w, x + 6);
    }
    static __device__ i64 integer(const void* data, u64 i, int, Flaws*) { return ((const int*)data)[i]; }
    static __device__ u64 any(const void* data, u64 i, int, u32 x, Flaws*) {
        return digest_any(((const int*)data)[i], x);
    }
};

// Integers below 2^31 in magnitude, which is what a right product holds outside of the ieee ranges. What is no such
// integer (NaN, Inf and subnormals too) comes back from the conversion with other bits; rounding towards 0 tells 2^31
// from 2^31 - 1. The sign alone may differ: -0 reads as 0, and towards 0 no other value changes it.
//
// Taking 2^e away takes two products, by 2^-64 .. 2^64 each, and no check of range. One that overflows ends as Inf. One
// that is inexact, or taken for 0, is at most 2^-126, and the end is then at most 2^-62. So an end of 1 or more is
// exact. Where the integer is 0, as it also is where a factor is NaN, the element has to have been 0, by its bits.
struct Fp32 {
    enum { PER_LOAD = 4 };
    template <bool SCALED>
    static __device__ void word(u32 bits, u32 x, float row, float col, Sum* sum, u32* odd) {
        float v = __uint_as_float(bits);
        if (SCALED) v = v * row * col;
        int digit = __float2int_rz(v);
        u32 whole = SCALED && digit == 0 ? bits : __float_as_uint(v);
        *odd |= whole ^ __float_as_uint(__int2float_rz(digit));
        sum->add(digit, x);
    }
    template <bool SCALED>
    static __device__ void usual(uint4 w, u32 x, float row, const float* col, Sum* sum, u32* odd) {
        word<SCALED>(w.x, x, row, SCALED ? col[0] : 1.0f, sum, odd);
        word<SCALED>(w.y, x + 2, row, SCALED ? col[1] : 1.0f, sum, odd);
        word<SCALED>(w.z, x + 4, row, SCALED ? col[2] : 1.0f, sum, odd);
        word<SCALED>(w.w, x + 6, row, SCALED ? col[3] : 1.0f, sum, odd);
    }
    static __device__ i64 integer(const void* data, u64 i, int e, Flaws* flaws) {
        return integer_of(exact_double(((const u32*)data)[i]), e, flaws);
    }
    static __device__ u64 any(const void* data, u64 i, int e, u32 x, Flaws* flaws) {
        return digest_any(integer(data, i, e, flaws), x);
    }
};

// Integers up to 2^51 in magnitude: adding 3 * 2^51 leaves them, as two's complement, in the low bits.
struct Fp64 {
    enum { PER_LOAD = 2 };
    static __device__ void word(u32 low, u32 high, u32 x, Sum* sum, u32* odd) {
        double v = __longlong_as_double((i64)((u64)high << 32 | low)), shifted = v + 6755399441055744.0;
        if (!(fabs(v) <= 2251799813685248.0 && shifted - 6755399441055744.0 == v)) *odd |= 1;
        i64 integer = __double_as_longlong(shifted) - __double_as_longlong(6755399441055744.0);
        int digit = (int)integer;
        sum->add(digit, x);
        sum->add((int)((integer - digit) >> 32), x + 1);
    }
    template <bool SCALED>
    static __device__ void usual(uint4 w, u32 x, float, const float*, Sum* sum, u32* odd) {
        if (SCALED) { *odd |= 1; return; }
        word(w.x, w.y, x, sum, odd);
        word(w.z, w.w, x + 2, sum, odd);
    }
    static __device__ i64 integer(const void* data, u64 i, int e, Flaws* flaws) {
        return integer_of(((const double*)data)[i], e, flaws);
    }
    static __device__ u64 any(const void* data, u64 i, int e, u32 x, Flaws* flaws) {
        return digest_any(integer(data, i, e, flaws), x);
    }
};

// Raw bits of 8-byte elements: two signed digits each.
struct Raw64 {
    enum { PER_LOAD = 2 };
    template <bool SCALED>
    static __device__ void usual(uint4 w, u32 x, float, const float*, Sum* sum, u32*) {
        sum->add((int)w.x, x);
        sum->add((int)w.y, x + 1);
        sum->add((int)w.z, x + 2);
        sum->add((int)w.w, x + 3);
    }
    static __device__ u64 any(const void* data, u64 i, int, u32 x, Flaws*) {
        Sum sum = {0, 0};
        sum.add(((const int*)data)[2 * i], x);
        sum.add(((const int*)data)[2 * i + 1], x + 1);
        return sum.value();
    }
};

// Sum over the block of one value a thread; the result is valid in thread 0.
__device__ u64 block_sum(u64 mine) {
    __shared__ u64 part[THREADS];
    part[threadIdx.x] = mine;
    __syncthreads();
    for (u32 width = THREADS / 2; width > 0; width /= 2) {
        if (threadIdx.x < width) part[threadIdx.x] += part[threadIdx.x + width];
        __syncthreads();
    }
    return part[0];
}

// The general way, for elements first .. first + count - 1.
template <class S>
__device__ __noinline__ u64 digest_slowly(const Matrix* m, u64 first, u64 count, u32 key, Flaws* flaws) {
    u64 sum = 0;
    for (u64 i = first; i < first + count; i++) {
        int e = m->row_exponents ? m->row_exponents[i / m->cols] + m->col_exponents[i % m->cols] : 0;
        sum += S::any(m->data, i, e, (u32)i * 2 + key, flaws);
    }
    return sum;
}

// COUNT loads, `step` apart: all in flight before the first is used. Where the result is scaled they are in the same
// columns, `rows` rows apart, and `row` points to the factor of the first; factors, and not exponents, since making
// one from the other would hold up later loads.
template <class S, bool SCALED, int COUNT>
__device__ u64 digest_loads(const Matrix* m, u64 first, u64 step, const float* row, u32 rows, const float* col,
                            u32 key, Flaws* flaws) {
    uint4 word[COUNT];
    float factor[COUNT];
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        word[i] = ((const uint4*)m->data)[first + i * step];
        factor[i] = SCALED ? row[i * (u64)rows] : 1.0f;
    }
    Sum sum = {0, 0};
    u32 odd = 0;
    #pragma unroll
    for (int i = 0; i < COUNT; i++) {
        u32 x = (u32)(first + i * step) * (2 * S::PER_LOAD) + key;
        S::template usual<SCALED>(word[i], x, factor[i], col, &sum, &odd);
    }
    if (odd << 1 == 0) return sum.value();
    u64 slow = 0;
    for (int i = 0; i < COUNT; i++)
        slow += digest_slowly<S>(m, (first + i * step) * S::PER_LOAD, S::PER_LOAD, key, flaws);
    return slow;
}

// Loads `at`, `at` + step, ... to the end.
template <class S, bool SCALED>
__device__ u64 digest_strided(const Matrix* m, u64 at, u64 step, const float* row, u32 rows, const float* col, u32 key,
                              Flaws* flaws) {
    const u64 loads = m->count / S::PER_LOAD;
    u64 sum = 0;
    for (; at + (UNROLL - 1) * step < loads; at += UNROLL * step, row += UNROLL * (u64)rows)
        sum += digest_loads<S, SCALED, UNROLL>(m, at, step, row, rows, col, key, flaws);
    for (; at < loads; at += step, row += rows)
        sum += digest_loads<S, SCALED, 1>(m, at, step, row, rows, col, key, flaws);
    return sum;
}

// Digest of `m` by the whole grid. A scaled one is read by whole rows, as many at a time as there are threads for: each
// thread keeps to its columns, and their factors stay in registers. Threads beyond whole rows have nothing to do; where
// there are fewer threads than loads in a row, they take one part of the columns after the other.
template <class S, bool SCALED>
__device__ u64 digest_grid(const Matrix* m, const float* row_factors, const float* col_factors, u32 key,
                           Flaws* flaws) {
    const u64 threads = (u64)gridDim.x * THREADS, mine = (u64)blockIdx.x * THREADS + threadIdx.x;
    u64 sum = 0;
    if (SCALED) {
        // Few enough for 32 bits, in which division takes few registers.
        const u32 all = (u32)threads, width = (u32)(m->cols / S::PER_LOAD), rows = all < width ? 1 : all / width;
        for (u32 at = (u32)mine; at < rows * width; at += all) {
            float col[S::PER_LOAD];
            for (int i = 0; i < S::PER_LOAD; i++) col[i] = col_factors[at % width * S::PER_LOAD + i];
            const float* row = row_factors + at / width;
            sum += digest_strided<S, true>(m, at, rows * width, row, rows, col, key, flaws);
        }
    } else {
        sum = digest_strided<S, false>(m, mine, threads, 0, 0, 0, key, flaws);
    }
    const u64 in_loads = m->count / S::PER_LOAD * S::PER_LOAD;
    if (mine == 0) sum += digest_slowly<S>(m, in_loads, m->count - in_loads, key, flaws);
    return sum;
}

// slot: digest, NaN or Inf, other flaws, launches so far. state: launches, 1 + number of the check whose result was
// kept (0 for none), blocks that are done. The last block to end settles: the order of blocks is not defined. It
// copies a result aside that is not as expected, alone: slow, but this is rare and costs a good product nothing.
// `kept` is null where nothing is expected.
__device__ void settle(u64 sum, Flaws flaws, u64* slot, u64* state, u64 number, u64 expected, const uint4* result,
                       uint4* kept, u64 loads) {
    __shared__ u32 nonfinite, noninteger, copies;
    if (threadIdx.x == 0) { nonfinite = 0; noninteger = 0; copies = 0; }
    __syncthreads();
    if (flaws.nonfinite) atomicAdd(&nonfinite, flaws.nonfinite);
    if (flaws.noninteger) atomicAdd(&noninteger, flaws.noninteger);
    u64 total = block_sum(sum);
    if (threadIdx.x == 0) {
        atomicAdd(slot, total);
        if (nonfinite) atomicAdd(slot + 1, (u64)nonfinite);
        if (noninteger) atomicAdd(slot + 2, (u64)noninteger);
        __threadfence();
        if (atomicAdd(state + 2, (u64)1) == gridDim.x - 1) {
            state[2] = 0;
            slot[3] = state[0];
            bool clean = atomicAdd(slot + 1, (u64)0) == 0 && atomicAdd(slot + 2, (u64)0) == 0;
            bool good = clean && atomicAdd(slot, (u64)0) == expected;
            if (kept && !good && state[1] == 0) { state[1] = number + 1; copies = 1; }
        }
    }
    __syncthreads();
    if (!copies) return;
    for (u64 i = threadIdx.x; i < loads; i += THREADS) kept[i] = result[i];
}

#define MATRIX const void *data, u64 count, u64 cols, const short *row_exponents, const short *col_exponents
#define MATRIX_VALUE {data, count, cols, row_exponents, col_exponents}

#define DIGEST(NAME, S, SCALED) \
extern "C" __global__ void __launch_bounds__(THREADS) NAME(MATRIX, const float* row_factors, \
                                                          const float* col_factors, u32 key, u64* slot, u64* state, \
                                                          u64 number, u64 expected, uint4* kept) { \
    Flaws flaws = {0, 0}; \
    Matrix m = MATRIX_VALUE; \
    u64 sum = digest_grid<S, SCALED>(&m, row_factors, col_factors, key, &flaws); \
    u64 loads = (count + S::PER_LOAD - 1) / S::PER_LOAD; \
    settle(sum, flaws, slot, state, number, expected, (const uint4*)data, kept, loads); \
}
DIGEST(digest_fp32, Fp32, false)
DIGEST(digest_fp32_scaled, Fp32, true)
DIGEST(digest_fp64, Fp64, false)
DIGEST(digest_fp64_scaled, Fp64, true)
DIGEST(digest_int32, Int32, false)
DIGEST(digest_raw64, Raw64, false)

// out += w^T C v modulo PRIME, to be reduced once more by the reader. A block takes whole rows; a row's products
// are summed in two halves, so that only one reduction a row is needed.
template <class S>
__device__ void bilinear_grid(Matrix m, const u32* w, const u32* v, u64* out) {
    u64 total = 0;
    Flaws flaws = {0, 0};
    for (u64 row = blockIdx.x; row < m.count / m.cols; row += gridDim.x) {
        u64 low = 0, high = 0;
        for (u64 col = threadIdx.x; col < m.cols; col += THREADS) {
            int e = m.row_exponents ? m.row_exponents[row] + m.col_exponents[col] : 0;
            i64 c = S::integer(m.data, row * m.cols + col, e, &flaws) % (i64)PRIME;
            u64 product = (u64)(c < 0 ? c + (i64)PRIME : c) * v[col];
            low += (u32)product;
            high += product >> 32;
        }
        total += (high % PRIME * FOLD + low % PRIME) % PRIME * w[row] % PRIME;
    }
    total = block_sum(total % PRIME);
    if (threadIdx.x == 0) atomicAdd(out, total);
}
#define BILINEAR(NAME, S) \
extern "C" __global__ void __launch_bounds__(THREADS) NAME(MATRIX, const u32* w, const u32* v, u64* out) { \
    Matrix m = MATRIX_VALUE; \
    bilinear_grid<S>(m, w, v, out); \
}
BILINEAR(bilinear_fp32, Fp32)
BILINEAR(bilinear_fp64, Fp64)
BILINEAR(bilinear_int32, Int32)
