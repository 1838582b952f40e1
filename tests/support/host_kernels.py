"""CUDA C compiled for the host, as a library."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_burnin.device.cuda_source import THREADS
from gpu_burnin.fleet.mirror.cache import locked

LIBRARIES = Path(__file__).resolve().parents[2] / "build/host-kernels"
# Threads of a block on the host: as many real threads.
HOST_THREADS = 4
THREADED = ("-std=c++20", "-w", "-pthread")
SANITIZED = ("-fsanitize=undefined", "-fno-sanitize-recover")


def with_host_threads(source: str) -> str:
    """The kernels with blocks of HOST_THREADS threads."""
    define = "#define THREADS {}\n"
    assert source.count(define.format(THREADS)) == 1
    return source.replace(define.format(THREADS), define.format(HOST_THREADS))


def compile_for_host(source: str, *options: str) -> ctypes.CDLL:
    """The library made of this source, once for each source and compiler; skips where no compiler can do it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    command = [compiler, "-O1", *options, "-shared", "-fPIC"]
    made_with = f"{command} {Path(compiler).resolve().stat().st_mtime_ns}\n{source}"
    library = LIBRARIES / f"{hashlib.sha256(made_with.encode()).hexdigest()[:16]}.so"
    with locked(library.with_suffix(".lock")):
        if not library.exists():
            _compile(command, source, library)
    return ctypes.CDLL(str(library))


@functools.cache
def parameters(source: str) -> dict[str, tuple[str, ...]]:
    """The types of each kernel's parameters, as C writes them; "*" for every pointer."""
    command = ["g++", "-E", "-P", "-x", "c++", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"__global__\s+void\s+(?:__launch_bounds__\([^)]*\)\s*)?(\w+)\(([^)]*)\)", text)
    return {name: tuple("*" if "*" in one else one.split()[0] for one in listed.split(",")) for name, listed in found}


def _compile(command: list[str], source: str, library: Path) -> None:
    code, unfinished = library.with_suffix(".cpp"), library.with_suffix(".unfinished")
    code.write_text(source)
    done = subprocess.run([*command, "-o", unfinished, code], capture_output=True, text=True, check=False)
    if "_Float16" in done.stderr:
        pytest.skip("needs a g++ that knows _Float16")
    assert done.returncode == 0, done.stderr
    unfinished.replace(library)
