"""What the peer ports of all devices do alike: windows, faults on purpose, and the naming of wrong pieces."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gpu_burnin.checks.nvlink.port import (
    EMPTY_KEY,
    PIECES,
    WORD_BYTES,
    Direction,
    LinkFaults,
    NvlinkUnavailable,
    PieceFault,
    kind_of,
    piece_key,
)
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import random_words
from gpu_burnin.types import JSON

# How a device names an outbox or inbox: words, or their address.
Box = TypeVar("Box")


@dataclass(frozen=True)
class Window:
    """What a handle says of a window, checked: the peers it has room for, its unit, and the faults of its links."""

    peers: tuple[str, ...]
    size_bytes: int
    faults: LinkFaults

    @property
    def total_bytes(self) -> int:
        """An outbox and an inbox for each peer."""
        return 2 * len(self.peers) * self.size_bytes

    def outbox_bytes(self, peer: str) -> int:
        """Offset of what is meant for a peer."""
        return self.peers.index(peer) * self.size_bytes

    def inbox_bytes(self, peer: str) -> int:
        """Offset of where comes what a peer has."""
        return (len(self.peers) + self.peers.index(peer)) * self.size_bytes

    def to_json(self) -> dict[str, JSON]:
        """The part of a handle that all devices share."""
        return {
            "peers": [*self.peers], "size_bytes": self.size_bytes,
            "slow": dict(self.faults.slow), "dead": [*self.faults.dead],
        }  # fmt: skip

    @classmethod
    def from_json(cls, handle: Mapping[str, Any]) -> Window:
        """The inverse of to_json."""
        faults = LinkFaults(dict(handle["slow"]), tuple(handle["dead"]))
        return cls(tuple(handle["peers"]), int(handle["size_bytes"]), faults)


class WindowedPort(ABC, Generic[Box]):
    """The part of NvlinkPort that is the same for all devices, on five operations of one of them."""

    def __init__(self) -> None:
        self._own = ""
        self._window: Window | None = None
        self._windows: dict[str, Window] = {}
        self._injected: dict[str, str] = {}

    def fill(self, uuid: str, key: int) -> None:
        """NvlinkPort.fill."""
        self._write(self._outbox(self._own, uuid), key)

    def clear(self, uuid: str) -> None:
        """NvlinkPort.clear."""
        self._write(self._inbox(self._own, uuid), EMPTY_KEY)

    def inject(self, uuid: str, fault: str) -> None:
        """NvlinkPort.inject."""
        self._injected[uuid] = fault

    def verify(self, uuid: str, key: int) -> tuple[PieceFault, ...]:
        """NvlinkPort.verify."""
        inbox, words = self._inbox(self._own, uuid), self._mine().size_bytes // PIECES // WORD_BYTES
        keys = [piece_key(key, piece) for piece in range(PIECES)]
        compared = self._compare(inbox, list(enumerate(keys)))
        wrong = {piece: result for piece, result in enumerate(compared) if result[0]}
        holds: dict[int, int | None] = {}
        for piece in wrong:
            others = self._compare(inbox, [(piece, other) for other in keys])
            holds[piece] = next((other for other, (differing, _) in enumerate(others) if not differing), None)
        found = []
        for piece, (count, first) in wrong.items():
            ((differing, _),) = self._compare(inbox, [(piece, piece_key(EMPTY_KEY, piece))])
            place = piece * words + first
            expected, got = int(random_words(keys[piece], first, 1)[0]), self._word(inbox, place)
            kind = kind_of(holds[piece], not differing, holds)
            found.append(PieceFault(kind, piece, place * WORD_BYTES, expected, got, count, holds[piece]))
        return tuple(found)

    def _new_window(self, peers: Sequence[str], size_bytes: int, faults: LinkFaults | None) -> Window:
        """The window to export. Raises DeviceError for a size that cannot be cut into pieces of words."""
        if size_bytes <= 0 or size_bytes % (PIECES * WORD_BYTES):
            raise DeviceError(f"{size_bytes} bytes are not a multiple of {PIECES * WORD_BYTES}: change transfer_bytes")
        return Window(tuple(peers), size_bytes, faults or LinkFaults())

    def _window_of(self, uuid: str, handle: JSON) -> tuple[Window, Mapping[str, JSON]]:
        """The window behind a handle, and the handle. Raises NvlinkUnavailable where it is refused or has no room."""
        mine = self._mine()
        if not isinstance(handle, Mapping):
            raise NvlinkUnavailable(f"{uuid} gave no handle: its worker may have died")
        theirs = Window.from_json(handle)
        for one, other, window in ((uuid, self._own, theirs), (self._own, uuid, mine)):
            if other in window.faults.dead:
                raise NvlinkUnavailable(f"{one} refuses {other}: the link between them was made dead on purpose")
        if self._own not in theirs.peers:
            raise NvlinkUnavailable(f"{uuid} has no place for {self._own} in its window: this is a fault of the caller")
        return theirs, handle

    def _planned(self, uuid: str, direction: Direction, copies: int) -> tuple[Box, Box, int]:
        """Source and target of copies with an attached GPU, and how many to make: a slow link takes more for each."""
        if uuid not in self._windows:
            raise DeviceError(f"{uuid} is not attached: this is a fault of the caller")
        slow = (self._windows[uuid].faults.slow.get(self._own, 1), self._mine().faults.slow.get(uuid, 1))
        giver, taker = (self._own, uuid) if direction == "write" else (uuid, self._own)
        return self._outbox(giver, taker), self._inbox(taker, giver), copies * max(slow)

    def _mine(self) -> Window:
        if self._window is None:
            raise DeviceError("no memory is exported for copies: this is a fault of the caller")
        return self._window

    def _outbox(self, owner: str, other: str) -> Box:
        """What GPU `owner` has for GPU `other`."""
        return self._box(owner, self._owned_by(owner).outbox_bytes(other))

    def _inbox(self, owner: str, other: str) -> Box:
        """Where in GPU `owner` comes what GPU `other` has for it."""
        return self._box(owner, self._owned_by(owner).inbox_bytes(other))

    def _owned_by(self, owner: str) -> Window:
        return self._mine() if owner == self._own else self._windows[owner]

    @abstractmethod
    def _box(self, owner: str, offset_bytes: int) -> Box:
        """The box at an offset of the window of GPU `owner`."""

    @abstractmethod
    def _write(self, box: Box, key: int) -> None:
        """Write the words of a key into a box of this GPU, each piece with its own."""

    @abstractmethod
    def _compare(self, box: Box, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """For each piece and key of a piece: how many words of the box differ from it there, and the place in the piece
        of the first."""

    @abstractmethod
    def _word(self, box: Box, place: int) -> int:
        """One word of a box."""
