"""What one GPU finds out about each other GPU, and how it goes into the result. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from gpu_burnin.checks.nvlink.port import DIRECTIONS, Direction, PieceFault
from gpu_burnin.telemetry.topology import NVLINK_PATHS, PairTopology
from gpu_burnin.types import JSON, Measurement

MOST_ERRORS = 64


@dataclass
class Row:
    """One GPU as this one sees it.

    `by_nvlink`: both should have NVLink to all others. `rates` by direction in B/s. `checked` and `wrong` count the
    transfers into this GPU that were verified, by who copied: "write" the other one, "read" this one. `why` it was not
    covered, or ""; `ended`: because the other's worker did, `by_host`: because host or driver refuse, both of which say
    nothing of a link.
    """

    peer: str
    pair: PairTopology
    path: str
    by_nvlink: bool
    expected: bool
    why: str = ""
    ended: bool = False
    by_host: bool = False
    rates: dict[Direction, float] = field(default_factory=dict)
    checked: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    wrong: dict[Direction, int] = field(default_factory=lambda: dict.fromkeys(DIRECTIONS, 0))
    moved_bytes: int = 0

    @property
    def covered(self) -> bool:
        """Whether copies both ways were made, timed and verified."""
        timed = [self.rates.get(direction, 0.0) > 0 for direction in DIRECTIONS]
        return not self.why and all(timed) and all(self.checked.values())

    def path_unproven(self, pcie_bytes_per_s: float) -> bool:
        """Whether GPUs with NVLink to all others copied no faster than PCIe could.

        Links of which NVML names the GPU at their other end are the way; between two GPUs there may be few of them.
        """
        by_links = self.by_nvlink and self.path in NVLINK_PATHS and not (self.path == "nvlink" and self.pair.links)
        return by_links and bool(self.rates) and max(self.rates.values()) < pcie_bytes_per_s

    @property
    def wrong_by_copier(self) -> dict[str, JSON]:
        """Wrong transfers from that GPU: those it wrote, those this one read."""
        return {str(direction): count for direction, count in self.wrong.items()}

    @property
    def _class(self) -> str:
        """By the number of NVLinks between the two, or by where their PCIe paths meet. Behind switches all are alike: a
        GPU with a link less than the others must not become a class of its own."""
        if self.path == "nvlink":
            return f"nvlink/{self.pair.links}"
        return self.path if self.path in ("nvswitch", "host memory") else f"{self.path}/{self.pair.level}"

    def to_json(self) -> dict[str, JSON]:
        """An entry of coverage["p2p"]: path, rates in B/s, whether what came in was right, and why not covered.

        `class` names pairs that may be compared with each other.
        """
        return {
            "peer": self.peer,
            "path": self.path,
            "write_bytes_per_s": self.rates.get("write"),
            "read_bytes_per_s": self.rates.get("read"),
            "verified": all(self.checked.values()) and not any(self.wrong.values()),
            "why": self.why or None,
            "expected": self.expected,
            "worker_ended": self.ended,
            "refused_by_host": self.by_host,
            "class": self._class,
            "transfers_checked": {str(direction): count for direction, count in self.checked.items()},
            "transfers_wrong": self.wrong_by_copier,
            "topology": self.pair.to_json(),
        }


def expected(pair: PairTopology, by_nvlink: bool, simulated: bool) -> bool:
    """Whether two GPUs must be able to copy between each other: by what was decided of their NVLinks, or because the
    driver says they can.

    Simulated GPUs of which NVML says nothing copy through host memory, which always can.
    """
    if by_nvlink:
        return True
    if pair.possible is None:
        return simulated
    return pair.possible or pair.path in NVLINK_PATHS


def error_entry(peer: str, direction: Direction, phase: str, fault: PieceFault) -> dict[str, JSON]:
    """An entry of a result's errors: data that came from `peer` and is not what it should be."""
    return {"peer": peer, "direction": direction, "phase": phase, **fault.to_json()}


def measurements(rows: Iterable[Row]) -> tuple[Measurement, ...]:
    """The rate of this GPU's usual pair, which the floor judges, and of its slowest: one slow link is the attribution's
    matter, not this GPU's."""
    rates = [rate for row in rows for rate in row.rates.values()]
    if not rates:
        return ()
    return Measurement("p2p", median(rates), "B/s"), Measurement("p2p_slowest", min(rates), "B/s")


def moved_bytes(rows: Iterable[Row], moved_by_peers: Mapping[str, int], own: Mapping[str, int]) -> dict[str, JSON]:
    """Bytes that went over this GPU's links, by kind of link: its own copies and those of the others with it."""
    nvlink = pcie = 0
    for row in rows:
        total = own.get(row.peer, 0) + moved_by_peers.get(row.peer, 0)
        if row.path in NVLINK_PATHS:
            nvlink += total
        elif row.path == "pcie":
            pcie += total
    return {"nvlink_bytes_moved": nvlink, "pcie_bytes_moved": pcie}
