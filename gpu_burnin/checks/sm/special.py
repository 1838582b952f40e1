"""The special functions of an SM: arguments, what the host computes in FP64, and the documented errors.

Maximum errors from the PTX ISA (docs.nvidia.com/cuda/parallel-thread-execution, section 9.7.3 "Floating
Point Instructions"), for .f32:

- ex2.approx: 2 ulp
- lg2.approx: absolute 2^-22 for arguments in (0.5, 2), else relative 2^-22
- sin.approx, cos.approx: absolute 2^-20.5 for arguments in [-2 pi, 2 pi]
- rsqrt.approx: relative 2^-22.9
- rcp.approx: 1 ulp
- sqrt.approx: relative 2^-23
- tanh.approx (sm_75 and newer): relative 2^-11
- sqrt.rn and div.rn: correctly rounded (IEEE 754)

NVIDIA states such errors as the distance from the correctly rounded result (PTX ISA of ex2; CUDA C++ Programming
Guide, "Mathematical Functions": "the difference in ulps between a correctly rounded single-precision result and the
result returned"), which is itself up to half an ulp from the exact value: so every approximation is allowed its bound
and half an ulp, rcp 1.5 ulp. That costs no detection: SMs must agree bit for bit (sm_judge), whatever the bounds.

Arguments keep arguments and results away from subnormals, so that -ftz=true (CuPy's, not ours) would change no
result. The host's FP64 functions err by some 2^-52 relative, which HOST_ERROR covers; nothing else is added.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.sm.expected import Bounded
from gpu_burnin.checks.sm.kernels import FUNCTIONS, SPECIAL_WORDS, THREADS
from gpu_burnin.exact.operands import U64

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]

# From the exact value to the correctly rounded FP32 result, in units in its last place.
_ROUNDING_ULP = 0.5
# Four units in the last place of FP64: no libm in use is worse for these functions and arguments.
HOST_ERROR = 2.0**-50


def arguments(start: U64, step: int) -> dict[str, F32]:
    """FP32 arguments of one round from the start values (threads x 8), by integer operations only.

    Keys are FUNCTIONS, and "over" for the divisor of div_rn. Every float is put together from bits.
    """
    turned = (start << np.uint64(7 * step % 64)) | (start >> np.uint64((64 - 7 * step) % 64))
    low = turned.astype(np.uint32)

    def made(column: int, least: int, exponents: int, sign: bool = False) -> F32:
        """Any mantissa, exponent field `least` .. `least` + exponents - 1, a power of two of them."""
        word = low[:, column]
        mantissa = word & np.uint32(0x807FFFFF if sign else 0x007FFFFF)
        exponent = np.uint32(least) + ((turned[:, column] >> np.uint64(40)) & np.uint64(exponents - 1)).astype(
            np.uint32
        )
        return (mantissa | (exponent << np.uint32(23))).view(np.float32)

    # Every second thread takes its logarithm close to 1, where the error bound is absolute.
    near = np.arange(THREADS) % 2 == 0
    return {
        "ex2": made(0, 117, 16, sign=True),  # 2^-10 <= |x| < 2^6
        "lg2": np.where(near, made(1, 126, 2), made(1, 64, 128)),
        "sin": made(2, 121, 8, sign=True),  # |x| < 4
        "cos": made(3, 121, 8, sign=True),
        "rsqrt": made(4, 64, 128),
        "rcp": made(5, 64, 128, sign=True),
        "sqrt": made(6, 64, 128),
        "tanh": made(7, 122, 8, sign=True),  # 2^-5 <= |x| < 8
        "sqrt_rn": made(4, 64, 128),
        "div_rn": made(5, 96, 64, sign=True),
        "over": made(6, 96, 64),
    }


def special(start: U64, rounds: int) -> Bounded:
    """Bounds on the words of the special kernel: see sm.words for their order."""
    rows = np.empty((rounds, SPECIAL_WORDS, THREADS, 2, 2))
    for step in range(rounds):
        at = arguments(start, step)
        for index, name in enumerate(FUNCTIONS):
            exact, error = reference(name, at[name], at["over"])
            rows[step, index // 2, :, index % 2, 0] = exact - error
            rows[step, index // 2, :, index % 2, 1] = exact + error
    flat = rows.reshape(-1, 2, 2)
    return Bounded(low=np.ascontiguousarray(flat[:, :, 0]), high=np.ascontiguousarray(flat[:, :, 1]))


def reference(name: str, x: F32, over: F32) -> tuple[F64, F64]:
    """The function at x (div_rn: x / over) in FP64, and how far from it a result may be."""
    if name in ("sqrt_rn", "div_rn"):
        rounded = np.sqrt(x) if name == "sqrt_rn" else x / over
        return rounded.astype(np.float64), np.zeros(x.size)
    wide = x.astype(np.float64)
    exact = _FUNCTIONS[name](wide)
    size = np.abs(exact)
    ulp: F64 = np.spacing(size.astype(np.float32)).astype(np.float64)
    errors: dict[str, F64] = {
        "ex2": 2.0 * ulp,
        "lg2": np.where((wide > 0.5) & (wide < 2.0), 2.0**-22, 2.0**-22 * size),
        "sin": np.full(x.size, 2.0**-20.5),
        "cos": np.full(x.size, 2.0**-20.5),
        "rsqrt": 2.0**-22.9 * size,
        "rcp": ulp,
        "sqrt": 2.0**-23 * size,
        "tanh": 2.0**-11 * size,
    }
    return exact, errors[name] + _ROUNDING_ULP * ulp + HOST_ERROR * size


def _reciprocal_root(x: F64) -> F64:
    return 1.0 / np.sqrt(x)


_FUNCTIONS: dict[str, Callable[[F64], F64]] = {
    "ex2": np.exp2,
    "lg2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "rsqrt": _reciprocal_root,
    "rcp": np.reciprocal,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
