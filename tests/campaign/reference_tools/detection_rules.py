"""What gpu-burn's and DCGM's published detection rules say of a set of results: reference functions for comparison.

Both tools run the same product into many slots of memory and compare every slot with slot 0 of the same GPU; neither
has an expected value from elsewhere. The rules are restated here from the sources named in each docstring, to be fair
to them where they do see a fault and exact where they do not. Slots are arrays of equal shape and type.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Slots = Sequence[NDArray[Any]]

# compare.cu of both tools: EPSILON and EPSILOND.
EPSILON_FP32 = np.float32(0.001)
EPSILON_FP64 = 0.0000001
# Precisions that the tools multiply in: gpu-burn FP32, or FP64 with -d; DCGM's diagnostic plugin FP16, FP32, FP64.
GPU_BURN_PRECISIONS = frozenset({"fp32", "fp64"})
DCGM_PRECISIONS = frozenset({"fp16", "fp32", "fp64"})
# Length of the dot products: SIZE in gpu_burn-drv.cpp; matrix_dim of DCGM's table for e.g. H100 80GB HBM3, and the
# default of the plugin, which H200 uses (nvvs/diag-skus.yaml.in, DiagnosticPlugin.cpp).
GPU_BURN_K = 8192
DCGM_K, DCGM_K_DEFAULT = 8192, 2048


def _differing(slots: Slots) -> int:
    """Elements of slots 1.. that differ from slot 0 by more than the tolerance, in the element's own arithmetic.

    FP16 is widened to float first, as compareFP16 does. A comparison with NaN is false, and Inf - Inf is NaN.
    """
    wide = [slot.astype(np.float32) if slot.dtype == np.float16 else slot for slot in slots]
    limit = EPSILON_FP64 if wide[0].dtype == np.float64 else EPSILON_FP32
    with np.errstate(invalid="ignore", over="ignore"):
        return sum(int(np.count_nonzero(np.abs(wide[0] - slot) > limit)) for slot in wide[1:])


def gpu_burn_errors(slots: Slots) -> int:
    """Errors of one pass as gpu-burn counts them.

    Source: compare.cu (wilicc/gpu-burn ca7d08d), kernels compare and compareD: for every slot k >= 1,
    `fabsf(C[0][i] - C[k][i]) > EPSILON` is one error. NaN is never an error.
    """
    return _differing(slots)


@dataclass(frozen=True)
class DcgmCounts:
    """What DCGM's compare kernel counts in one pass."""

    errors: int
    nans: int


def dcgm_counts(slots: Slots) -> DcgmCounts:
    """Errors and NaN of one pass as DCGM's diagnostic plugin counts them.

    Source: nvvs/plugin_src/diagnostic/compare.cu (NVIDIA/DCGM 18b87c7), kernels compareFP16, compareFP32 and
    compareFP64: the same comparison with slot 0, and isnan of every slot, the first included. Inf is neither.
    """
    return DcgmCounts(_differing(slots), sum(int(np.count_nonzero(np.isnan(slot))) for slot in slots))


def gpu_burn_says_faulty(errors: Sequence[int]) -> bool:
    """The line `GPU n: FAULTY` at the end, from the error counts that the GPU's process reported in time.

    Source: listenClients in gpu_burn-drv.cpp (0831a45): clientFaulty starts false and is set by a report with errors
    only. A GPU that hangs before its first report, or is slow, has none and is `OK`; main() returns 0 in any case.
    """
    return any(count != 0 for count in errors)


def dcgm_fails(counts: DcgmCounts) -> bool:
    """Whether the diagnostic plugin fails a GPU. Source: CheckPassFail in DiagnosticPlugin.cpp (18b87c7)."""
    return counts.errors != 0 or counts.nans != 0


def dcgm_too_slow(gflops: Sequence[float], tolerance: float = 0.0) -> tuple[int, ...]:
    """Indices of GPUs that the diagnostic plugin fails for their rate.

    Source: RunTest and GetGflopsMinThreshold in DiagnosticPlugin.cpp (18b87c7): with more than one GPU and a
    tolerance above 0 those below (1 - tolerance) times the mean; gflops_tolerance_pcnt is 0.0 by default: none.
    """
    if len(gflops) < 2 or tolerance <= 0.0:
        return ()
    least = (1.0 - tolerance) * sum(gflops) / len(gflops)
    return tuple(index for index, rate in enumerate(gflops) if rate < least)


def own_operands(seed: int, m: int, n: int, k: int, dtype: type[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A (m x k) and B (k x n) with the values both tools use: uniform in [0, 10) in steps of 1e-5.

    Source: `rand() % 1000000 / 100000.0` in launch() of gpu_burn-drv.cpp; DCGM fills its matrices likewise. The
    tools' srand(10) fixes the values; here the seed varies them, which changes nothing in what the rules can see.
    """
    source = np.random.default_rng(random.Random(seed).getrandbits(64))
    a, b = (source.integers(0, 1_000_000, size=size) / 100_000.0 for size in ((m, k), (k, n)))
    return a.astype(dtype), b.astype(dtype)


def own_product(seed: int, m: int, n: int, k: int, precision: str) -> NDArray[Any]:
    """One slot as the tools would have it: an m x n part of a product with dot products of length k.

    The part of the full square is enough: a rule looks at each element by itself. FP16 results are rounded from
    FP32 sums, so that values above 65504 become Inf, as with cublasHgemm's FP16 result.
    """
    kind = np.float64 if precision == "fp64" else np.float32
    if precision == "fp16":
        a, b = (x.astype(np.float32) for x in own_operands(seed, m, n, k, np.float16))
        with np.errstate(over="ignore"):
            return (a @ b).astype(np.float16)
    a, b = own_operands(seed, m, n, k, kind)
    product: NDArray[Any] = a @ b
    return product
