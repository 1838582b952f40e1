"""What the ladder has to know of a node before each rung. Reads files only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.node.repair.holders import Holder, holders
from gpu_burnin.node.status import Status, read_status
from gpu_burnin.settings.config import Config
from gpu_burnin.system.files import read_text
from gpu_burnin.system.host import read_host

_SLOTS = "sys/bus/pci/slots"


@dataclass(frozen=True)
class RepairFacts:
    """The node now. `slots` are the names printed in the chassis, by PCI address without function (0000:91:00).

    `working` are the processes that compute on a GPU: with one of them nothing is done.
    """

    node: str
    boot_id: str
    machine_id: str
    dmi: Mapping[str, str]
    slots: Mapping[str, str]
    working: tuple[Holder, ...]
    status: Status


def look(config: Config, root: Path = Path("/")) -> RepairFacts:
    """Raises GpuBurninError where the state directory may not be read."""
    host = read_host(root)
    return RepairFacts(
        node=config.node_name,
        boot_id=host.boot_id,
        machine_id=host.machine_id,
        dmi=host.dmi,
        slots=pci_slots(root),
        working=tuple(holder for holder in holders(root) if holder.works),
        status=read_status(config, root),
    )


def pci_slots(root: Path = Path("/")) -> dict[str, str]:
    """Slot names by PCI address, as firmware and kernel know them; empty where they know none."""
    found = {}
    for path in sorted((root / _SLOTS).glob("*/address")):
        try:
            found[read_text(path).strip().lower()] = path.parent.name
        except OSError:
            continue
    return found
