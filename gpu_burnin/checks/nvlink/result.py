"""What the nvlink check found of one GPU's copies with the others, and the matrix of a node that they make together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, TypeAlias

from gpu_burnin.checks.least import too_small_share
from gpu_burnin.system.quantities import count, rate, size
from gpu_burnin.telemetry.topology import PairTopology
from gpu_burnin.types import COPY_DIRECTIONS, JSON_NAME, CheckResult, CopyDirection, Coverage, Shortfall, optional

NAME = "nvlink"
# Copier, other GPU, direction: `copier` writes to the other or reads from it. GPUs are UUIDs.
Transfer: TypeAlias = tuple[str, str, CopyDirection]
_NONE_YET = dict.fromkeys(COPY_DIRECTIONS, 0)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """What one GPU found of its copies with one other, `peer` (UUID).

    The rates (bytes per second) are those of its own copies, None where none was timed. `transfers_checked` and
    `transfers_wrong` count the transfers into this GPU that were verified, by who copied: "write" the other one, "read"
    this one. `why` the pair is not covered, None where it is; `worker_ended`: because the other's worker did,
    `refused_by_host`: because host or driver refuse, both of which say nothing of a link. `expected`: the two must be
    able to copy.
    """

    peer: str
    path: str = ""
    write_bytes_per_s: float | None = None
    read_bytes_per_s: float | None = None
    verified: bool = False
    why: str | None = None
    expected: bool = False
    worker_ended: bool = False
    refused_by_host: bool = False
    # Pairs of one class may be compared with each other.
    kind: str = field(default="", metadata={JSON_NAME: "class"})
    transfers_checked: Mapping[CopyDirection, int] = field(default_factory=lambda: dict(_NONE_YET))
    transfers_wrong: Mapping[CopyDirection, int] = field(default_factory=lambda: dict(_NONE_YET))
    topology: PairTopology = field(default_factory=PairTopology)

    @classmethod
    def of(cls, peer: str, topology: PairTopology, path: str, expected: bool) -> Pair:
        """A pair of which nothing was tried yet."""
        return cls(peer=peer, path=path, expected=expected, kind=_class(path, topology), topology=topology)

    def rate(self, direction: CopyDirection) -> float | None:
        """Bytes per second of this GPU's own copies."""
        return self.write_bytes_per_s if direction == "write" else self.read_bytes_per_s

    @property
    def rates(self) -> tuple[float, ...]:
        """The rates that were measured."""
        return tuple(rate for rate in map(self.rate, COPY_DIRECTIONS) if rate is not None)

    @property
    def covered(self) -> bool:
        """Whether copies both ways were made, timed and verified."""
        timed = [(self.rate(direction) or 0.0) > 0 for direction in COPY_DIRECTIONS]
        return not self.why and all(timed) and all(self.transfers_checked.values())

    @property
    def fault_of_link(self) -> str:
        """Why the pair could not be covered, where that speaks against the way between the two; else ""."""
        return "" if self.worker_ended or self.refused_by_host else self.why or ""

    def timed(self, direction: CopyDirection, rate: float) -> Pair:
        """With a copy of `rate` bytes per second, of which the best counts."""
        best = max(rate, self.rate(direction) or 0.0)
        return replace(self, write_bytes_per_s=best) if direction == "write" else replace(self, read_bytes_per_s=best)

    def with_verified(self, direction: CopyDirection, *, wrong: bool) -> Pair:
        """With one more transfer into this GPU that was verified."""
        checked = {**self.transfers_checked, direction: self.transfers_checked[direction] + 1}
        bad = {**self.transfers_wrong, direction: self.transfers_wrong[direction] + wrong}
        good = all(checked.values()) and not any(bad.values())
        return replace(self, transfers_checked=checked, transfers_wrong=bad, verified=good)


def _class(path: str, topology: PairTopology) -> str:
    """By the number of NVLinks between the two, or by where their PCIe paths meet. Behind switches all are alike: a
    GPU with a link less than the others must not become a class of its own."""
    if path == "nvlink":
        return f"nvlink/{topology.links}"
    return path if path in ("nvswitch", "host memory") else f"{path}/{topology.level}"


