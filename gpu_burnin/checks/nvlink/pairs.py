"""What is known of the pairs of one GPU before its copies, and what is told of them afterwards. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median

from gpu_burnin.checks.nvlink.result import Pair
from gpu_burnin.telemetry.topology import NVLINK_PATHS, PairTopology
from gpu_burnin.types import Measurement

# Bytes per second of 16 lanes of PCIe 6.0 one way: what copies no faster may not have gone over NVLink.
PCIE_MOST = 128e9


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


def path_unproven(pair: Pair) -> bool:
    """Whether GPUs that should have NVLink to all others copied no faster than PCIe could.

    Links of which NVML names the GPU at their other end are the way; between two GPUs there may be few of them.
    """
    named = pair.path == "nvlink" and pair.topology.links
    return pair.path in NVLINK_PATHS and not named and bool(pair.rates) and max(pair.rates) < PCIE_MOST


def measurements(pairs: Iterable[Pair]) -> tuple[Measurement, ...]:
    """The rate of this GPU's usual pair, which the floor judges, and of its slowest: one slow link is the attribution's
    matter, not this GPU's."""
    rates = [rate for pair in pairs for rate in pair.rates]
    if not rates:
        return ()
    return Measurement("p2p", median(rates), "B/s"), Measurement("p2p_slowest", min(rates), "B/s")


def moved_bytes(pairs: Iterable[Pair], moved_by_peers: Mapping[str, int], own: Mapping[str, int]) -> tuple[int, int]:
    """Bytes that went over this GPU's NVLinks and over PCIe: its own copies and those of the others with it."""
    nvlink = pcie = 0
    for pair in pairs:
        total = own.get(pair.peer, 0) + moved_by_peers.get(pair.peer, 0)
        if pair.path in NVLINK_PATHS:
            nvlink += total
        elif pair.path == "pcie":
            pcie += total
    return nvlink, pcie
