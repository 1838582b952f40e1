"""A stand-in for a GPU that runs the SM kernels: CUDA C compiled for the host, threads as fibers, and the part
of CuPy that CudaSm uses. It proves the kernels' logic and the launches; only a GPU proves a GPU.
"""

from __future__ import annotations

import ctypes
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_burnin.checks.sm.cuda import CONSTANTS, SOURCE
from gpu_burnin.checks.sm.kernels import THREADS
from gpu_burnin.device.cuda_source import cuda_text, defines
from tests.support.host_kernels import SANITIZED, compile_for_host

PRIMITIVES, KERNELS = (cuda_text("gpu_burnin.checks.sm", name) for name in ("primitives.cuh", "kernels.cu"))
_TYPES = "typedef unsigned long long u64;\ntypedef unsigned int u32;\n"
# Each thread is a fiber that runs until it waits for others (a barrier or a shuffle); all threads of a block make
# the same such calls in the same order, so one pass over the fibers completes one call.
_SHIM = """
#include <cmath>
#include <cstring>
#include <cstdint>
#include <vector>
#include <ucontext.h>
struct Dim { unsigned x; };
static Dim blockIdx, threadIdx;
static const int WARP = 32;
static ucontext_t scheduler;
static std::vector<ucontext_t> fibers;
static unsigned long long slots[2][1024];
static int turn_of[1024];
static bool ended[1024];
extern "C" { u64 dynamic_memory[1 << 15]; }
static unsigned current_sm, current_ids, departing_sm;
static void wait() { unsigned t = threadIdx.x; swapcontext(&fibers[t], &scheduler); }
// Leaves a value for the others, waits, and gives the slots to read from.
static unsigned long long* exchange(unsigned long long value) {
    unsigned t = threadIdx.x;
    unsigned long long* mine = slots[turn_of[t] ^= 1];
    mine[t] = value;
    wait();
    return mine;
}
#define __device__ static
#define __global__
#define __launch_bounds__(n)
#define DYNAMIC_SHARED(name) u64* name = dynamic_memory
static u32 sm_id() { return current_sm; }
static u32 sm_ids() { return current_ids; }
static float sp_ex2(float x) { return std::exp2(x); }
static float sp_lg2(float x) { return std::log2(x); }
static float sp_sin(float x) { return std::sin(x); }
static float sp_cos(float x) { return std::cos(x); }
static float sp_rsqrt(float x) { return (float)(1.0 / std::sqrt((double)x)); }
static float sp_rcp(float x) { return 1.0f / x; }
static float sp_sqrt(float x) { return std::sqrt(x); }
static float sp_tanh(float x) { return std::tanh(x); }
static float __uint_as_float(u32 u) { float f; std::memcpy(&f, &u, 4); return f; }
static u32 __float_as_uint(float f) { u32 u; std::memcpy(&u, &f, 4); return u; }
static double __longlong_as_double(long long i) { double d; std::memcpy(&d, &i, 8); return d; }
static long long __double_as_longlong(double d) { long long i; std::memcpy(&i, &d, 8); return i; }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static double __fma_rn(double a, double b, double c) { return std::fma(a, b, c); }
static float __fmul_rn(float a, float b) { volatile float p = a * b; return p; }
static float __fadd_rn(float a, float b) { volatile float s = a + b; return s; }
static double __dmul_rn(double a, double b) { volatile double p = a * b; return p; }
static double __dadd_rn(double a, double b) { volatile double s = a + b; return s; }
static float __fsqrt_rn(float x) { return std::sqrt(x); }
static float __fdiv_rn(float a, float b) { return a / b; }
static u32 __umulhi(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
static int __popc(u32 x) { return __builtin_popcount(x); }
static int __clz(int x) { return x ? __builtin_clz((u32)x) : 32; }
static u32 __brev(u32 x) { u32 y = 0; for (int i = 0; i < 32; i++) y |= ((x >> i) & 1u) << (31 - i); return y; }
static void __syncthreads() { wait(); }
static void __threadfence() {}
static unsigned warp_of(unsigned t) { return t & ~(WARP - 1u); }
static u32 __shfl_sync(u32, u32 v, int lane) { return (u32)exchange(v)[warp_of(threadIdx.x) + (lane & 31)]; }
static u32 __shfl_xor_sync(u32, u32 v, int mask) { return (u32)exchange(v)[threadIdx.x ^ (unsigned)mask]; }
static u32 __shfl_up_sync(u32, u32 v, unsigned by) {
    unsigned long long* all = exchange(v);
    return (threadIdx.x & 31u) >= by ? (u32)all[threadIdx.x - by] : v;
}
static u32 __shfl_down_sync(u32, u32 v, unsigned by) {
    unsigned long long* all = exchange(v);
    return (threadIdx.x & 31u) + by < 32 ? (u32)all[threadIdx.x + by] : v;
}
static u32 __ballot_sync(u32, int predicate) {
    unsigned long long* all = exchange(predicate != 0);
    u32 votes = 0;
    for (int i = 0; i < WARP; i++) votes |= (u32)all[warp_of(threadIdx.x) + i] << i;
    return votes;
}
template <class T> static T atomicAdd(T* p, T v) { T old = *p; *p += v; return old; }
template <class T> static T atomicMin(T* p, T v) { T old = *p; if (v < old) *p = v; return old; }
template <class T> static T atomicMax(T* p, T v) { T old = *p; if (v > old) *p = v; return old; }
template <class T> static T atomicXor(T* p, T v) { T old = *p; *p ^= v; return old; }
template <class T> static T atomicCAS(T* p, T seen, T v) { T old = *p; if (old == seen) *p = v; return old; }
"""
_RUNNER = """
#ifdef __SSE2__
#include <immintrin.h>
#endif
// Set: subnormals are 0 in all arithmetic, as in FP32 on a GPU under -ftz=true; here in FP64 as well.
extern "C" { int flushing = 0; }
typedef void (*Kernel)(u64*, int*, int*, u64*, u64, int, u32);
struct Call { Kernel kernel; u64* values; int* smid; int* ids; u64* scratch; u64 key; int rounds; u32 shared_words; };
static Call call;
static void fiber() {
    call.kernel(call.values, call.smid, call.ids, call.scratch, call.key, call.rounds, call.shared_words);
    ended[threadIdx.x] = true;
    wait();
}
// One launch: block b runs on SM sms[b]; leaves[b] is the SM it has moved to when it ends.
extern "C" void launch(Kernel kernel, unsigned blocks, const unsigned* sms, const unsigned* leaves, unsigned ids,
                       u64* values, int* smid, int* nsmid, u64* scratch, u64 key, int rounds, u32 shared_words) {
    const size_t STACK = 32 << 10;
    static std::vector<char> stacks(STACK * THREADS);
    call = {kernel, values, smid, nsmid, scratch, key, rounds, shared_words};
    current_ids = ids;
#ifdef __SSE2__
    const unsigned mode = _mm_getcsr();
    if (flushing) _mm_setcsr(mode | 0x8040);  // flush to zero, denormals are zero; getcontext hands it to the fibers
#endif
    fibers.resize(THREADS);
    for (blockIdx.x = 0; blockIdx.x < blocks; blockIdx.x++) {
        std::memset(dynamic_memory, 0xEE, sizeof dynamic_memory);
        for (unsigned t = 0; t < THREADS; t++) {
            getcontext(&fibers[t]);
            fibers[t].uc_stack.ss_sp = &stacks[STACK * t];
            fibers[t].uc_stack.ss_size = STACK;
            fibers[t].uc_link = nullptr;
            makecontext(&fibers[t], fiber, 0);
            ended[t] = false;
            turn_of[t] = 0;
        }
        current_sm = sms[blockIdx.x];
        for (bool first = true, left = true; left; first = false) {
            left = false;
            for (unsigned i = 0; i < THREADS; i++) {
                unsigned t = THREADS - 1 - i;  // backwards, so that thread 0 runs last
                if (ended[t]) continue;
                left = true;
                threadIdx.x = t;
                if (!first) current_sm = leaves[blockIdx.x];
                swapcontext(&scheduler, &fibers[t]);
            }
        }
    }
#ifdef __SSE2__
    _mm_setcsr(mode);
#endif
}
"""


