"""What the GPUs of a host need of a driver, by the data that the filter muster.fleet.gpu_models gives."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.nvidia.driver import OPEN, PROPRIETARY
from ansible_collections.muster.fleet.plugins.module_utils.nvidia.pci import PciDevice

AUTO, EITHER = "auto", "either"


@dataclass(frozen=True)
class Needs:
    """What GPUs of one name need: kernel modules (open, proprietary or either), the first driver, the last branch."""

    name: str
    modules: str
    since_driver: str
    until_branch: int | None


@dataclass(frozen=True)
class Models:
    """The data of all models and architectures."""

    table: Mapping[str, Any]

    @property
    def branches(self) -> tuple[int, ...]:
        """The driver branches that exist, oldest first."""
        return tuple(self.table["branches"])

    @property
    def oldest_kernel(self) -> str:
        """The oldest kernel that modules are built for."""
        return str(self.table["kernel"])

    def oldest_driver_for_cuda(self, major: str) -> str | None:
        """The oldest driver for CUDA libraries such as `12`; None for none."""
        version: str | None = self.table["cuda"].get(major)
        return version

    def needs(self, gpu: PciDevice) -> Needs | None:
        """What a GPU needs: that of its model, else of its architecture; None for one that is not known."""
        same = [model for model in self.table["models"] if model["device"] == gpu.device]
        exact = [model for model in same if gpu.subsystem_device in model["subsystems"]]
        candidates = exact or same
        if len(candidates) == 1:
            return _needs(candidates[0])
        number = int(gpu.device, 16)
        for one in self.table["architectures"]:
            if any(first <= number <= last for first, last in one["device_ids"]):
                return _needs(one)
        return None


def _needs(row: Mapping[str, Any]) -> Needs:
    return Needs(row["name"], row["modules"], str(row["since_driver"]), row["until_branch"])


def number(version: str) -> tuple[int, ...]:
    """A driver's version as numbers that compare: `580.65.06` -> (580, 65, 6)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def is_older(version: str, least: str) -> bool:
    """Whether a driver is older than one, or than a branch such as `570`."""
    return number(version) < number(least)


def modules_for(needs: Iterable[Needs]) -> str:
    """The kernel modules that drive all of these GPUs: open wherever one has the choice, empty when none do."""
    asked = {one.modules for one in needs} - {EITHER}
    if len(asked) > 1:
        return ""
    return asked.pop() if asked else OPEN


def chosen(asked: str, needs: Iterable[Needs]) -> str:
    """The kernel modules to install: those asked for (open, proprietary), with `auto` those that the GPUs need."""
    return asked if asked != AUTO else modules_for(needs)


def mismatched(loaded: str, needs: Needs) -> bool:
    """Whether loaded modules of this kind (open, proprietary) do not drive such a GPU."""
    return loaded in (OPEN, PROPRIETARY) and needs.modules not in (EITHER, loaded)
