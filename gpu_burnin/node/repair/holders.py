"""Who has the GPUs' device files open. Reads /proc alone, so that it says it of a GPU that is lost, too."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.system.files import read_text

# Every CUDA context has it open; who only watches a GPU by NVML has not.
_COMPUTE = "/dev/nvidia-uvm"
_DEVICES = "/dev/nvidia"
# Services that use GPUs without doing work on them. A reset stops those that run, and starts them again.
SERVICES = frozenset(
    {
        "dcgm-exporter.service",
        "dcgm.service",
        "gpu-burnin-watch.service",
        "nvidia-dcgm-exporter.service",
        "nvidia-dcgm.service",
        "nvidia-persistenced.service",
    }
)


@dataclass(frozen=True)
class Holder:
    """A process with a GPU's device file open. `unit` is its systemd unit or its pod's slice, "" where unknown."""

    pid: int
    name: str
    unit: str
    devices: tuple[str, ...]

    @property
    def works(self) -> bool:
        """Whether it computes, or may."""
        return self.unit not in SERVICES and any(device.startswith(_COMPUTE) for device in self.devices)

    @property
    def text(self) -> str:
        """For people."""
        return f"{self.name} (process {self.pid}{f', {self.unit}' if self.unit else ''})"


def holders(root: Path = Path("/")) -> tuple[Holder, ...]:
    """All of them but this process, by number. A process that ends meanwhile is none."""
    numbers = sorted(int(entry.name) for entry in (root / "proc").iterdir() if entry.name.isdigit())
    return tuple(found for pid in numbers if pid != os.getpid() and (found := _holder(root / "proc" / str(pid), pid)))


def listed(found: Iterable[Holder]) -> str:
    """As people list them."""
    return ", ".join(holder.text for holder in found)


def _holder(directory: Path, pid: int) -> Holder | None:
    devices = tuple(sorted(set(_open_devices(directory / "fd"))))
    if not devices:
        return None
    try:
        return Holder(pid, read_text(directory / "comm", errors="replace").strip(), _unit(directory), devices)
    except OSError:
        return None


def _open_devices(directory: Path) -> Iterator[str]:
    try:
        links = [*directory.iterdir()]
    except OSError:
        return
    for link in links:
        try:
            target = str(link.readlink())
        except OSError:
            continue
        if target.startswith(_DEVICES):
            yield target


def _unit(directory: Path) -> str:
    """The unit that a person knows: of /kubepods.slice/.../cri-1.scope the pod's slice, else the innermost service."""
    lines = read_text(directory / "cgroup", errors="replace").splitlines()
    parts = [part for line in lines for part in line.rpartition(":")[2].split("/")]
    pods = [part for part in parts if "-pod" in part and part.endswith(".slice")]
    units = [part for part in parts if part.endswith((".service", ".scope"))]
    return (pods or units or [""])[-1]
