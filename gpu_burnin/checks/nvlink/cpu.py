"""Copies between simulated GPUs: real transfers between the worker processes through memory that they share."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpu_burnin.checks.nvlink.port import (
    PIECES,
    STRUCK,
    WORD_BYTES,
    Direction,
    LinkFaults,
    NvlinkUnavailable,
    copy_order,
    piece_key,
)
from gpu_burnin.checks.nvlink.windows import WindowedPort
from gpu_burnin.checks.pcie.port import Kind, Moved
from gpu_burnin.device import shared_memory
from gpu_burnin.device.port import Device, DeviceError
from gpu_burnin.exact.operands import U64, random_words
from gpu_burnin.types import JSON


def make_port(_: Device) -> CpuNvlink:
    """See Device.port."""
    return CpuNvlink()


class CpuNvlink(WindowedPort[U64]):
    """The NvlinkPort protocol on host memory. Each begin copies in a thread of its own; `seconds` are processor time of
    the slowest thread, so that a busy host does not look like a slow link."""

    simulated = True

    def __init__(self) -> None:
        super().__init__()
        self._fd = -1
        self._memory: dict[str, U64] = {}
        self._threads: list[_Copying] = []

    def export(self, own: str, peers: Sequence[str], size_bytes: int, faults: LinkFaults | None = None) -> JSON:
        window = self._new_window(peers, size_bytes, faults)
        self.close()
        try:
            self._fd = shared_memory.create("nvlink", window.total_bytes)
            handle = shared_memory.handle(self._fd)
            self._memory[own] = np.frombuffer(shared_memory.attach(handle, window.total_bytes), dtype=np.uint64)
        except OSError as error:
            self.close()
            raise DeviceError(
                f"no memory for {window.total_bytes} bytes of copies ({error.strerror}): use smaller shapes"
            ) from error
        self._own, self._window = own, window
        return {**window.to_json(), **handle}

    def attach(self, uuid: str, handle: JSON) -> None:
        window, given = self._window_of(uuid, handle)
        if uuid != self._own:
            try:
                self._memory[uuid] = np.frombuffer(shared_memory.attach(given, window.total_bytes), dtype=np.uint64)
            except (OSError, ValueError) as error:
                raise NvlinkUnavailable(f"the memory of {uuid} cannot be mapped ({error}): its worker died") from error
        self._windows[uuid] = window

    def begin(self, uuid: str, direction: Direction, copies: int = 1) -> None:
        source, target, times = self._planned(uuid, direction, copies)
        copy_all = partial(self._transfer, uuid, direction, source, target, times)
        copying = _Copying(copy_all, copies * self._mine().size_bytes)
        self._threads.append(copying)
        copying.start()

    def finish(self) -> Moved:
        begun, self._threads = self._threads, []
        for thread in begun:
            thread.join()
        return Moved(sum(t.size_bytes for t in begun), max((t.seconds for t in begun), default=0.0))

    def detach_all(self) -> None:
        self.finish()
        self._windows.clear()
        self._memory = {uuid: words for uuid, words in self._memory.items() if uuid == self._own}

    def abandon(self) -> None:
        self.close()  # pages that others have mapped stay until they unmap them

    def close(self) -> None:
        self.detach_all()
        self._memory.clear()
        self._injected.clear()
        self._window = None
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _box(self, owner: str, offset_bytes: int) -> U64:
        start, words = offset_bytes // WORD_BYTES, self._mine().size_bytes // WORD_BYTES
        return self._memory[owner][start : start + words]

    def _transfer(self, uuid: str, direction: Direction, source: U64, target: U64, times: int) -> None:
        """Every piece to its place, as often as asked for, then the fault if there is one."""
        fault, sources, targets = self._injected.get(uuid), source.reshape(PIECES, -1), target.reshape(PIECES, -1)
        for _ in range(times):
            for piece, place in copy_order(fault):
                self._copy(uuid, direction, place, targets[place], sources[piece])
        if fault == Kind.CORRUPTED:
            targets[STRUCK, 1] ^= np.uint64(1 << 17)

    def _copy(self, uuid: str, direction: Direction, place: int, target: U64, source: U64) -> None:
        """One piece; everything that is moved goes through here."""
        np.copyto(target, source)

    def _write(self, box: U64, key: int) -> None:
        pieces = box.reshape(PIECES, -1)
        for piece in range(PIECES):
            pieces[piece] = random_words(piece_key(key, piece), 0, pieces.shape[1])

    def _compare(self, box: U64, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        held, found = box.reshape(PIECES, -1), []
        for piece, key in pieces:
            differing = held[piece] != random_words(key, 0, held.shape[1])
            found.append((int(np.count_nonzero(differing)), int(np.argmax(differing))))
        return found

    def _word(self, box: U64, place: int) -> int:
        return int(box[place])


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
