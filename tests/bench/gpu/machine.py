"""What this machine brings: system, packages, and what is missing. Standard library alone."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGES = (
    "cupy-cuda12x", "cupy-cuda13x", "nvidia-cublas", "nvidia-cublas-cu12", "nvidia-cuda-nvrtc",
    "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12", "nvidia-nccl-cu12", "nvidia-nccl-cu13",
    "nvidia-ml-py", "numpy", "ml-dtypes", "PyYAML", "click", "jinja2", "jsonschema", "rich", "pytest",
)  # fmt: skip
# Modules, and what goes without them.
_NEEDED = {
    "numpy": "everything on the GPU", "cupy": "everything on the GPU", "yaml": "everything on the GPU",
    "ml_dtypes": "the tests", "pynvml": "the node's state and the burn-ins", "click": "the burn-ins",
    "jinja2": "the burn-ins", "jsonschema": "the burn-ins", "rich": "the burn-ins", "pytest": "the tests",
}  # fmt: skip
# What the workers of a burn-in import: they do not see PYTHONPATH.
_WORKERS_NEED = ("numpy", "yaml", "cupy", "pynvml")


def system() -> dict[str, Any]:
    """Python, kernel, processors, memory."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    return {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": pages * page_bytes,
        "shm_bytes": shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
    }


def packages() -> dict[str, str]:
    """Versions of the installed packages that matter."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def missing() -> str:
    """One sentence on the modules that are missing, "" when none is."""
    told = [f"{name} ({what})" for name, what in _NEEDED.items() if find_spec(name) is None]
    unseen = [name for name in _unseen_by_workers() if find_spec(name) is not None]
    sentences = []
    if told:
        sentences.append(f"missing here: {', '.join(told)}; install their wheels into this Python")
    if unseen:
        sentences.append(
            f"the workers of a burn-in do not see {', '.join(unseen)}, which PYTHONPATH brings; install them"
        )
    return "; ".join(sentences)


def _unseen_by_workers() -> list[str]:
    try:
        from gpu_burnin.engine.worker_process import worker_environment
    except ImportError:  # of what is missing here too, and told
        return []
    code = f"from importlib.util import find_spec\nprint(*[n for n in {_WORKERS_NEED!r} if find_spec(n) is None])"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=worker_environment(os.environ, "cuda", None),
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.split()
