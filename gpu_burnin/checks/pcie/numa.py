"""The host's memory beside a GPU: allocating on the NUMA node that the kernel names for its PCI device."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.telemetry.pci import SYS


@dataclass(frozen=True)
class Place:
    """The node in use (None: wherever the kernel puts memory) and why there is none, for the report."""

    node: int | None
    note: str = ""


@contextmanager
def near_device(pci_address: str, sys_root: Path = SYS) -> Iterator[Place]:
    """Run on the CPUs of the device's NUMA node, so that memory first touched meanwhile lies there; then as before.

    The node is sysfs's numa_node of the device, its CPUs the node's cpulist, of which those are used that this
    process may run on. Where the node is not known, or none of its CPUs may be used, nothing changes.
    """
    node, cpus, note = _node(pci_address, sys_root)
    before = os.sched_getaffinity(0)
    wanted = cpus & before
    if node is None or not wanted:
        yield Place(None, note or f"this process may not run on a CPU of NUMA node {node}")
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        yield Place(None, f"the kernel refused the CPUs of NUMA node {node} ({error.strerror})")
        return
    try:
        yield Place(node)
    finally:
        os.sched_setaffinity(0, before)


def numa_nodes() -> int:
    """How many NUMA nodes the kernel shows; 0 where it does not tell."""
    return sum(1 for _ in (SYS / "devices/system/node").glob("node[0-9]*"))


def is_virtual() -> bool:
    """Whether a hypervisor runs this machine: the processor flag that says so (CPUID leaf 1, ECX bit 31)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return False
    return any("hypervisor" in line.split() for line in lines if line.startswith("flags"))


def _node(pci_address: str, sys_root: Path) -> tuple[int | None, set[int], str]:
    try:
        node = int((sys_root / "bus/pci/devices" / pci_address / "numa_node").read_text(encoding="ascii"))
        if node < 0:
            return None, set(), "the kernel names no NUMA node for the GPU"
        text = (sys_root / f"devices/system/node/node{node}/cpulist").read_text(encoding="ascii")
        return node, cpu_list(text), ""
    except (OSError, ValueError):
        return None, set(), "the kernel does not tell the NUMA node of the GPU"


def cpu_list(text: str) -> set[int]:
    """CPU numbers of a kernel list such as "0-3,8,10-11". Raises ValueError for anything else."""
    cpus: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cpus |= set(range(int(first), int(last or first) + 1))
    return cpus
