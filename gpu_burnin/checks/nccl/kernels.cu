// The payload of collectives and its comparison, made in registers. The same as sent_bits and
// expected_bits of operations.py, bit for bit; tests compare the two with the kernels compiled for the host.

// Bits of an integer that the type holds exactly.
__device__ u64 bits_of(i64 value, int kind) {
    switch (kind) {
    case 0: return (u32)value;
    case 1: return (u64)value;
    case 2: return __float_as_uint((float)value);
    default: return __float_as_uint((float)value) >> 16;
    }
}

__device__ u64 mask_of(int kind) { return kind == 1 ? ~0ULL : kind == 3 ? 0xFFFFULL : 0xFFFFFFFFULL; }

__device__ u64 load(const void* from, int kind, u64 p) {
    return kind == 1 ? ((const u64*)from)[p] : kind == 3 ? ((const unsigned short*)from)[p] : ((const u32*)from)[p];
}

__device__ void store(void* to, int kind, u64 p, u64 bits) {
    if (kind == 1) ((u64*)to)[p] = bits;
    else if (kind == 3) ((unsigned short*)to)[p] = (unsigned short)bits;
    else ((u32*)to)[p] = (u32)bits;
}

// rank_key of each rank.
extern "C" __global__ void nccl_keys(u64* keys, u64 ranks, u64 key) {
    const u64 step = (u64)gridDim.x * THREADS;
    for (u64 rank = (u64)blockIdx.x * THREADS + threadIdx.x; rank < ranks; rank += step)
        keys[rank] = random_word(key, rank);
}

// `adds`: integers of a right shift, and 0 where `groups` does not divide rank + p; else all bits of the word.
extern "C" __global__ void nccl_fill(void* out, int kind, u64 count, u64 key, int shift, int adds, u64 rank,
                                           u64 groups) {
    const u64 step = (u64)gridDim.x * THREADS, start = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 ahead = step % groups;
    u64 turn = (rank + start) % groups;  // of rank + p; a division for each element would take long
    for (u64 p = start; p < count; p += step) {
        u64 word = random_word(key, p);
        store(out, kind, p, !adds ? word & mask_of(kind) : turn ? 0 : bits_of((i64)word >> shift, kind));
        turn += ahead;
        if (turn >= groups) turn -= groups;
    }
}

// `report`: number of wrong elements; number of compared ones, so that a launch that did not happen does not look like
// good data; position and bits of the first `most` wrong ones that were found; the number of wrong ones by the rank
// that they came from (of an operation that moves). `keys` are those of nccl_keys.
extern "C" __global__ void nccl_verify(const void* got, int kind, u64 count, const u64* __restrict__ keys, u64 ranks,
                                             u64 groups, u64 chunk, u64 offset, int shift, int adds, u64* report,
                                             u64 most) {
    __shared__ u64 compared;
    if (threadIdx.x == 0) compared = 0;
    __syncthreads();
    const u64 step = (u64)gridDim.x * THREADS, start = (u64)blockIdx.x * THREADS + threadIdx.x;
    const u64 ahead = step % groups;
    const u64 least = ranks / groups, rest = ranks % groups;  // ranks of a group; groups with one more
    u64 seen = 0, turn = (offset + start) % groups;           // of offset + p
    for (u64 p = start; p < count; p += step) {
        u64 expected, source = 0;
        seen++;
        if (adds) {
            const u64 first = turn ? groups - turn : 0;
            const u64* giver = keys + first;
            i64 sum = 0;
#pragma unroll 4
            for (u32 left = (u32)(least + (first < rest)); left; left--, giver += groups)
                sum += (i64)random_word(*giver, offset + p) >> shift;
            expected = bits_of(sum, kind);
        } else {
            source = p / chunk;
            expected = random_word(keys[source], offset + p - source * chunk) & mask_of(kind);
        }
        turn += ahead;
        if (turn >= groups) turn -= groups;
        u64 found = load(got, kind, p);
        if (found != expected) {
            u64 place = atomicAdd(report, (u64)1);
            if (!adds) atomicAdd(report + 2 + 2 * most + source, (u64)1);
            if (place < most) {
                report[2 + 2 * place] = p;
                report[3 + 2 * place] = found;
            }
        }
    }
    atomicAdd(&compared, seen);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(report + 1, compared);
}
