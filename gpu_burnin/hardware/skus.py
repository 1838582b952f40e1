"""What each GPU model should look like and reach, by PCI id (skus.yaml). Never by marketing name."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from gpu_burnin.hardware.drivers import DriverNeeds, dotted_version, needs
from gpu_burnin.hardware.located import Located, load

DEFAULT_PATH = Path(__file__).with_name("skus.yaml")
NVIDIA_VENDOR_ID = 0x10DE
# Data paths of a GPU that make matrix products; *_vector are those without tensor cores.
DATA_PATHS = (
    "fp64_vector", "fp64_tensor", "fp32", "tf32", "bf16", "fp16", "int8", "fp8", "fp16_vector", "bf16_vector",
    "int8_vector",
)  # fmt: skip
# Those that every supported model has; the others depend on the model, and on what is published of it.
_EVERY_PATH = ("fp64_vector", "fp32")
# Precisions of the gemm check, each with the data path that it is meant for.
PATH_OF = {
    "fp64": "fp64_vector", "fp32": "fp32", "tf32": "tf32", "bf16": "bf16", "fp16": "fp16", "int8": "int8",
    "fp8_e4m3": "fp8",
}  # fmt: skip
FLOOR_NAMES = (
    *(f"gemm_{precision}" for precision in PATH_OF),
    "hbm_rate", "h2d", "d2h", "p2p", "all_reduce_busbw",
)  # fmt: skip
# What a power limit may differ from the one that was meant.
POWER_LIMIT_TOLERANCE_W = 1.0
# Units of rates in operations or bytes per second.
RATE_UNITS: dict[str, float] = {"B/s": 1.0, "GB/s": 1e9, "TFLOP/s": 1e12, "TOP/s": 1e12}


class Confidence(StrEnum):
    """Where a figure comes from: measured on hardware, given by a vendor, or computed from those."""

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
    """One GPU model. `unsupported` names fields of GpuState that this model may leave unread.

    `nvlink_links` are those of the boards or, without `fabric`, of the bridges that the model is made for: what a node
    should have is decided in telemetry.node_links. `module_power`: GPU and processor share the power of one module, so
    the enforced limit follows the processor's. `peaks` is what each data path reaches at most, in TFLOP/s or TOP/s,
    dense; a path the model lacks is missing. `driver`: what it needs where that differs from its architecture's needs.
    """

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
    module_power: bool
    unsupported: frozenset[str]
    peaks: dict[str, float]
    peaks_source: str
    floors: dict[str, Floor]
    driver: DriverNeeds | None
    source: str

    @property
    def precisions(self) -> tuple[str, ...]:
        """The precisions of the gemm check that this model has hardware for."""
        return tuple(precision for precision, path in PATH_OF.items() if path in self.peaks)

    @property
    def fabric_probe(self) -> bool:
        """Whether NVML tells if a GPU of this model joined the fabric of its switches."""
        return self.fabric and "fabric_state" not in self.unsupported


@dataclass(frozen=True)
class Limit:
    """A limit on a counter that holds for every model; a node over it fails, so it is never a derived figure."""

    name: str
    value: int
    source: str
    confidence: Confidence


@dataclass(frozen=True)
class NewField:
    """A value that drivers know only from `since_driver` on, such as (565,) or (580, 82), some perhaps earlier.

    `every_model`: whether each supported model then has it; False: any of them may say that it does not.
    """

    name: str
    since_driver: tuple[int, ...]
    every_model: bool
    source: str


@dataclass(frozen=True)
class SkuTable:
    """All models, the limits on counters, and the fields that older drivers do not have."""

    skus: dict[str, Sku]
    limits: dict[str, Limit]
    new_fields: dict[str, NewField]

    def find(self, pci_device_id: int, pci_subsystem_id: int) -> Sku | None:
        """The model of a GPU by NVML's combined ids (device << 16 | vendor).

        A listed subsystem decides; an unlisted one (a board maker's own) counts as the model only
        when the device id alone leaves no choice.
        """
        if pci_device_id & 0xFFFF != NVIDIA_VENDOR_ID:
            return None
        same_device = [sku for sku in self.skus.values() if sku.device_id == pci_device_id >> 16]
        exact = [sku for sku in same_device if pci_subsystem_id >> 16 in sku.subsystem_ids]
        candidates = exact or same_device
        return candidates[0] if len(candidates) == 1 else None

    def problem(self, key: str) -> str:
        """Why a key names no model, with those that may be meant; "" where it names one."""
        if key in self.skus:
            return ""
        near = self.near(key)
        hint = f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(self.skus)}"
        return f"skus.yaml has no such model; {hint}"

    def near(self, key: str) -> tuple[str, ...]:
        """Keys of models that may be meant by one that is not there: those that begin alike, else the most similar."""
        words = [word for word in re.split(r"[^a-z0-9]+", key.lower()) if word]
        alike = tuple(one for one in self.skus if words and one.split("-")[0] == words[0])
        # A form of the module (sxm, pcie) that is named narrows it down.
        fitting = tuple(one for one in alike if all(word in one for word in words))
        return fitting or alike or tuple(difflib.get_close_matches(key.lower(), self.skus, 1))

    def may_miss(self, sku: Sku, field: str, driver_version: str) -> bool:
        """Whether this model with this driver may leave the field unread."""
        new = self.new_fields.get(field)
        optional = new is not None and not new.every_model
        return optional or field in sku.unsupported or self.is_newer(field, driver_version)

    def is_newer(self, field: str, driver_version: str) -> bool:
        """Whether the field came after this driver, such as 550.163.01; False where the version says nothing."""
        new = self.new_fields.get(field)
        version = tuple(int(part) for part in re.findall(r"\d+", driver_version))
        return new is not None and bool(version) and version < new.since_driver


_REQUIRED = (
    "name", "architecture", "device_id", "subsystem_ids", "memory_bytes", "nvlink_links", "fabric",
    "pcie_generation", "pcie_width", "ecc", "mig_capable", "peaks", "source",
)  # fmt: skip


def _positive(value: Located) -> float:
    number = value.number()
    if not 0 < number < float("inf"):
        raise value.error(f"must be above 0, not {value.text()!r}")
    return number


def _floor(name: str, value: Located) -> Floor:
    if name not in FLOOR_NAMES:
        raise value.error(f"unknown floor {name!r}: choose from {', '.join(FLOOR_NAMES)}")
    entry = value.mapping(("value", "unit", "source", "confidence"))
    unit = entry["unit"].text()
    if unit not in RATE_UNITS:
        raise entry["unit"].error(f"must be one of {', '.join(RATE_UNITS)}, not {unit!r}")
    return Floor(
        name=name,
        value=_positive(entry["value"]),
        unit=unit,
        source=entry["source"].text(),
        confidence=entry["confidence"].choice(Confidence),
    )


def _peaks(value: Located) -> tuple[dict[str, float], str]:
    entry = value.mapping(("values", "source"))
    optional = tuple(path for path in DATA_PATHS if path not in _EVERY_PATH)
    values = entry["values"].mapping(_EVERY_PATH, optional)
    return {path: _positive(peak) for path, peak in values.items()}, entry["source"].text()


def _sku(key: str, value: Located) -> Sku:
    entry = value.mapping(_REQUIRED, ("module_power", "unsupported", "floors", "driver"))
    peaks, peaks_source = _peaks(entry["peaks"])
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
        module_power=entry["module_power"].flag() if "module_power" in entry else False,
        unsupported=frozenset(entry["unsupported"].texts()) if "unsupported" in entry else frozenset(),
        peaks=peaks,
        peaks_source=peaks_source,
        floors={name: _floor(name, floor) for name, floor in floors.items()},
        driver=needs(entry["driver"]) if "driver" in entry else None,
        source=entry["source"].text(),
    )


def _limit(name: str, value: Located) -> Limit:
    entry = value.mapping(("value", "source", "confidence"))
    confidence = entry["confidence"].choice(Confidence)
    if confidence is Confidence.DERIVED:
        raise entry["confidence"].error("a derived figure may only warn")
    return Limit(name, entry["value"].integer(), entry["source"].text(), confidence)


def _new_field(name: str, value: Located) -> NewField:
    entry = value.mapping(("since_driver", "source"), ("every_model",))
    version = dotted_version(entry["since_driver"])
    every_model = entry["every_model"].flag() if "every_model" in entry else True
    return NewField(name, tuple(map(int, version.split("."))), every_model, entry["source"].text())


@cache
def load_skus(path: Path = DEFAULT_PATH) -> SkuTable:
    """Read the table; raises HardwareDataError naming file and line."""
    entry = load(path).mapping(("limits", "new_fields", "skus"))
    return SkuTable(
        skus={key: _sku(key, value) for key, value in entry["skus"].entries().items()},
        limits={key: _limit(key, value) for key, value in entry["limits"].entries().items()},
        new_fields={key: _new_field(key, value) for key, value in entry["new_fields"].entries().items()},
    )
