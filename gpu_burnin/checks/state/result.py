"""What the state check covers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpu_burnin.hardware.corrected import CorrectedErrors
from gpu_burnin.system.quantities import count
from gpu_burnin.types import JSON, Coverage, optional


@dataclass(frozen=True)
class LinkSource:
    """Where the expected NVLinks of the node come from, and why."""

    source: str
    why: str


@dataclass(frozen=True, kw_only=True)
class StateCoverage(Coverage):
    """How many GPUs were held against how many rules, and against what else.

    `gpu_count_source` says who expects `gpu_count_expected` GPUs, `expected` what the operator expects.
    `persistence_off` are UUIDs. By the GPU's label: `fabric_info` is the version that NVML gave, `unread` the fields
    that could not be read, by why. `corrected` are the corrected memory errors by UUID, where they are worth telling.
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

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        unread = sum(len(fields) for whys in self.unread.values() for fields in whys.values())
        return [
            f"{count(self.gpus, 'GPU')} against {count(self.rules, 'rule')}",
            *([f"{count(unread, 'value')} could not be read"] if unread else []),
        ]
