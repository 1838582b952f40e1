"""What NVML answers of a GPU, as data: recordings of public machines (*.yaml), and faults on top of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from gpu_burnin.system import yaml_text
from gpu_burnin.system.files import read_text

Answer = Any  # what a call writes, or the name of an NVML error


@dataclass(frozen=True)
class Profile:
    """One GPU of a model under a driver; `links`: None for a GPU without NVLink."""

    name: str
    ids: tuple[int, int]
    driver: str
    cuda: int
    calls: Mapping[str, Answer]
    fields: Mapping[int, Answer]
    links: Mapping[str, int] | None
    fabric: Answer
    field_ids: int
    field_gap: tuple[int, int]
    fabric_versions: tuple[int, ...]
    mig: tuple[tuple[str, int, int], ...] = ()  # instances: profile, multiprocessors, MiB

    def in_mig(self, instances: Sequence[Sequence[Any]]) -> Profile:
        """The GPU in MIG mode with these instances, which hide its remapped rows."""
        hidden: dict[str, Answer] = {"nvmlDeviceGetMigMode": [1, 1], "nvmlDeviceGetRemappedRows": "not_supported"}
        parts = tuple((str(profile), int(number), int(mib)) for profile, number, mib in instances)
        return self.changed(calls=hidden, mig=parts)

    def changed(self, **changes: Any) -> Profile:
        """The GPU with other answers: `calls`, `fields` and `fabric` are added to, the rest is replaced."""
        merged: dict[str, Any] = dict(changes)
        for part in ("calls", "fields", "fabric"):
            own = getattr(self, part)
            if part in changes and isinstance(changes[part], Mapping) and isinstance(own, Mapping):
                merged[part] = {**own, **changes[part]}
        return replace(self, **merged)


@cache
def _data(name: str) -> dict[str, Any]:
    path = Path(__file__).with_name(f"{name}.yaml")
    data = yaml_text.load(read_text(path), path)
    assert isinstance(data, dict)  # a file of this package, and the tests read it
    return data


def models() -> dict[str, dict[str, Any]]:
    """The recorded models by their key in skus.yaml."""
    found: dict[str, dict[str, Any]] = _data("models")["models"]
    return found


def faults() -> dict[str, dict[str, Any]]:
    """What a GPU answers that has a fault, by the fault's name: the keys of Profile.changed, and `kernel_log`."""
    return _data("faults")


def profile(model: str, branch: str, *, alone: bool = False) -> Profile:
    """A healthy GPU of a model under a driver branch; `alone`: cut off from the switches of its board."""
    data, library, own = _data("models"), _data("branches")[branch], models()[model]
    layers = [data["common"], data["architectures"][own["architecture"]], own]
    last = own["branches"][branch]
    calls = {name: answer for layer in layers for name, answer in layer.get("calls", {}).items()}
    calls = {name: answer for name, answer in calls.items() if name.split()[0] not in library["lacks"]}
    milliwatts = own["power_w"] * 1000
    named = {
        "nvmlDeviceGetName": own["name"],
        "nvmlDeviceGetVbiosVersion": own["vbios"],
        "nvmlDeviceGetBoardPartNumber": "692-00000-0000-000",
        "nvmlDeviceGetInforomImageVersion": "0000.0000.00.00",
        "nvmlDeviceGetGspFirmwareVersion": last.get("driver", library["driver"]),
        "nvmlDeviceGetMemoryInfo": {"total": own["memory_mib"] << 20, "free": own["memory_mib"] << 20, "used": 0},
        "nvmlDeviceGetPowerManagementLimit": milliwatts,
        "nvmlDeviceGetPowerManagementDefaultLimit": milliwatts,
        "nvmlDeviceGetEnforcedPowerLimit": milliwatts,
    }
    layers.append(last)
    if alone:
        layers.append(data["alone"])
    return Profile(
        name=own["name"],
        ids=(own["ids"][0], own["ids"][1]),
        driver=last.get("driver", library["driver"]),
        cuda=library["cuda"],
        calls={**named, **calls, **last.get("calls", {})},
        fields={key: answer for layer in layers for key, answer in layer.get("fields", {}).items()},
        links=next(layer["links"] for layer in reversed(layers) if "links" in layer),
        fabric=next(layer["fabric"] for layer in reversed(layers) if "fabric" in layer),
        field_ids=library["field_ids"],
        field_gap=tuple(library.get("field_gap", (0, -1))),
        fabric_versions=tuple(library["fabric_versions"]),
    )
