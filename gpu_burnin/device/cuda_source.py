"""CUDA C that packages carry as files: read, put together, and given the constants that host and device share."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import resources

# Threads of a block, for every kernel that strides over words.
THREADS = 256


def defines(constants: Mapping[str, object]) -> str:
    """A `#define` for each constant."""
    return "".join(f"#define {name} {value}\n" for name, value in constants.items())


def cuda_text(package: str, name: str) -> str:
    """A file of a package as it is."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def cuda_source(package: str, *names: str, **constants: object) -> str:
    """Files of a package behind the constants and words.cuh: THREADS, types and the words of exact.random_words."""
    parts = (cuda_text("gpu_burnin.device", "words.cuh"), *(cuda_text(package, name) for name in names))
    return defines({"THREADS": THREADS, **constants}) + "\n".join(parts)
