"""Copies between the GPUs of a node: what a device offers for them, and the data by which they are verified.

Each GPU exports one window of memory, with an outbox and an inbox of `size_bytes` for each other GPU. A write
copies my outbox for a GPU into its inbox for me; a read copies its outbox for me into my inbox for it. Both ways
an inbox ends with what its GPU has for me. It is cut into PIECES, each with its own words, keyed by
(seed, source, destination, round, piece): what came late, twice, to the wrong place or not at all can be told apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from gpu_burnin.checks.pcie.port import Kind, Moved
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.exact.operands import mix, stream_key
from gpu_burnin.types import COPY_DIRECTIONS, JSON, CopyDirection, word_text

PIECES = 8
WORD_BYTES = 8
# Every inbox is filled with this before a round: what is found still there was never copied.
EMPTY_KEY = 0x454D505459

# cudaErrorTooManyPeers (driver_types.h).
TOO_MANY_PEERS = 711

Direction: TypeAlias = CopyDirection
DIRECTIONS = COPY_DIRECTIONS
# What can be done to the pieces of a transfer, below the detector.
DATA_FAULTS: tuple[Kind, ...] = (Kind.CORRUPTED, Kind.DROPPED, Kind.DUPLICATED, Kind.REORDERED)
# The piece that they change (duplicated and reordered: also the one before it).
STRUCK = 5


class NvlinkUnavailable(DeviceError):
    """This GPU cannot reach the memory of that one. `code` is the CUDA error, None on the CPU device.

    `by_host`: the host, its driver or its container refuses, so that nothing is known of the way between the two.
    """

    def __init__(self, message: str, code: int | None = None, *, by_host: bool = False) -> None:
        super().__init__(message)
        self.code, self.by_host = code, by_host


@dataclass(frozen=True)
class PieceFault:
    """One piece of an inbox that does not hold its words.

    `kind` is one of DATA_FAULTS. `offset_bytes` is that of the first wrong word in the inbox, `expected` and `got`
    its values; `wrong_words` counts all of the piece. `found_piece` is the piece whose words lie there instead.
    """

    kind: Kind
    piece: int
    offset_bytes: int
    expected: int
    got: int
    wrong_words: int
    found_piece: int | None = None

    def to_json(self) -> dict[str, JSON]:
        """Part of an entry of a report's list of errors."""
        return {
            "kind": str(self.kind),
            "piece": self.piece,
            "offset_bytes": self.offset_bytes,
            "expected": word_text(self.expected),
            "got": word_text(self.got),
            "wrong_words": self.wrong_words,
            "found_piece": self.found_piece,
        }


@dataclass(frozen=True)
class LinkFaults:
    """Faults to inject, by the UUID of the other GPU. They travel in the handle, so that both ends of a link have
    them, as with a real one: `slow` repeats each copy that many times, `dead` refuses to attach."""

    slow: Mapping[str, int] = field(default_factory=dict)
    dead: tuple[str, ...] = ()


class NvlinkPort(Protocol):
    """One GPU's end of the copies. Errors of the device are raised as DeviceError.

    Order: export, then give the handle to the others, attach theirs; fill and clear; then begin and finish.
    """

    def export(self, own: str, peers: Sequence[str], size_bytes: int, faults: LinkFaults | None = None) -> JSON:
        """A window for `peers` (UUIDs) of GPU `own`, 2 x len(peers) x size_bytes; returns the handle for the others.

        `size_bytes` is a multiple of PIECES * WORD_BYTES. `own` may be among the peers: a loop on one GPU.
        """
        ...

    def attach(self, uuid: str, handle: JSON) -> None:
        """Map the window of another GPU. Raises NvlinkUnavailable where it cannot be reached."""

    def fill(self, uuid: str, key: int) -> None:
        """Write the words of `key` (transfer_key) into my outbox for that GPU."""

    def clear(self, uuid: str) -> None:
        """Write the words of EMPTY_KEY into my inbox for that GPU."""

    def begin(self, uuid: str, direction: Direction, copies: int = 1) -> None:
        """Enqueue a copy of `size_bytes` to or from an attached GPU, on a stream of its own; returns at once (on the
        CPU device the copies run in a thread). More than one are load: each comes over the one before, so that verify
        sees the last only."""

    def finish(self) -> Moved:
        """Wait for all that was begun: bytes moved, and device seconds from the first begin to the last end."""
        ...

    def verify(self, uuid: str, key: int) -> tuple[PieceFault, ...]:
        """Compare my inbox for that GPU with the words of `key`, on the device; one entry for each wrong piece."""
        ...

    def inject(self, uuid: str, fault: str) -> None:
        """Do one of DATA_FAULTS to every later transfer of mine with that GPU (self-test and --inject)."""

    def detach_all(self) -> None:
        """Unmap the windows of the others. They have to do so too before close: use a barrier in between."""

    def abandon(self) -> None:
        """In place of close, when it went wrong: unmap the windows of the others, but free nothing that they may still
        have mapped; the port cannot be used again."""

    def close(self) -> None:
        """Give back everything, also what is still attached; nothing is left behind. Can be called twice."""


def transfer_key(seed: int, source: str, destination: str, round_number: int) -> int:
    """Key of the data that GPU `source` has for GPU `destination` in one round."""
    return stream_key(seed, f"{source}>{destination}#{round_number}")


def piece_key(key: int, piece: int) -> int:
    """Key of one piece: its words are exact.random_words of it from 0 on."""
    return mix(key ^ mix(piece + 1))


def copy_order(fault: str | None) -> tuple[tuple[int, int], ...]:
    """Which piece of the source goes to which place: (source, place) pairs; `fault` is one of DATA_FAULTS or None."""
    order = {place: place for place in range(PIECES)}
    if fault == Kind.DROPPED:
        del order[STRUCK]
    elif fault == Kind.DUPLICATED:
        order[STRUCK] = STRUCK - 1
    elif fault == Kind.REORDERED:
        order[STRUCK], order[STRUCK - 1] = STRUCK - 1, STRUCK
    return tuple((source, place) for place, source in order.items())


def kind_of(found: int | None, empty: bool, wrong: Mapping[int, int | None]) -> Kind:
    """What happened to a wrong piece.

    `found` is the piece whose words it holds (None: no piece's), `empty` tells that it still holds what was there
    before, `wrong` what each wrong piece holds. Words of a piece that is also where it belongs came twice; two
    that are both elsewhere changed places.
    """
    if empty:
        return Kind.DROPPED
    if found is None:
        return Kind.CORRUPTED
    return Kind.DUPLICATED if found not in wrong else Kind.REORDERED


def nvlink_port(device: Device) -> NvlinkPort:
    """Copies between this device and the others of the node, nothing exported yet."""
    port: NvlinkPort = device.port(__package__)
    return port
