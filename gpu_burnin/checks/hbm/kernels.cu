// The memory test: one writing and one comparing kernel for each kind of pattern.
//
// Compiled by NVRTC; needs no CUDA headers. The words are those of patterns.Pattern.words, made in registers. Memory is
// accessed 16 bytes at a time, UNROLL accesses of a thread in flight. What bounds them is memory: an H200 brings
// 4.8 TB/s to 132 SMs of 128 instructions a cycle each, which leaves about 95 instructions for 16 bytes.

struct Two { u64 even, odd; };

__device__ __forceinline__ u64 folded(u64 z) { return z ^ (z >> 32); }

// p % 20 in 32-bit steps: 2^32 % 20 is 16.
__device__ __forceinline__ u32 modulo(u64 p) {
    return ((u32)p % MODULO + (u32)(p >> 32) % MODULO * 16u) % MODULO;
}

// The words at positions p (even) and p + 1; `flip` is all ones for the complement.
template <int KIND> __device__ __forceinline__ Two words_at(u64 p, u64 parameter, u64 flip) {
    Two w;
    if (KIND == KIND_ADDRESS) {
        w.even = p * 8;
        w.odd = w.even + 8;
    } else if (KIND == KIND_RANDOM) {
        u64 z = p * GAMMA + parameter;
        w.even = folded(folded(z) * MIX);
        w.odd = folded(folded(z + GAMMA) * MIX);
    } else if (KIND == KIND_SOLID) {
        w.even = w.odd = 0;
    } else if (KIND == KIND_CHECKER) {
        w.even = CHECKER_EVEN;
        w.odd = CHECKER_ODD;
    } else if (KIND == KIND_WALKING) {
        u32 bit = ((u32)p + (u32)parameter) & 63u;
        w.even = 1ULL << bit;
        w.odd = 1ULL << ((bit + 1u) & 63u);
    } else {
        u32 rest = modulo(p), rare = (u32)parameter;  // even, as p and 20 are: rest + 1 is below 20
        w.even = rest == rare ? CHECKER_EVEN : CHECKER_ODD;
        w.odd = rest + 1u == rare ? CHECKER_EVEN : CHECKER_ODD;
    }
    w.even ^= flip;
    w.odd ^= flip;
    return w;
}

__device__ __forceinline__ uint4 packed(Two w) {
    uint4 v;
    v.x = (u32)w.even; v.y = (u32)(w.even >> 32); v.z = (u32)w.odd; v.w = (u32)(w.odd >> 32);
    return v;
}

// `data` holds 2 * units words, the first of them at position `first` (even) of the whole memory under test.
template <int KIND> __device__ __forceinline__ void write_all(uint4* data, u64 units, u64 first, u64 parameter,
                                                              u64 flip) {
    const u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < units; i += step)
        data[i] = packed(words_at<KIND>(first + 2 * i, parameter, flip));
}

// What one thread has found.
struct Tally { u64 found, bits; };

// One wrong word. Not inlined: it is rare, and its registers are not to slow down the rest.
__device__ __noinline__ void note(u64 position, u64 expected, u64 got, Tally* mine, u64* result) {
    u64 wrong = expected ^ got;
    mine->found += 1;
    mine->bits |= wrong;
    if (mine->found > LANE_WORDS_PER_THREAD) return;
    atomicAdd(result + LANE_WORDS, 1ULL);
    for (int lane = 0; lane < LANES; lane++)
        if (wrong >> lane & 1) atomicAdd(result + FIRST_LANE + lane, 1ULL);
    u64 slot = atomicAdd(result + RECORDS, 1ULL);
    if (slot >= MAX_KEPT) return;
    u64* record = result + FIRST_RECORD + RECORD_WORDS * slot;
    record[0] = position * 8;
    record[1] = expected;
    record[2] = got;
}

__device__ __forceinline__ u64 paired(u32 low, u32 high) { return (u64)high << 32 | low; }

template <int KIND> __device__ __forceinline__ void check_one(uint4* place, uint4 got, u64 p, u64 parameter, u64 flip,
                                                              int rewrite, Tally* mine, u64* result) {
    Two want = words_at<KIND>(p, parameter, flip);
    u64 even = paired(got.x, got.y), odd = paired(got.z, got.w);
    if ((even ^ want.even) | (odd ^ want.odd)) {
        if (even != want.even) note(p, want.even, even, mine, result);
        if (odd != want.odd) note(p + 1, want.odd, odd, mine, result);
    }
    if (rewrite) {
        want.even = ~want.even;
        want.odd = ~want.odd;
        *place = packed(want);
    }
}

// Compares; with `rewrite` the complement goes into each place right after it was read. `downwards` goes from the last
// place to the first. How many words were compared is counted, so that a launch that did not happen, or not for all of
// the words, is seen.
template <int KIND> __device__ __forceinline__ void verify_all(uint4* data, u64 units, u64 first, u64 parameter,
                                                               u64 flip, int rewrite, int downwards, u64* result) {
    __shared__ u64 compared;
    if (threadIdx.x == 0) compared = 0;
    __syncthreads();
    const u64 step = (u64)gridDim.x * THREADS;
    const u64 move = downwards ? 0 - step : step;
    u64 seen = 0;
    u64 i = (u64)blockIdx.x * THREADS + threadIdx.x;
    u64 at = downwards ? units - 1 - i : i;
    Tally mine = {0, 0};
    for (; i + (UNROLL - 1) * step < units; i += UNROLL * step, at += UNROLL * move) {
        uint4 got[UNROLL];
        #pragma unroll
        for (int j = 0; j < UNROLL; j++) got[j] = data[at + j * move];
        #pragma unroll
        for (int j = 0; j < UNROLL; j++) {
            u64 k = at + j * move;
            check_one<KIND>(data + k, got[j], first + 2 * k, parameter, flip, rewrite, &mine, result);
        }
        seen += 2 * UNROLL;
    }
    for (; i < units; i += step, at += move) {
        check_one<KIND>(data + at, data[at], first + 2 * at, parameter, flip, rewrite, &mine, result);
        seen += 2;
    }
    if (mine.found) {
        atomicAdd(result + FOUND, mine.found);
        atomicOr(result + BITS, mine.bits);
    }
    atomicAdd(&compared, seen);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(result + COMPARED, compared);
}

// Reads and does nothing else: what the cache held before goes out to the memory.
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) touch(const uint4* data, u64 units, u64* result) {
    const u64 step = (u64)gridDim.x * THREADS;
    u32 all = 0;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < units; i += step) {
        uint4 v = data[i];
        all ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (all == 0x9E3779B9u) result[TOUCHED] = all;  // or the compiler leaves the reads out
}

#define KERNELS(name, KIND) \
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) write_##name( \
        uint4* data, u64 units, u64 first, u64 parameter, u64 flip) { \
    write_all<KIND>(data, units, first, parameter, flip); \
} \
extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) verify_##name( \
        uint4* data, u64 units, u64 first, u64 parameter, u64 flip, int rewrite, int downwards, u64* result) { \
    verify_all<KIND>(data, units, first, parameter, flip, rewrite, downwards, result); \
}
KERNELS(address, KIND_ADDRESS)
KERNELS(random, KIND_RANDOM)
KERNELS(solid, KIND_SOLID)
KERNELS(checker, KIND_CHECKER)
KERNELS(walking, KIND_WALKING)
KERNELS(modulo, KIND_MODULO)
