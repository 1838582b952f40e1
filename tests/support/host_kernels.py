"""CUDA C compiled for the host, as a library."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest

from gpu_burnin.device.cuda_words import THREADS

# Threads of a block on the host: as many real threads.
HOST_THREADS = 4
THREADED = ("-std=c++20", "-w", "-pthread")
SANITIZED = ("-fsanitize=undefined", "-fno-sanitize-recover")


def with_host_threads(source: str) -> str:
    """The kernels with blocks of HOST_THREADS threads."""
    define = "#define THREADS {}\n"
    assert source.count(define.format(THREADS)) == 1
    return source.replace(define.format(THREADS), define.format(HOST_THREADS))


def compile_for_host(folder: Path, source: str, *options: str) -> ctypes.CDLL:
    """The library made of this source; skips where no compiler can do it."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++")
    code, library = folder / "kernels.cpp", folder / "kernels.so"
    code.write_text(source)
    command = [compiler, "-O1", *options, "-shared", "-fPIC", "-o", str(library), str(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "_Float16" in done.stderr:
        pytest.skip("needs a g++ that knows _Float16")
    assert done.returncode == 0, done.stderr
    return ctypes.CDLL(str(library))