def compile_kernels() -> ctypes.CDLL:
    """The kernels as a host library; skips without g++."""
    assert defines(CONSTANTS) + PRIMITIVES + KERNELS == SOURCE
    return compile_for_host(
        _TYPES + _SHIM + defines(CONSTANTS) + KERNELS + _RUNNER, "-std=c++17", "-ffp-contract=off", *SANITIZED
    )


class HostArray:
    """A device array on host memory. What CuPy would compile for it (fill, arithmetic) is not there."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def get(self) -> Any:
        return self.values.copy()

    def set(self, values: Any) -> None:
        assert values.shape == self.values.shape and values.dtype == self.values.dtype
        self.values[...] = values


Placement = Callable[[int, int], list[int]]


class HostGpu:
    """The CuPy surface of CudaSm. `place(launch, blocks)` says on which SM each block runs."""

    def __init__(
        self, library: ctypes.CDLL, sms: int = 4, shared_bytes: int = 48 << 10, ids: int | None = None
    ) -> None:
        self.library, self.sms, self.shared_bytes = library, sms, shared_bytes
        self.ids = sms if ids is None else ids
        self.place: Placement = lambda launch, blocks: [(b + launch) % sms for b in range(blocks)]
        self.leaves: Placement | None = None
        self.launches: list[tuple[str, tuple[int, ...], tuple[int, ...], int]] = []
        self.compiled: list[str] = []
        self.opted_in: dict[str, int] = {}
        runtime = types.SimpleNamespace(deviceGetAttribute=lambda which, device: {16: sms, 97: shared_bytes}[which])
        self.cuda = types.SimpleNamespace(
            runtime=runtime, Event=lambda: _Event(self), get_elapsed_time=lambda start, end: end.at_ms - start.at_ms
        )

    def empty(self, shape: tuple[int, ...], dtype: Any) -> HostArray:
        return HostArray(np.full(shape, 0x5A, dtype=dtype))

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> HostArray:
        return HostArray(np.zeros(shape, dtype=dtype))

    def load(self, source: str, names: Sequence[str], shared_bytes: int = 0) -> dict[str, Any]:
        self.compiled.append(source)
        return {name: _Function(self, name, max(shared_bytes, 48 << 10)) for name in names}


class _Event:
    """A point in time: each launch takes a millisecond."""

    def __init__(self, gpu: HostGpu) -> None:
        self._gpu = gpu

    def record(self) -> None:
        self.at_ms = float(len(self._gpu.launches))


class _Function:
    """A kernel as it is loaded: it can be called with as much dynamic shared memory as was allowed."""

    def __init__(self, gpu: HostGpu, name: str, shared_bytes: int) -> None:
        self._gpu, self._name, self._shared_bytes = gpu, name, shared_bytes

    def __call__(self, grid: Any, block: Any, arguments: Any, *, shared_mem: int) -> None:
        gpu, (values, smid, ids, scratch, key, rounds, shared_words) = self._gpu, arguments
        assert block == (THREADS,)
        assert shared_mem <= self._shared_bytes, "launch refused: shared memory was not opted in"
        assert 4 * int(shared_words) <= shared_mem
        assert [type(x) for x in (key, rounds, shared_words)] == [np.uint64, np.int32, np.uint32]
        (blocks,) = grid
        place = gpu.place(len(gpu.launches), blocks)
        leaves = place if gpu.leaves is None else gpu.leaves(len(gpu.launches), blocks)
        gpu.launches.append((self._name, grid, block, shared_mem))
        numbers = ctypes.c_uint * blocks
        pointers = [ctypes.c_void_p(a.values.ctypes.data) for a in (values, smid, ids, scratch)]
        gpu.library.launch(
            ctypes.cast(getattr(gpu.library, self._name), ctypes.c_void_p), ctypes.c_uint(blocks), numbers(*place),
            numbers(*leaves), ctypes.c_uint(gpu.ids), *pointers, ctypes.c_uint64(int(key)), ctypes.c_int(int(rounds)),
            ctypes.c_uint(int(shared_words)),
        )  # fmt: skip
