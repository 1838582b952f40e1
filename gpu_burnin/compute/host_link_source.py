"""CUDA C of the host link: filling a source and looking into a slot. Not yet run on hardware.

Compiled at run time by NVRTC; needs no CUDA headers. The words are those of exact.random_words.
"""

from __future__ import annotations

# Values of the parameter `old` of link_look.
OLD_NONE, OLD_WORDS, OLD_POISON = 0, 1, 2

KERNELS = ("link_fill", "link_look")
SOURCE = r"""
typedef unsigned long long u64;

__device__ u64 link_word(u64 key, u64 place) {
    u64 z = (place + 1) * 0x9E3779B97F4A7C15ULL + key;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

extern "C" __global__ void link_fill(u64* to, u64 words, u64 key) {
    u64 step = (u64)gridDim.x * THREADS;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) to[i] = link_word(key, i);
}

// out[0] += words that are not those from `start` on, nor (old 1) those from `old_start` on, nor (old 2) the poison;
// out[1] = the least place of them; out[2] += words that were looked at.
extern "C" __global__ void link_look(
    const u64* from, u64 words, u64 key, u64 start, int old, u64 old_start, u64 poison, u64* out
) {
    __shared__ u64 looked;
    if (threadIdx.x == 0) looked = 0;
    __syncthreads();
    u64 step = (u64)gridDim.x * THREADS, seen = 0, wrong = 0, first = ~0ULL;
    for (u64 i = (u64)blockIdx.x * THREADS + threadIdx.x; i < words; i += step) {
        u64 got = from[i];
        seen++;
        if (got == link_word(key, start + i)) continue;
        if (old == 1 && got == link_word(key, old_start + i)) continue;
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
"""
