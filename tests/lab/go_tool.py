"""One program of a published Go module in the cache, for tests that alone need it: built when the first asks."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir, locked
from gpu_burnin.fleet.mirror.golang import Build, build_key, go_build, install_go, ready_go


def ensure_tool(build: Build) -> Path:
    """The binary, of a folder whose name says all that went into it. Cold it takes minutes. Raises GpuBurninError."""
    binary = cache_dir() / build.name / build_key(build)[:12] / build.name
    binary.parent.mkdir(parents=True, exist_ok=True)
    with locked(binary.parent / ".lock"):
        if not binary.exists():
            if not ready_go():
                install_go()
            with tempfile.TemporaryDirectory(dir=binary.parent) as part:
                go_build([build], Path(part))
                (Path(part) / build.name).rename(binary)
    return binary
