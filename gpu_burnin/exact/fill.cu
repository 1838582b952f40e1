// Products: filling of operands, launch counter. Compiled by NVRTC; needs no CUDA headers.
// Each kernel does what the function of the same meaning in operands.py does, integer for integer.

// 2^e as a double, -1022 <= e <= 1023.
__device__ double power_of_two(int e) { return __longlong_as_double((i64)(1023 + e) << 52); }

extern "C" __global__ void count_launch(u64* state) { state[0] += 1; }

// Row-major position of an element at position p of its storage (column by column when transposed).
__device__ u64 place_of(u64 p, u64 rows, u64 cols, int transposed) {
    return transposed ? (p % rows) * cols + p / rows : p;
}

// exact.operand_values of one word.
__device__ i64 operand_value(u64 word, i64 bound, i64 low, int is_signed) {
    i64 width = bound - low + 1;
    if (low == 0) return is_signed ? (i64)(word % (u64)(2 * bound + 1)) - bound : (i64)(word % (u64)width);
    if (!is_signed) return low + (i64)(word % (u64)width);
    i64 x = (i64)(word % (u64)(2 * width));
    return x < width ? low + x : width - low - x;
}

// A number that the storage type represents exactly, in its normal range.
__device__ void store(void* out, int storage, u64 p, i64 integer, int e) {
    double d = (double)integer * power_of_two(e);
    float f = (float)d;
    u32 bits = __float_as_uint(f);
    switch (storage) {
    case 0: ((double*)out)[p] = d; break;
    case 1: ((float*)out)[p] = f; break;
    case 2: ((unsigned short*)out)[p] = (unsigned short)(bits >> 16); break;
    case 3: {
        unsigned short h;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
        ((unsigned short*)out)[p] = h;
        break;
    }
    case 4: ((signed char*)out)[p] = (signed char)integer; break;
    case 5: ((int*)out)[p] = (int)integer; break;
    default: {  // E4M3: bias 7, three fraction bits
        u32 sign = bits >> 24 & 0x80, exponent = (bits >> 23 & 0xFF) - 120, fraction = bits >> 20 & 7;
        ((unsigned char*)out)[p] = (unsigned char)(integer == 0 ? 0 : sign | exponent << 3 | fraction);
    }
    }
}

// `exponents` is null for 2^0; by_col: one a column, else one a row.
extern "C" __global__ void fill(void* out, int storage, u64 rows, u64 cols, int transposed, u64 key, i64 bound,
                                i64 low, int is_signed, u64 stride, const short* exponents, int by_col) {
    const u64 step = (u64)gridDim.x * THREADS;
    for (u64 p = (u64)blockIdx.x * THREADS + threadIdx.x; p < rows * cols; p += step) {
        u64 place = place_of(p, rows, cols, transposed), row = place / cols, col = place % cols;
        i64 v = operand_value(random_word(key, place), bound, low, is_signed);
        if (stride > 1 && (row + col) % stride != 0) v = 0;
        store(out, storage, p, v, exponents ? exponents[by_col ? col : row] : 0);
    }
}

// exact.random_bits: a format of `exponent_bits` (0: plain integers) and `fraction_bits`, of whose exponent only
// `varying` bits vary; `sign_bits` is the mask of the sign, 0 when only positive numbers are wanted.
__device__ u64 random_bits(u64 word, int exponent_bits, int fraction_bits, int varying, int e4m3, u64 sign_bits) {
    u64 ones = (1ULL << exponent_bits) - 1, fraction = word & ((1ULL << fraction_bits) - 1);
    u64 field = word >> fraction_bits & ones;
    if (varying < exponent_bits) field = (field & ((1ULL << varying) - 1)) + (ones >> 1) - (1ULL << (varying - 1));
    else if (field == ones && (!e4m3 || fraction == 7)) field = ones >> 1;
    return (word & sign_bits) | field << fraction_bits | fraction;
}

extern "C" __global__ void fill_random(void* out, int size, u64 rows, u64 cols, int transposed, u64 key,
                                       int exponent_bits, int fraction_bits, int varying, int e4m3, u64 sign_bits) {
    const u64 step = (u64)gridDim.x * THREADS;
    for (u64 p = (u64)blockIdx.x * THREADS + threadIdx.x; p < rows * cols; p += step) {
        u64 word = random_word(key, place_of(p, rows, cols, transposed));
        u64 bits = random_bits(word, exponent_bits, fraction_bits, varying, e4m3, sign_bits);
        switch (size) {
        case 1: ((unsigned char*)out)[p] = (unsigned char)bits; break;
        case 2: ((unsigned short*)out)[p] = (unsigned short)bits; break;
        case 4: ((u32*)out)[p] = (u32)bits; break;
        default: ((u64*)out)[p] = bits;
        }
    }
}
