// Everything of the SM kernels that only a GPU has: PTX, special registers, dynamic shared memory.

typedef unsigned long long u64;
typedef unsigned int u32;

#define DYNAMIC_SHARED(name) extern __shared__ u64 name[]
__device__ u32 sm_id() { u32 id; asm volatile("mov.u32 %0, %%smid;" : "=r"(id)); return id; }
__device__ u32 sm_ids() { u32 ids; asm volatile("mov.u32 %0, %%nsmid;" : "=r"(ids)); return ids; }
#define APPROXIMATE(name) __device__ float sp_##name(float x) { \
    float y; asm(#name ".approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
APPROXIMATE(ex2)
APPROXIMATE(lg2)
APPROXIMATE(sin)
APPROXIMATE(cos)
APPROXIMATE(rsqrt)
APPROXIMATE(rcp)
APPROXIMATE(sqrt)
APPROXIMATE(tanh)
