"""Compiling by NVRTC: the real library where its wheel is installed (it needs no GPU), and what goes wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from gpu_burnin.checks.sources import kernel_sources
from gpu_burnin.device import nvrtc
from gpu_burnin.device.nvrtc import Nvrtc, target_for
from gpu_burnin.device.port import DeviceError

SOURCES = kernel_sources()
_BETWEEN = ((8, 9), (10, 0), (10, 3))
_HALVE = 'extern "C" __global__ void halve(float* x) { x[0] = x[0] * 0.5f; }'


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize(
    "capability", [(8, 0), (9, 0), (12, 0), *(pytest.param(c, marks=pytest.mark.soak) for c in _BETWEEN)], ids=str
)
def test_every_source_compiles_without_a_warning_for_every_architecture(
    compiler: Nvrtc, name: str, capability: tuple[int, int]
) -> None:
    target = target_for(capability, compiler.architectures)
    assert target == "sm_{}{}".format(*capability)
    image, said = compiler.compile_and_tell(SOURCES[name], target)
    assert image.startswith(b"\x7fELF")
    assert said == ""


def test_no_source_is_another_one_for_another_architecture() -> None:
    """So the oldest, the usual and the newest stand for those between them."""
    assert SOURCES and not any("__CUDA_ARCH" in source for source in SOURCES.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", SOURCES)
def test_no_instruction_of_a_kernel_takes_subnormals_for_0(
    compiler: Nvrtc, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert b".ftz." not in compiler.compile(SOURCES[name], "compute_90")
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "-ftz=true"))
    flushed = b".ftz." in compiler.compile(SOURCES[name], "compute_90")
    assert flushed == (name in ("exact", "sm")), "the test would not see it"


def test_subnormal_numbers_are_not_flushed(compiler: Nvrtc, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = compiler.compile(_HALVE, "compute_80").decode()
    assert re.search(r"\bmul\.f32\b", kept) and ".ftz" not in kept
    monkeypatch.setattr(nvrtc, "OPTIONS", (*nvrtc.OPTIONS, "-ftz=true"))
    assert "mul.ftz.f32" in compiler.compile(_HALVE, "compute_80").decode(), "the test would not see it"


def test_the_compiler_s_own_words_are_in_the_error(compiler: Nvrtc) -> None:
    with pytest.raises(DeviceError, match=r"cannot compile the kernels for sm_90 .*COMPILATION.*kernels\.cu\(1\)"):
        compiler.compile("this is no CUDA", "sm_90")
    with pytest.raises(DeviceError, match=r"cannot compile the kernels for sm_1 .*OPTION"):
        compiler.compile(_HALVE, "sm_1")


@pytest.mark.parametrize(
    ("capability", "known", "target"),
    [
        ((9, 0), (75, 80, 90, 100), "sm_90"),
        ((8, 9), (75, 80, 86), "sm_86"),
        ((10, 3), (90, 100), "sm_100"),
        ((10, 3), (80, 90), "compute_90"),
        ((12, 1), (100, 120, 121), "sm_121"),
    ],
)
def test_the_target_is_what_the_gpu_runs_and_the_library_knows(
    capability: tuple[int, int], known: Sequence[int], target: str
) -> None:
    assert target_for(capability, known) == target


def test_a_gpu_older_than_all_that_is_known_says_so() -> None:
    with pytest.raises(DeviceError, match=r"no compute capability as old as 7\.0: install gpu-burnin\[cuda12\]"):
        target_for((7, 0), (75, 80))


def test_a_missing_library_says_what_to_install() -> None:
    def missing(path: str) -> Any:
        raise OSError(f"{path}: cannot open shared object file")

    with pytest.raises(DeviceError, match=r"NVRTC cannot be loaded .*cannot open.*install gpu-burnin\[cuda12\]"):
        nvrtc.load_library(12, missing)