@dataclass(frozen=True, kw_only=True)
class NvlinkCoverage(Coverage):
    """What the nvlink check covered on one GPU. A pair that cannot copy and need not is no part of `pairs_total`.

    `why` there was nothing to copy. The rates are those of copies of disjoint pairs at once, and of all with all.
    """

    p2p: tuple[Pair, ...] = ()
    pairs_total: int
    pairs_covered: int
    why: str | None = optional(lambda: None)
    rounds: int = 0
    copies_moved: int = 0
    copies_verified: int = 0
    verified_s: float = 0.0
    verified_parts_s: Mapping[str, float] = optional(dict)
    transfers_checked: int = 0
    bytes_verified: int = 0
    pairs_at_once_bytes_per_s: float | None = None
    all_at_once_bytes_per_s: float | None = None
    nvlink_bytes_moved: int = 0
    pcie_bytes_moved: int = 0
    no_floor_why: str | None = None
    simulated: bool = False

    names_lowest_rate: ClassVar[bool] = True

    @property
    def nothing_to_test(self) -> bool:
        """One GPU has no pair, and pairs that cannot and need not reach each other are none."""
        return self.pairs_total == 0

    @classmethod
    def stands_out(cls, results: Sequence[CheckResult], gpu_names: Mapping[str, str]) -> str:
        """The slowest copy between two GPUs, and how many ways have none."""
        matrix = Matrix.of(results)
        moved = [(transfer, value) for transfer in matrix.transfers if (value := matrix.rate(transfer))]
        if not moved:
            return "one GPU: there is no pair to test" if len(gpu_names) == 1 else ""
        transfer, lowest = min(moved, key=lambda item: item[1])
        ways = {transfer[:2] for transfer in matrix.transfers}
        dead = {transfer[:2] for transfer in matrix.transfers if not matrix.rate(transfer)}
        none = f"; none in {len(dead)} of {len(ways)} directions" if dead else ""
        return f"slowest {rate(lowest, 'B/s')}, {place_text(transfer, gpu_names)}{none}"

    def shortfalls(self, precisions: tuple[str, ...]) -> Iterator[Shortfall]:
        """Every pair must be covered, and the data of every copy that was made compared."""
        if not self.nothing_to_test:
            yield from too_small_share(self, "pairs_covered", "pairs_total", 1.0)
        if self.copies_moved:
            yield from too_small_share(self, "copies_verified", "copies_moved", 1.0, "verified")

    def summary(self) -> list[str]:
        """What was covered, in a few words each."""
        if self.why:
            return [self.why]
        checked, verified = self.transfers_checked, self.bytes_verified
        return [
            f"{self.pairs_covered} of {self.pairs_total} other GPUs, both ways",
            *([f"{count(checked, 'transfer')} ({size(verified)}) verified"] if checked and verified else []),
        ]


def place_text(transfer: Transfer, gpu_names: Mapping[str, str]) -> str:
    """Who copies with whom: "GPU 5 reading from GPU 2"."""
    gpu, peer, direction = transfer
    verb = "writing to" if direction == "write" else "reading from"
    return f"{gpu_names.get(gpu, gpu)} {verb} {gpu_names.get(peer, peer)}"


class Matrix:
    """The copies between all GPUs of a node: each transfer by who copied, and by who saw what came in."""

    def __init__(self, pairs: Mapping[tuple[str, str], Pair]) -> None:
        self._pairs = pairs

    @classmethod
    def of(cls, results: Iterable[CheckResult]) -> Matrix:
        """Out of the results of all GPUs."""
        found = {
            (result.gpu, pair.peer): pair
            for result in results
            if result.gpu is not None and isinstance(result.coverage, NvlinkCoverage)
            for pair in result.coverage.p2p
        }
        return cls(found)

    @property
    def transfers(self) -> tuple[Transfer, ...]:
        """All that were tried."""
        return tuple((gpu, peer, direction) for gpu, peer in self._pairs for direction in COPY_DIRECTIONS)

    def __contains__(self, transfer: Transfer) -> bool:
        return transfer[:2] in self._pairs

    def pair(self, transfer: Transfer) -> Pair:
        """What the copier found of the pair."""
        return self._pairs[transfer[:2]]

    def rate(self, transfer: Transfer) -> float | None:
        """Bytes per second, None where it was not made."""
        return self.pair(transfer).rate(transfer[2])

    def wrong(self, transfer: Transfer) -> int:
        """How often it brought wrong data."""
        seen = self._receiver_of(transfer)
        return seen.transfers_wrong.get(transfer[2], 0) if seen else 0

    def verified(self, transfer: Transfer) -> bool:
        """Whether it was looked at, and right each time."""
        seen = self._receiver_of(transfer)
        return seen is not None and not self.wrong(transfer) and seen.transfers_checked.get(transfer[2], 0) > 0

    def _receiver_of(self, transfer: Transfer) -> Pair | None:
        """The receiver sees what came in: of writes that is the other GPU."""
        copier, other, direction = transfer
        return self._pairs.get((copier, other) if direction == "read" else (other, copier))
