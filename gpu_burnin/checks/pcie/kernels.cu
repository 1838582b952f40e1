// Copies between host and GPU: filling a source and looking into a slot. Compiled by NVRTC;
// needs no CUDA headers. The words are those of exact.random_words.

extern "C" __global__ void pcie_fill(u64* to, u64 words, u64 key) {
    u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) to[i] = random_word(key, i);
}

// out[0] += words that are not those from `start` on, nor (old 1) those from `old_start` on, nor (old 2) the poison;
// out[1] = the least place of them; out[2] += words that were looked at.
extern "C" __global__ void pcie_look(
    const u64* from, u64 words, u64 key, u64 start, int old, u64 old_start, u64 poison, u64* out
) {
    __shared__ u64 looked;
    if (threadIdx.x == 0) looked = 0;
    __syncthreads();
    u64 step = (u64)gridDim.x * THREADS, seen = 0, wrong = 0, first = ~0ULL;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) {
        u64 got = from[i];
        seen++;
        if (got == random_word(key, start + i)) continue;
        if (old == 1 && got == random_word(key, old_start + i)) continue;
        if (old == 2 && got == poison) continue;
        if (wrong == 0) first = i;
        wrong++;
    }
    if (wrong) {
        atomicAdd(out, wrong);
        atomicMin(out + 1, first);
    }
    atomicAdd(&looked, seen);
    __syncthreads();
    if (threadIdx.x == 0) atomicAdd(out + 2, looked);
}
