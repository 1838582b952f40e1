"""The archives that GPU nodes and API servers' hosts install from, as files of a mirror.

They are built into the folder in which the roles look for them. So controller and mirror have the very same file, of
which the controller knows the SHA-256.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.mirror.commands import WITH_US, run
from gpu_burnin.fleet.mirror.golang import sha256
from gpu_burnin.fleet.mirror.kept import link_or_copy
from gpu_burnin.fleet.mirror.progress import Progress

# A checkout, or the folder of the installed collection: what the archives are built from.
SOURCES = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Wanted:
    """What hosts need, as the inventory has it: CUDA versions of the GPU nodes; Pythons and machine types of all."""

    cudas: tuple[str, ...]
    pythons: tuple[str, ...]
    machines: tuple[str, ...]


@dataclass(frozen=True)
class Archive:
    """A built archive, for GPU nodes of a CUDA version or for the hosts of the admitter, and its SHA-256."""

    path: Path
    sha256: str
    build: None = None

    @property
    def stage(self) -> str:
        """What the progress calls it."""
        return f"take {self.path.name}"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The one file: the hash of all that goes into it is in its name."""
        return (self.path.name,)

    def make(self, part: Path) -> None:
        """Have it in `part`. Raises GpuBurninError when it is not what was built."""
        link_or_copy(self.path, part / self.path.name)
        if sha256(part / self.path.name) != self.sha256:
            raise GpuBurninError(f"{self.path} is damaged: remove it, and run again")

    def key(self) -> str:
        """Of the file itself: one that was built anew may differ."""
        return self.sha256


def archives(folder: Path, wanted: Wanted, progress: Progress) -> tuple[Archive, ...]:
    """Have the archives in the controller's `folder`, each built once. Raises GpuBurninError."""
    program = SOURCES / "tools/wheelhouse.py"
    if not program.exists():
        raise GpuBurninError(
            f"{program} is not there, which builds the archives: run muster of a checkout, or tools/wheelhouse.py in "
            "the folder of the installed collection"
        )
    found = {}
    for what, words in _commands(wanted):
        progress.stage(f"build the archive for {what}")
        told = json.loads(run([*WITH_US, sys.executable, program, "--output", folder, *words]))
        found[told["path"]] = Archive(Path(told["path"]), told["sha256"])
    return tuple(found.values())


def _commands(wanted: Wanted) -> Iterator[tuple[str, Sequence[str | Path]]]:
    """As the roles gpu_burnin and admitter call the program."""
    kinds = [word for python in wanted.pythons for word in ("--python", python)]
    kinds += [word for machine in wanted.machines for word in ("--machine", machine)]
    for cuda in dict.fromkeys(wanted.cudas):
        yield f"GPU nodes of CUDA {cuda}", ["--cuda", cuda, *kinds]
    yield "the admitter", ["--requirements", SOURCES / "requirements/admitter.txt", *kinds]
