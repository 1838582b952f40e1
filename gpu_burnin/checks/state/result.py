"""What the state check covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_burnin.hardware.corrected import CorrectedErrors
from gpu_burnin.system.quantities import count, size
from gpu_burnin.types import JSON, Coverage, MigInstance, optional


@dataclass(frozen=True)
class LinkSource:
    """Where the expected NVLinks of the node come from, and why."""

    source: str
    why: str


@dataclass(frozen=True)
class MigCoverage:
    """The instances of one GPU, in words and each by itself, and the memory of the GPU that none of them reaches.

    NVML does not tell how many multiprocessors the GPU has, so those outside of the instances are not known.
    """

    layout: str
    instances: tuple[MigInstance, ...]
    multiprocessors: int
    unreached_memory_bytes: int | None


@dataclass(frozen=True, kw_only=True)
class StateCoverage(Coverage):
    """How many GPUs were held against how many rules, and against what else.

    `gpu_count_source` says who expects `gpu_count_expected` GPUs, `expected` what the operator expects.
    `persistence_off` are UUIDs. By the GPU's label: `fabric_info` is the version that NVML gave, `unread` the fields
    that could not be read, by why. `corrected` are the corrected memory errors by UUID, where they are worth telling,
    `mig` the instances of each GPU in MIG mode by its label.
    """

    gpus: int
    gpu_count_expected: int | None
    gpu_count_source: str
    expected: Mapping[str, JSON]
    node_links: LinkSource
    rules: int
    simulated: bool
    pci_links_read: int
    persistence_off: tuple[str, ...]
    fabric_info: Mapping[str, int | None]
    unread: Mapping[str, Mapping[str, tuple[str, ...]]]
    corrected: Mapping[str, CorrectedErrors] = optional(dict)
    mig: Mapping[str, MigCoverage] = optional(dict)

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        unread = sum(len(fields) for whys in self.unread.values() for fields in whys.values())
        return [
            f"{count(self.gpus, 'GPU')} against {count(self.rules, 'rule')}",
            *([f"{count(unread, 'value')} could not be read"] if unread else []),
            *self._instances(),
        ]

    def _instances(self) -> list[str]:
        """What the instances of the GPUs reach, told once for all that have the same."""
        alike: dict[tuple[str, int, int | None], int] = {}
        for one in self.mig.values():
            key = (one.layout, one.multiprocessors, one.unreached_memory_bytes)
            alike[key] = alike.get(key, 0) + 1
        return [
            f"MIG: {layout} on each of {count(gpus, 'GPU')}, which reach {multiprocessors} multiprocessors of it"
            + (f" and all but {size(unreached)} of its memory" if unreached is not None else "")
            for (layout, multiprocessors, unreached), gpus in alike.items()
        ]
