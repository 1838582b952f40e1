"""Which driver a GPU and the CUDA libraries need (drivers.yaml, and `driver` of a model in skus.yaml)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from gpu_burnin.hardware.located import Located, load

DEFAULT_PATH = Path(__file__).with_name("drivers.yaml")
_DEVICE_IDS = range(0x10000)


class Modules(StrEnum):
    """Which of NVIDIA's kernel modules drive a GPU."""

    OPEN = "open"
    PROPRIETARY = "proprietary"
    EITHER = "either"


@dataclass(frozen=True)
class DriverNeeds:
    """What a GPU needs: kernel modules of a kind, the first branch or release, and the last branch if there is one."""

    modules: Modules
    since_driver: str
    until_branch: int | None
    source: str


@dataclass(frozen=True)
class Architecture:
    """A family of GPUs; `device_ids` are the blocks of its PCI device ids."""

    name: str
    device_ids: tuple[range, ...]
    driver: DriverNeeds


@dataclass(frozen=True)
class DriverTable:
    """All architectures, the driver branches that exist, the oldest kernel, and the oldest driver by CUDA version."""

    architectures: Mapping[str, Architecture]
    branches: tuple[int, ...]
    kernel: str
    cuda: Mapping[str, str]


def dotted_version(value: Located) -> str:
    """A branch or version such as 565 or 580.65.06; raises HardwareDataError."""
    version = value.text()
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise value.error(f"must be a branch or version such as 565 or 580.65.06, not {version!r}")
    return version


def needs(value: Located) -> DriverNeeds:
    """The `driver` of a model."""
    return _needs(value.mapping(("modules", "since_driver", "source"), ("until_branch",)))


def _needs(entry: Mapping[str, Located]) -> DriverNeeds:
    return DriverNeeds(
        modules=entry["modules"].choice(Modules),
        since_driver=dotted_version(entry["since_driver"]),
        until_branch=entry["until_branch"].integer() if "until_branch" in entry else None,
        source=entry["source"].text(),
    )


def _block(value: Located) -> range:
    ends = [item.integer() for item in value.items()]
    if len(ends) != 2 or ends[0] > ends[1] or not {*ends} <= {*_DEVICE_IDS}:
        raise value.error("must be the first and the last PCI device id of a block")
    return range(ends[0], ends[1] + 1)


def _architecture(name: str, value: Located) -> Architecture:
    entry = value.mapping(("device_ids", "modules", "since_driver", "source"), ("until_branch",))
    return Architecture(name, tuple(map(_block, entry["device_ids"].items())), _needs(entry))


@cache
def load_drivers(path: Path = DEFAULT_PATH) -> DriverTable:
    """Read the table; raises HardwareDataError naming file and line."""
    entry = load(path).mapping(("architectures", "branches", "kernel", "cuda"))
    branches = entry["branches"].mapping(("known", "source"))["known"]
    libraries = {key: value.mapping(("since_driver", "source")) for key, value in entry["cuda"].entries().items()}
    return DriverTable(
        architectures={key: _architecture(key, value) for key, value in entry["architectures"].entries().items()},
        branches=tuple(item.integer() for item in branches.items()),
        kernel=dotted_version(entry["kernel"].mapping(("since", "source"))["since"]),
        cuda={key: dotted_version(value["since_driver"]) for key, value in libraries.items()},
    )
