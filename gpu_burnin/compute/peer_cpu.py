"""Copies between simulated GPUs: real transfers between the worker processes through anonymous shared memory.

A window is a memfd, which others open as /proc/PID/fd/N: it has no name, so nothing is left when its owner dies.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gpu_burnin.compute.backend import BackendError
from gpu_burnin.compute.exact import U64, random_words
from gpu_burnin.compute.host_link import Moved
from gpu_burnin.compute.peer import (
    EMPTY_KEY,
    PIECES,
    STRUCK,
    WORD_BYTES,
    Direction,
    LinkFaults,
    PeerUnavailable,
    PieceFault,
    Window,
    copy_order,
    kind_of,
    piece_key,
    slots_of,
    window_from,
)
from gpu_burnin.types import JSON


class CpuPeers:
    """The PeerPort protocol on host memory. Each begin copies in a thread of its own; `seconds` are processor time of
    the slowest thread, so that a busy host does not look like a slow link."""

    simulated = True

    def __init__(self) -> None:
        self._own = ""
        self._fd = -1
        self._window: Window | None = None
        self._memory: dict[str, U64] = {}
        self._windows: dict[str, Window] = {}
        self._struck: dict[str, str] = {}
        self._threads: list[_Copying] = []

    def export(self, own: str, peers: Sequence[str], size_bytes: int, faults: LinkFaults | None = None) -> JSON:
        if size_bytes <= 0 or size_bytes % (PIECES * WORD_BYTES):
            raise BackendError(f"{size_bytes} bytes are no multiple of {PIECES * WORD_BYTES}: change transfer_bytes")
        self.close()
        total = 2 * len(peers) * size_bytes
        try:
            self._fd = os.memfd_create("muster-peers", os.MFD_CLOEXEC)
            os.ftruncate(self._fd, total)
            self._memory[own] = _mapped(self._fd, total)
        except OSError as error:
            self.close()
            raise BackendError(
                f"no memory for {total} bytes of copies ({error.strerror}): use smaller shapes"
            ) from error
        self._own, self._window = own, Window(tuple(peers), size_bytes, faults or LinkFaults())
        return {**self._window.to_json(), "pid": os.getpid(), "fd": self._fd}

    def attach(self, uuid: str, handle: JSON) -> None:
        own = self._mine()
        if not isinstance(handle, Mapping):
            raise PeerUnavailable(f"{uuid} gave no handle: its worker may have died")
        window = window_from(handle, self._own, uuid)
        if uuid in own.faults.dead:
            raise PeerUnavailable(f"{self._own} refuses {uuid}: the link between them was made dead on purpose")
        if uuid != self._own:
            path = f"/proc/{handle['pid']}/fd/{handle['fd']}"
            try:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            except OSError as error:
                raise PeerUnavailable(f"the memory of {uuid} is gone ({error.strerror}): its worker died") from error
            try:
                self._memory[uuid] = _mapped(fd, 2 * len(window.peers) * window.size_bytes)
            except (OSError, ValueError) as error:
                raise PeerUnavailable(f"the memory of {uuid} cannot be mapped ({error})") from error
            finally:
                os.close(fd)
        self._windows[uuid] = window

    def fill(self, uuid: str, key: int) -> None:
        self._write(self._box(self._own, uuid, 0), key)

    def clear(self, uuid: str) -> None:
        self._write(self._box(self._own, uuid, 1), EMPTY_KEY)

    def begin(self, uuid: str, direction: Direction, copies: int) -> None:
        window = self._windows.get(uuid)
        if window is None:
            raise BackendError(f"{uuid} is not attached: this is a fault of the caller")
        if direction == "write":
            source, target = self._box(self._own, uuid, 0), self._box(uuid, self._own, 1)
        else:
            source, target = self._box(uuid, self._own, 0), self._box(self._own, uuid, 1)
        slow = max(window.faults.slow.get(self._own, 1), self._mine().faults.slow.get(uuid, 1))
        copy_all = partial(self._transfer, uuid, direction, source, target, copies * slow)
        copying = _Copying(copy_all, copies * self._mine().size_bytes)
        self._threads.append(copying)
        copying.start()

    def finish(self) -> Moved:
        begun, self._threads = self._threads, []
        for thread in begun:
            thread.join()
        return Moved(sum(t.size_bytes for t in begun), max((t.seconds for t in begun), default=0.0))

    def verify(self, uuid: str, key: int) -> tuple[PieceFault, ...]:
        pieces = self._box(self._own, uuid, 1).reshape(PIECES, -1)
        words = pieces.shape[1]
        wanted = [random_words(piece_key(key, piece), 0, words) for piece in range(PIECES)]
        wrong = [piece for piece in range(PIECES) if not np.array_equal(pieces[piece], wanted[piece])]
        holds = {
            piece: next((other for other in range(PIECES) if np.array_equal(pieces[piece], wanted[other])), None)
            for piece in wrong
        }
        found = []
        for piece in wrong:
            places = np.flatnonzero(pieces[piece] != wanted[piece])
            first = int(places[0])
            empty = np.array_equal(pieces[piece], random_words(piece_key(EMPTY_KEY, piece), 0, words))
            kind = kind_of(holds[piece], empty, holds)
            offset_bytes = (piece * words + first) * WORD_BYTES
            expected, got = int(wanted[piece][first]), int(pieces[piece][first])
            found.append(PieceFault(kind, piece, offset_bytes, expected, got, int(places.size), holds[piece]))
        return tuple(found)

    def strike(self, uuid: str, fault: str) -> None:
        self._struck[uuid] = fault

    def detach_all(self) -> None:
        self.finish()
        self._windows.clear()
        self._memory = {uuid: words for uuid, words in self._memory.items() if uuid == self._own}

    def abandon(self) -> None:
        self.close()  # pages that others have mapped stay until they unmap them

    def close(self) -> None:
        self.detach_all()
        self._memory.clear()
        self._struck.clear()
        self._window = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _mine(self) -> Window:
        if self._window is None:
            raise BackendError("no memory is exported for copies: this is a fault of the caller")
        return self._window

    def _box(self, owner: str, other: str, which: int) -> U64:
        """Outbox (0) or inbox (1) of GPU `owner` for GPU `other`, as words."""
        window = self._mine() if owner == self._own else self._windows[owner]
        words = window.size_bytes // WORD_BYTES
        place = slots_of(window.peers)[other][which]
        return self._memory[owner][place * words : (place + 1) * words]

    def _transfer(self, uuid: str, direction: Direction, source: U64, target: U64, times: int) -> None:
        """Every piece to its place, as often as asked for, then the fault if there is one."""
        fault, sources, targets = self._struck.get(uuid), source.reshape(PIECES, -1), target.reshape(PIECES, -1)
        for _ in range(times):
            for piece, place in copy_order(fault):
                self._copy(uuid, direction, place, targets[place], sources[piece])
        if fault == "corrupted":
            targets[STRUCK, 1] ^= np.uint64(1 << 17)

    def _copy(self, uuid: str, direction: Direction, place: int, target: U64, source: U64) -> None:
        """One piece; everything that is moved goes through here."""
        np.copyto(target, source)

    @staticmethod
    def _write(box: U64, key: int) -> None:
        pieces = box.reshape(PIECES, -1)
        for piece in range(PIECES):
            pieces[piece] = random_words(piece_key(key, piece), 0, pieces.shape[1])


class _Copying(threading.Thread):
    """The copies of one begin. `seconds` is the processor time of the thread."""

    def __init__(self, copy_all: Callable[[], None], size_bytes: int) -> None:
        super().__init__(daemon=True)
        self._copy_all = copy_all
        self.size_bytes, self.seconds = size_bytes, 0.0

    def run(self) -> None:
        started = time.thread_time()
        self._copy_all()
        self.seconds = time.thread_time() - started


def _mapped(fd: int, size_bytes: int) -> Any:
    """A shared mapping as words; it lives as long as an array on it."""
    return np.frombuffer(mmap.mmap(fd, size_bytes), dtype=np.uint64)
