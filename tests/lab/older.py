"""Kubernetes of the minor before the fleet's, for tests of an upgrade over a minor: built on demand only."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir, locked
from gpu_burnin.fleet.mirror.fill import GO
from gpu_burnin.fleet.mirror.golang import build_key, go_build, install_go, ready_go
from gpu_burnin.fleet.mirror.kept import PART, keep
from gpu_burnin.fleet.mirror.programs import KUBERNETES, kubernetes_build
from gpu_burnin.fleet.mirror.progress import Progress

from .paths import ARTIFACTS
from .preparing import preparing

OLDER_VERSION = "1.35.4"
NAMES = tuple(name for name in KUBERNETES if name != "kubectl")
BUILDS = tuple(kubernetes_build(name, "kubernetes135", OLDER_VERSION, ARTIFACTS) for name in NAMES)
STAGE = f"build Kubernetes {OLDER_VERSION}"


def older_dir() -> Path:
    """Where they are once they are built; another directory for another way of building them."""
    key = hashlib.sha256(repr([build_key(build) for build in BUILDS]).encode()).hexdigest()
    return cache_dir() / "older" / f"{OLDER_VERSION}-{key[:12]}"


def ensure_older(progress: Progress | None = None) -> Path:
    """Return the directory with all of NAMES, each whole. Cold on two cores it takes ten minutes and more.

    Raises GpuBurninError when a build fails.
    """
    directory = older_dir()
    directory.mkdir(parents=True, exist_ok=True)
    with (
        preparing(progress) as shown,
        locked(directory / ".lock", lambda: shown.say("waiting for another build of the same programs")),
    ):
        if missing := [build for build in BUILDS if not (directory / build.name).exists()]:
            if not ready_go():
                shown.stage(GO)
                install_go()
            shown.stage(STAGE)
            with tempfile.TemporaryDirectory(prefix=PART, dir=directory) as part:
                go_build(missing, Path(part))
                for build in missing:
                    keep(Path(part) / build.name, directory / build.name)
    return directory
