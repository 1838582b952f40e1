// Copies between GPUs: writing and comparing words by key. Not yet run on hardware.

extern "C" __global__ void nvlink_fill(u64* out, u64 words, u64 key) {
    const u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) out[i] = random_word(key, i);
}

// out[0]: how many words are not those of the key; out[1]: place of the first of them (starts at all ones); out[2]: how
// many were compared, so that a launch that did not happen, or not for all of them, does not look like good data.
extern "C" __global__ void nvlink_compare(const u64* in, u64 words, u64 key, u64* out) {
    __shared__ u64 compared;
    if (threadIdx.x == 0) compared = 0;
    __syncthreads();
    const u64 step = (u64)gridDim.x * THREADS;
    u64 wrong = 0, first = ~0ULL, seen = 0;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) {
        seen++;
        if (in[i] == random_word(key, i)) continue;
        wrong++;
        if (i < first) first = i;
    }
    if (wrong) {
        atomicAdd(&out[0], wrong);
        atomicMin(&out[1], first);
    }
    atomicAdd(&compared, seen);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(&out[2], compared);
}
