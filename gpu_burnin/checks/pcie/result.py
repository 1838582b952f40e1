"""What the pcie check covered on one GPU."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_burnin.checks.least import too_small_share
from gpu_burnin.system.quantities import count, size
from gpu_burnin.types import Coverage, Shortfall, optional


@dataclass(frozen=True)
class LinkUnderLoad:
    """The link of a GPU while copies were under way, and the most that the GPU and the host at its other end can do."""

    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None
    host_max_generation: int | None = None
    host_max_width: int | None = None

    @property
    def could_be(self) -> tuple[int | None, int | None]:
        """Generation and width that both ends can do."""
        return (
            _least(self.max_generation, self.host_max_generation),
            _least(self.max_width, self.host_max_width),
        )

    @property
    def is_narrow(self) -> bool:
        """Whether generation or width are less than both ends can do."""
        seen = zip((self.generation, self.width), self.could_be, strict=True)
        return any(has and most and has < most for has, most in seen)


def _least(*known: int | None) -> int | None:
    return min((one for one in known if one is not None), default=None)


@dataclass(frozen=True)
class HostSide:
    """The machine: how many NUMA nodes it has, and whether a hypervisor runs it."""

    numa_nodes: int
    virtual: bool


@dataclass(frozen=True)
class PinnedMemory:
    """The host's memory that copies go to and come from: its NUMA node, why it is on none, and its size."""

    numa_node: int | None = None
    numa_note: str | None = None
    pinned_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class PcieCoverage(Coverage):
    """What the pcie check covered on one GPU.

    `link` is None where no kernel shows it. The last three are those of PinnedMemory.
    """

    link: LinkUnderLoad | None = None
    host: HostSide | None = None
    transfer_bytes: int = 0
    small_copy_bytes: int = 0
    copies_moved: int
    copies_verified: int
    bytes_verified: int = 0
    pcie_bytes_moved: int = 0
    wrong_copies: int = 0
    verified_s: float = 0.0
    verified_parts_s: Mapping[str, float] = optional(dict)
    rounds: int = 0
    gpus_at_once: int = 0
    simulated: bool = False
    numa_node: int | None = None
    numa_note: str | None = None
    pinned_bytes: int = 0

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """The data of every copy must have been compared: a PASS covers no others."""
        return too_small_share(self, "copies_verified", "copies_moved", 1.0, "verified")

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        verified, copies, link = self.copies_verified, self.copies_moved, self.link
        part = f" of {copies:,} moved" if copies != verified else ""
        known = link is not None and link.generation is not None and link.width is not None
        return [
            *([f"{size(self.pcie_bytes_moved)} copied between host and GPU"] if self.pcie_bytes_moved else []),
            f"{count(verified, 'copy', 'copies')}{part} verified word by word",
            *([f"link at generation {link.generation} x{link.width} under load"] if link and known else []),
        ]
