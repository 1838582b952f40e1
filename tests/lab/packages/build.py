"""The whole repository, and its place in the cache."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from pathlib import Path

from gpu_burnin.fleet.mirror.cache import cache_dir, locked
from gpu_burnin.fleet.mirror.commands import run

from ..error import LabError
from ..image import SUITES, suite
from ..nvml import fake_nvml
from . import catalogue, deb, distribution, repository, toolkit
from .keys import keys

ARCHITECTURE = "x86_64"
MACHINE_DEB = "machine.deb"
_SOURCES = Path(__file__).parent
_LIBCUDA = "int cuInit(unsigned flags) { return flags ? 1 : 100; } /* invalid value, no device */\n"


def build(out: Path, binaries: Path | None = None) -> None:
    """Build into a folder that must not exist, with the toolkit where there are its binaries.

    Raises LabError without a C compiler or gpg.

    DISTRIBUTION/x86_64 is what stands for NVIDIA's repository; wrong-key/ and expired-key/ have it once more, signed by
    another and by an expired key; distribution/DISTRIBUTION has kernels and headers; keys/ each key and its
    fingerprint; machine.deb what makes a lab host such a machine.
    """
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as made, keys() as signers:
        libraries = _libraries(Path(made))
        for name in catalogue.DISTRIBUTIONS:
            folder = out / name / ARCHITECTURE
            repository.write(folder, catalogue.nvidia(name, libraries, binaries), signers["good"])
            for kind in ("wrong", "expired"):
                other = out / f"{kind}-key" / name / ARCHITECTURE
                repository.write_signed_otherwise(other, folder, signers[kind], kind)
            repository.write(out / "distribution" / name, distribution.packages(name, libraries), signers["good"])
        (out / "keys").mkdir()
        for kind, key in signers.items():
            (out / "keys" / f"{kind}.asc").write_text(key.public)
            (out / "keys" / f"{kind}.fingerprint").write_text(f"{key.fingerprint}\n")
    (out / MACHINE_DEB).write_bytes(deb.archive(distribution.machine()))


def ensure_repository(binaries: Path | None = None) -> Path:
    """The repository in the cache, built once for each state of its sources and of the toolkit's `binaries`.

    Without `binaries` (minutes of building, where the cache has none) it lacks the container toolkit.
    In it, `host` leads to the part for the distribution of this machine, which is that of the lab's hosts.
    """
    inputs = [fake_nvml().read_bytes(), *(path.read_bytes() for path in sorted(_SOURCES.rglob("*.py")))]
    inputs += [(binaries / name).read_bytes() for name in toolkit.BINARIES] if binaries is not None else []
    place = cache_dir() / "nvidia" / hashlib.sha256(b"|".join(inputs)).hexdigest()[:16]
    with locked(place.with_suffix(".lock")):
        if not place.exists():
            building = place.with_suffix(".building")
            shutil.rmtree(building, ignore_errors=True)
            build(building, binaries)
            (building / "host").symlink_to(SUITES[suite()])
            building.rename(place)
    return place


def _libraries(folder: Path) -> Path:
    """A folder with libnvidia-ml.so.1 and libcuda.so.1, as the loader and ldconfig take them."""
    shutil.copyfile(fake_nvml(), folder / "libnvidia-ml.so.1")
    source = folder / "libcuda.c"
    source.write_text(_LIBCUDA)
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise LabError("no C compiler for the stand-in of libcuda.so.1: install gcc")
    run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", source])
    return folder
