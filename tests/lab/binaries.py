"""The binaries of the lab in the cache: those of a mirror, another etcd to upgrade to, and images of the lab's own."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.fleet.mirror.fill import Contents, ensure
from gpu_burnin.fleet.mirror.golang import Build, build_key, go_build, sha256
from gpu_burnin.fleet.mirror.programs import DOWNLOADS, ETCD, KUBERNETES_VERSION, MIRROR
from gpu_burnin.fleet.mirror.progress import Progress

from . import container_image
from .container_image import libraries, write_image, write_package_image
from .image import suite
from .paths import ARTIFACTS
from .preparing import preparing

# What a member is upgraded to; only the server differs for the tests.
NEXT_ETCD_VERSION = "3.7.3"
NEXT_ETCD = f"etcd-{NEXT_ETCD_VERSION}"
_NEXT_BUILD = Build(NEXT_ETCD, "etcd37", "go.etcd.io/etcd/server/v3", version=NEXT_ETCD_VERSION, modules=ARTIFACTS)
# After the etcd of the fleet.
_AFTER = max(number for number, build in enumerate(MIRROR.builds) if build.name in ETCD) + 1
BUILDS = (*MIRROR.builds[:_AFTER], _NEXT_BUILD, *MIRROR.builds[_AFTER:])


@dataclass(frozen=True)
class Image:
    """A container image of one program of the lab: the stage that makes it, the image's name, the files that stay."""

    stage: str
    build: Build
    name: str
    outputs: tuple[str, ...]
    command: tuple[str, ...] = ()

    def make(self, part: Path) -> None:
        """Build the program in `part`, and the archive beside it."""
        go_build([self.build], part)
        program = part / self.build.name
        needed = libraries(program) if self.build.nvml else ()
        write_image(part / f"{program.name}.tar", self.name, program, command=self.command, libraries=needed)

    def key(self) -> str:
        """A hash of all that goes into it: the program, and the code that packs it."""
        packed = (build_key(self.build), self.name, self.command, sha256(Path(container_image.__file__)))
        return hashlib.sha256(repr(packed).encode()).hexdigest()


IMAGES = (
    Image(
        "build the container image",
        Build("labtool", "labtool", ".", modules=ARTIFACTS),
        "lab.muster.dev/tool:1",
        ("labtool", "labtool.tar"),
        command=("pause",),
    ),
    Image(
        "build the device plugin",
        Build("deviceplugin", "deviceplugin", ".", nvml=True, modules=ARTIFACTS),
        "lab.muster.dev/device-plugin:1",
        ("deviceplugin.tar",),
    ),
)


@dataclass(frozen=True)
class PackageImage:
    """A container image of packages of the distribution, for programs that need more than themselves."""

    stage: str
    name: str
    outputs: tuple[str, ...]
    packages: tuple[str, ...]
    command: tuple[str, ...]
    build: None = None

    def make(self, part: Path) -> None:
        """Write the archive in `part`."""
        write_package_image(part / self.outputs[0], self.name, self.packages, suite(), self.command)

    def key(self) -> str:
        """A hash of all that goes into it, but for the packages' versions."""
        packed = (self.name, self.packages, self.command, suite(), sha256(Path(container_image.__file__)))
        return hashlib.sha256(repr(packed).encode()).hexdigest()


# What jobs of the lab run in: `muster run` starts Python in the image of whoever asks.
PYTHON = PackageImage(
    "make the image of Python", "lab.muster.dev/python:1", ("python.tar",), ("python3", "ca-certificates"), ("python3",)
)
CONTENTS = Contents(
    "bin", KUBERNETES_VERSION, BUILDS, DOWNLOADS, MIRROR.site, (*IMAGES[1:], PYTHON, *MIRROR.made), IMAGES[:1]
)


def ensure_binaries(progress: Progress | None = None) -> Path:
    """Return the directory with all binaries, their SHA256SUMS and the lab's container images.

    Cold on 2 cores a build takes 9 minutes, on a busy machine more. Raises GpuBurninError when neither a download nor a
    build is possible.
    """
    with preparing(progress) as shown:
        return ensure(CONTENTS, shown)
