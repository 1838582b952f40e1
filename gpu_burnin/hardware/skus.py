"""What each GPU model should look like and reach, by PCI id (skus.yaml). Never by marketing name."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from gpu_burnin.hardware.located import Located, load

DEFAULT_PATH = Path(__file__).with_name("skus.yaml")
NVIDIA_VENDOR_ID = 0x10DE


class Confidence(StrEnum):
    """Where a figure comes from: measured on hardware, said by a vendor, or worked out from those."""

    MEASURED = "measured"
    VENDOR = "vendor"
    DERIVED = "derived"


@dataclass(frozen=True)
class Floor:
    """The least a healthy GPU of this model reaches; `unit` is per second where it is a rate."""

    name: str
    value: float
    unit: str
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class Sku:
    """One GPU model. `unsupported` names fields of GpuState that this model may leave unread."""

    key: str
    name: str
    architecture: str
    device_id: int
    subsystem_ids: tuple[int, ...]
    memory_bytes: int
    nvlink_links: int
    fabric: bool
    pcie_generation: int
    pcie_width: int
    ecc: bool
    mig_capable: bool
    unsupported: frozenset[str]
    floors: dict[str, Floor]
    source: str


@dataclass(frozen=True)
class Limit:
    """A limit on a counter that holds for every model."""

    name: str
    value: int
    source: str


@dataclass(frozen=True)
class NewField:
    """A field that drivers know only from branch `since_driver` on (0: may always be missing)."""

    name: str
    since_driver: int
    source: str


@dataclass(frozen=True)
class SkuTable:
    """All models, the limits on counters, and the fields that older drivers do not have."""

    skus: dict[str, Sku]
    limits: dict[str, Limit]
    new_fields: dict[str, NewField]

    def find(self, pci_device_id: int, pci_subsystem_id: int) -> Sku | None:
        """The model of a GPU by NVML's combined ids (device << 16 | vendor).

        A listed subsystem decides; an unlisted one (a board maker's own) is taken for the model only
        when the device id alone leaves no choice.
        """
        if pci_device_id & 0xFFFF != NVIDIA_VENDOR_ID:
            return None
        same_device = [sku for sku in self.skus.values() if sku.device_id == pci_device_id >> 16]
        exact = [sku for sku in same_device if pci_subsystem_id >> 16 in sku.subsystem_ids]
        candidates = exact or same_device
        return candidates[0] if len(candidates) == 1 else None

    def may_miss(self, sku: Sku, field: str, driver_version: str) -> bool:
        """Whether this model with this driver may leave the field unread."""
        if field in sku.unsupported:
            return True
        new = self.new_fields.get(field)
        if new is None:
            return False
        branch = driver_version.split(".", 1)[0]
        return new.since_driver == 0 or (branch.isdigit() and int(branch) < new.since_driver)


_REQUIRED = (
    "name", "architecture", "device_id", "subsystem_ids", "memory_bytes", "nvlink_links", "fabric",
    "pcie_generation", "pcie_width", "ecc", "mig_capable", "source",
)  # fmt: skip


def _floor(name: str, value: Located) -> Floor:
    entry = value.mapping(("value", "unit", "source", "confidence"))
    return Floor(
        name=name,
        value=entry["value"].number(),
        unit=entry["unit"].text(),
        source=entry["source"].text(),
        confidence=entry["confidence"].choice(Confidence),
    )


def _sku(key: str, value: Located) -> Sku:
    entry = value.mapping(_REQUIRED, ("unsupported", "floors"))
    floors = entry["floors"].entries() if "floors" in entry else {}
    return Sku(
        key=key,
        name=entry["name"].text(),
        architecture=entry["architecture"].text(),
        device_id=entry["device_id"].integer(),
        subsystem_ids=tuple(item.integer() for item in entry["subsystem_ids"].items()),
        memory_bytes=entry["memory_bytes"].integer(),
        nvlink_links=entry["nvlink_links"].integer(),
        fabric=entry["fabric"].flag(),
        pcie_generation=entry["pcie_generation"].integer(),
        pcie_width=entry["pcie_width"].integer(),
        ecc=entry["ecc"].flag(),
        mig_capable=entry["mig_capable"].flag(),
        unsupported=frozenset(entry["unsupported"].texts()) if "unsupported" in entry else frozenset(),
        floors={name: _floor(name, floor) for name, floor in floors.items()},
        source=entry["source"].text(),
    )


def _limit(name: str, value: Located) -> Limit:
    entry = value.mapping(("value", "source"))
    return Limit(name, entry["value"].integer(), entry["source"].text())


def _new_field(name: str, value: Located) -> NewField:
    entry = value.mapping(("since_driver", "source"))
    return NewField(name, entry["since_driver"].integer(), entry["source"].text())


@cache
def load_skus(path: Path = DEFAULT_PATH) -> SkuTable:
    """Read the table; raises HardwareDataError naming file and line."""
    entry = load(path).mapping(("limits", "new_fields", "skus"))
    return SkuTable(
        skus={key: _sku(key, value) for key, value in entry["skus"].entries().items()},
        limits={key: _limit(key, value) for key, value in entry["limits"].entries().items()},
        new_fields={key: _new_field(key, value) for key, value in entry["new_fields"].entries().items()},
    )
