"""CUDA C of the cuda backend: filling, digest, Freivalds value, launch counter. Not yet run on hardware.

Compiled at run time by NVRTC; needs no CUDA headers. Each kernel does what the function of the same
meaning in exact.py does, integer for integer.
"""

from __future__ import annotations

from gpu_burnin.compute.exact import EXACT_LIMIT, PRIME

# Storage codes shared by host and device.
STORAGE_CODE = {"fp64": 0, "fp32": 1, "bf16": 2, "fp16": 3, "int8": 4, "int32": 5}

SOURCE = f"""
typedef unsigned long long u64;
typedef long long i64;
typedef unsigned int u32;
#define PRIME {PRIME}ULL
#define EXACT_LIMIT {float(EXACT_LIMIT)!r}

__device__ u64 splitmix(u64 z) {{
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}}

__device__ u32 digest_key(u32 x) {{
    x = (x ^ (x >> 16)) * 0x7FEB352DU;
    x = (x ^ (x >> 15)) * 0x846CA68BU;
    return x ^ (x >> 16);
}}

// The integer in element i; flaw: 0 none, 1 NaN or Inf, 2 no integer of magnitude up to 2^53.
__device__ i64 element(const void* data, int storage, u64 i, int* flaw) {{
    *flaw = 0;
    if (storage == 5) return ((const int*)data)[i];
    double v = storage == 0 ? ((const double*)data)[i] : (double)((const float*)data)[i];
    if (!isfinite(v)) {{ *flaw = 1; return 0; }}
    if (rint(v) != v || fabs(v) > EXACT_LIMIT) {{ *flaw = 2; return 0; }}
    return (i64)v;
}}

extern "C" __global__ void fill(void* out, int storage, u64 n, u64 cols, u64 key, u64 span, i64 low, u64
stride) {{ u64 step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
        i64 v = (i64)(splitmix((i + 1) * 0x9E3779B97F4A7C15ULL + key) % span) - low;
        if (stride > 1 && (i / cols + i % cols) % stride != 0) v = 0;
        float f = (float)v;
        if (storage == 0) ((double*)out)[i] = (double)v;
        else if (storage == 1) ((float*)out)[i] = f;
        else if (storage == 2) ((unsigned short*)out)[i] = (unsigned short)(__float_as_uint(f) >> 16);
        else if (storage == 3) {{
            unsigned short h;
            asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
            ((unsigned short*)out)[i] = h;
        }} else ((signed char*)out)[i] = (signed char)v;
    }}
}}

// out[0] += digest, out[1] += NaN or Inf, out[2] += other flaws.
extern "C" __global__ void digest(const void* data, int storage, u64 n, u32 key, u64* out) {{
    u64 sum = 0, nonfinite = 0, noninteger = 0, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
        int flaw;
        i64 v = element(data, storage, i, &flaw);
        i64 low = (int)v, high = (v - low) >> 32;
        sum += (u64)low * digest_key((u32)(2 * i) + key) + (u64)high * digest_key((u32)(2 * i + 1) + key);
        nonfinite += flaw == 1;
        noninteger += flaw == 2;
    }}
    atomicAdd(out, sum);
    if (nonfinite) atomicAdd(out + 1, nonfinite);
    if (noninteger) atomicAdd(out + 2, noninteger);
}}

// out[0] += sum of w_i c_ij v_j, each term modulo PRIME; a thread's sum is reduced before it is added.
extern "C" __global__ void bilinear(const void* data, int storage, u64 n, u64 cols,
                                    const u64* w, const u64* v, u64* out) {{
    u64 sum = 0, step = (u64)gridDim.x * blockDim.x;
    for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += step) {{
        int flaw;
        i64 c = element(data, storage, i, &flaw) % (i64)PRIME;
        u64 residue = (u64)(c < 0 ? c + (i64)PRIME : c);
        sum += residue * (w[i / cols] * v[i % cols] % PRIME) % PRIME;
    }}
    atomicAdd(out, sum % PRIME);
}}

extern "C" __global__ void count_launch(u64* counter) {{ *counter += 1; }}
"""
