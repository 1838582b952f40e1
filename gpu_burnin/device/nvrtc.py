"""NVRTC through ctypes: CUDA C to machine code, with our options and no others.

CuPy's own way to it appends -ftz=true behind the caller's options (cupy issue 9576), which makes a kernel read a
subnormal as zero. Values and names are those of nvrtc.h (CUDA 13.5); they are the same in CUDA 12.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from gpu_burnin.device.port import DeviceError
from gpu_burnin.device.wheels import open_first, wheel_files

# The one place of the options that every kernel is compiled with, beside the target. What decides how numbers are
# read and rounded is said even where it is the default.
OPTIONS = ("-std=c++17", "-ftz=false", "-prec-div=true", "-prec-sqrt=true", "-fmad=true")
_WHEELS = {13: "nvidia-cuda-nvrtc", 12: "nvidia-cuda-nvrtc-cu12"}
_LOG_CHARACTERS = 600

_PTR, _INT = ctypes.c_void_p, ctypes.c_int
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "nvrtcVersion": (_PTR, _PTR),
    "nvrtcGetNumSupportedArchs": (_PTR,),
    "nvrtcGetSupportedArchs": (_PTR,),
    "nvrtcCreateProgram": (_PTR, ctypes.c_char_p, ctypes.c_char_p, _INT, _PTR, _PTR),
    "nvrtcCompileProgram": (_PTR, _INT, _PTR),
    "nvrtcDestroyProgram": (_PTR,),
    "nvrtcGetProgramLogSize": (_PTR, _PTR),
    "nvrtcGetProgramLog": (_PTR, ctypes.c_char_p),
    "nvrtcGetCUBINSize": (_PTR, _PTR),
    "nvrtcGetCUBIN": (_PTR, ctypes.c_char_p),
    "nvrtcGetPTXSize": (_PTR, _PTR),
    "nvrtcGetPTX": (_PTR, ctypes.c_char_p),
}


def soname(cuda_major: int) -> str:
    """The library's name, which has the major version of CUDA in it."""
    return f"libnvrtc.so.{cuda_major}"


def library_paths(cuda_major: int) -> tuple[str, ...]:
    """Where the library may be: in the nvidia wheel, else where the loader looks."""
    wheel = _WHEELS.get(cuda_major)
    found = (path for _, path in wheel_files((wheel,) if wheel else (), (soname(cuda_major),)))
    return (*found, soname(cuda_major))


def load_library(cuda_major: int, open_library: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """libnvrtc of this major version of CUDA. Raises DeviceError when there is none."""
    texts = {"nvrtcGetErrorString": (ctypes.c_char_p, (_INT,))}
    try:
        return open_first(library_paths(cuda_major), _SIGNATURES, texts, open_library)
    except OSError as error:
        raise DeviceError(f"NVRTC cannot be loaded ({error}): install gpu-burnin[cuda{cuda_major}]") from error


def target_for(capability: tuple[int, int], known: Sequence[int]) -> str:
    """What to compile for: "sm_90" is machine code for 9.0, which later minor versions run as well; "compute_90" is
    PTX, where the library knows no architecture of this major version and the driver has to translate.

    `known` are the library's architectures as 10 x major + minor. Raises DeviceError when all are newer.
    """
    own = 10 * capability[0] + capability[1]
    usable = [arch for arch in known if arch <= own]
    if not usable:
        raise DeviceError(
            f"NVRTC compiles for no compute capability as old as {capability[0]}.{capability[1]}: install "
            "gpu-burnin[cuda12], or take a GPU that CUDA 13 supports"
        )
    best = max(usable)
    return f"{'sm' if best // 10 == capability[0] else 'compute'}_{best}"


class Nvrtc:
    """The compiler of a loaded library."""

    def __init__(self, library: Any) -> None:
        self._library = library
        major, minor, count = _INT(), _INT(), _INT()
        self._call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.version = f"{major.value}.{minor.value}"
        self._call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        known = (_INT * count.value)()
        self._call("nvrtcGetSupportedArchs", known)
        self.architectures: tuple[int, ...] = tuple(known)

    def compile(self, source: str, target: str) -> bytes:
        """Machine code, or PTX for a target "compute_...". Raises DeviceError with what the compiler said."""
        return self.compile_and_tell(source, target)[0]

    def compile_and_tell(self, source: str, target: str) -> tuple[bytes, str]:
        """The same, and what the compiler said in spite of success: its warnings."""
        options = [option.encode() for option in (f"-arch={target}", *OPTIONS)]
        program = _PTR()
        self._call("nvrtcCreateProgram", ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        try:
            status = self._library.nvrtcCompileProgram(
                program, len(options), (ctypes.c_char_p * len(options))(*options)
            )
            log = " ".join(self._read(program, "ProgramLog").rstrip(b"\0").decode(errors="replace").split())
            if status != 0:
                raise DeviceError(
                    f"NVRTC {self.version} cannot compile the kernels for {target} ({self._error(status)}: "
                    f"{log[:_LOG_CHARACTERS]}): install the versions of requirements/, or report this"
                )
            return self._read(program, "CUBIN" if target.startswith("sm_") else "PTX"), log
        finally:
            self._library.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: Any, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        content = ctypes.create_string_buffer(size.value)
        self._call(f"nvrtcGet{what}", program, content)
        return content.raw

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status != 0:
            raise DeviceError(
                f"{name} of NVRTC failed ({self._error(status)}): install gpu-burnin[cuda12] or [cuda13] again"
            )

    def _error(self, status: int) -> str:
        text = self._library.nvrtcGetErrorString(status)
        return text.decode(errors="replace") if text else f"status {status}"
