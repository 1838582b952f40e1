"""All CUDA sources through the real compiler, with the options of production: NVRTC needs no GPU.

Skipped where NVRTC is not installed (`pip install nvidia-cuda-nvrtc`, part of gpu-burnin[cuda13]).
"""

from __future__ import annotations

import ctypes
import re
from importlib import metadata

import pytest

from gpu_burnin.compute import (
    collectives_source,
    cuda_source,
    host_link_source,
    memory_source,
    peer_source,
    sm_source,
)
from gpu_burnin.compute.cuda_device import COMPILER_OPTIONS

pytestmark = pytest.mark.slow

_SOURCES = {
    "cuda": cuda_source.SOURCE,
    "sm": sm_source.SOURCE,
    "memory": memory_source.SOURCE,
    "host_link": host_link_source.SOURCE,
    "peer": peer_source.SOURCE,
    "collectives": collectives_source.SOURCE,
}
# FP32 instructions that -ftz=true changes, and why that does no harm there.
_FLUSHED = {
    "cvt.rzi.ftz.s32.f32": "digest: a subnormal is 0 as an integer in any case, and its bits tell it from 0",
    "mul.ftz.f32": "digest: taking a power of two away; what ends as 0 and was not, by its bits, goes the general way",
    "cvt.ftz.f64.f32": "digest: only of numbers that are not subnormal by their bits",
    "cvt.rn.ftz.f32.f64": "fill: operands are normal (exact.exponent_span)",
    **dict.fromkeys(
        ("fma.rn.ftz.f32", "mul.rn.ftz.f32", "add.rn.ftz.f32", "sqrt.rn.ftz.f32", "div.rn.ftz.f32"),
        "sm: no argument and no result is subnormal (sm_golden, sm_special)",
    ),
}


@pytest.fixture(scope="module")
def nvrtc() -> ctypes.CDLL:
    """The compiler's library, from a wheel or the loader's path."""
    names = ("libnvrtc.so.13", "libnvrtc.so.12")
    paths = [*names]
    for wheel in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            paths += [str(file.locate()) for file in metadata.files(wheel) or () if file.name in names]
        except metadata.PackageNotFoundError:
            continue
    for path in paths:
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")


def _ptx(nvrtc: ctypes.CDLL, source: str, arch: int) -> str:
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None) == 0
    options = [option.encode() for option in (*COMPILER_OPTIONS, f"-arch=compute_{arch}")]
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    texts = []
    for name in ("ProgramLog", "PTX"):
        assert getattr(nvrtc, f"nvrtcGet{name}Size")(program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert getattr(nvrtc, f"nvrtcGet{name}")(program, text) == 0
        texts.append(text.value.decode())
        assert status == 0, texts[0]
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    assert texts[0].strip() == "", "a warning"
    return texts[1]


@pytest.mark.parametrize("name", _SOURCES)
def test_every_source_compiles_without_a_warning_for_the_oldest_and_the_newest_gpu(
    nvrtc: ctypes.CDLL, name: str
) -> None:
    for arch in (80, 100):
        flushed = set(re.findall(r"^\s*([a-z0-9.]+\.ftz\.[a-z0-9.]+)", _ptx(nvrtc, _SOURCES[name], arch), re.M))
        assert flushed <= set(_FLUSHED), (
            "an instruction that takes subnormals for 0: say why that is right, or avoid it"
        )
        assert flushed or name not in ("cuda", "sm"), "the options do not flush: the reasons above say nothing"
