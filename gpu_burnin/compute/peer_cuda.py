"""Copies between GPUs by CUDA's interprocess memory handles. Not yet run on hardware: tests drive it with a stand-in.

Each worker sees its own GPU only; cudaIpcOpenMemHandle opens memory of devices that are not visible to the process
(CUDA Runtime API, section Device Management) and enables peer access where the platform allows it. There is no copy
through host memory in its place: where it fails, the pair is unavailable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_burnin.compute.backend import BackendError
from gpu_burnin.compute.cuda_errors import DeviceErrors
from gpu_burnin.compute.exact import MASK64, random_words
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
from gpu_burnin.compute.peer_source import SOURCE, THREADS
from gpu_burnin.types import JSON

# cudaMemcpyKind cudaMemcpyDefault and cudaStreamNonBlocking (driver_types.h).
_COPY_DEFAULT, _NON_BLOCKING = 4, 1
# A word that is never in a pattern, at the end of the window, for the fault "corrupted".
_SPARE_BYTES = 256
# Why cudaIpcOpenMemHandle or cudaIpcGetMemHandle refuses, by cudaError_t (driver_types.h).
_WHY: Mapping[int, str] = {
    1: "the driver refuses the handle (cudaErrorInvalidValue): give all workers one IPC and PID namespace",
    101: "CUDA cannot use the other GPU (cudaErrorInvalidDevice): check that MIG mode is off on both",
    205: "the memory cannot be mapped (error 205): check IOMMU and ACS, and that the GPUs have one address space",
    217: "the platform does not allow peer access (cudaErrorPeerAccessUnsupported): see the topology of the pair",
    304: "the system refuses the handle (cudaErrorOperatingSystem): give all workers one IPC and PID namespace",
    400: "the handle is no longer good (cudaErrorInvalidResourceHandle): the worker of the other GPU died",
    704: "peer access is already in use in another way (cudaErrorPeerAccessAlreadyEnabled): start a fresh worker",
    711: "the GPU has all the peers it can have (cudaErrorTooManyPeers): test fewer GPUs at once",
    800: "it is not permitted (cudaErrorNotPermitted): run as root",
    801: "this driver has no interprocess handles (cudaErrorNotSupported), as in some virtual machines",
}
# Those of them that are no matter of the two GPUs.
_BY_HOST = frozenset({1, 304, 800, 801})


@dataclass
class _Begun:
    """Copies that were enqueued: events before and after them, and their bytes."""

    start: int
    end: int
    size_bytes: int


class CudaPeers:
    """The PeerPort protocol on the GPU of this worker. `blocks` is how many blocks the device holds at a time."""

    simulated = False

    def __init__(self, cupy: Any, errors: DeviceErrors, blocks: int) -> None:
        self._cupy, self._errors, self._blocks = cupy, errors, blocks
        self._runtime = cupy.cuda.runtime
        self._kernels: dict[str, Any] = {}
        self._own = ""
        self._window: Window | None = None
        self._memory: dict[str, int] = {}
        self._windows: dict[str, Window] = {}
        self._streams: dict[str, int] = {}
        self._struck: dict[str, str] = {}
        self._begun: list[_Begun] = []

    def export(self, own: str, peers: Sequence[str], size_bytes: int, faults: LinkFaults | None = None) -> JSON:
        if size_bytes <= 0 or size_bytes % (PIECES * WORD_BYTES):
            raise BackendError(f"{size_bytes} bytes are no multiple of {PIECES * WORD_BYTES}: change transfer_bytes")
        self.close()
        window = Window(tuple(peers), size_bytes, faults or LinkFaults())
        total = 2 * len(peers) * size_bytes
        with self._errors(f"taking {total} bytes for copies between GPUs"):
            if not self._kernels:
                module = self._cupy.RawModule(code=SOURCE)
                self._kernels = {name: module.get_function(name) for name in ("peer_fill", "peer_compare")}
            # Of its own, not out of CuPy's pool: a handle opens the whole allocation that an address lies in.
            self._memory[own] = int(self._runtime.malloc(total + _SPARE_BYTES))
            self._runtime.memset(self._memory[own] + total, 0, _SPARE_BYTES)
        self._own, self._window = own, window
        if not set(peers) - {own}:
            # A loop needs no handle, which some virtual machines do not give.
            return window.to_json()
        try:
            handle = bytes(self._runtime.ipcGetMemHandle(self._memory[own]))
        except self._runtime.CUDARuntimeError as error:
            raise _unavailable("this GPU's memory cannot be shared", error) from error
        return {**window.to_json(), "handle": handle.hex()}

    def attach(self, uuid: str, handle: JSON) -> None:
        own = self._mine()
        if not isinstance(handle, Mapping):
            raise PeerUnavailable(f"{uuid} gave no handle: its worker may have died")
        window = window_from(handle, self._own, uuid)
        if uuid in own.faults.dead:
            raise PeerUnavailable(f"{self._own} refuses {uuid}: the link between them was made dead on purpose")
        if uuid != self._own:
            try:
                self._memory[uuid] = int(self._runtime.ipcOpenMemHandle(bytes.fromhex(str(handle["handle"]))))
            except self._runtime.CUDARuntimeError as error:
                raise _unavailable(f"the memory of {uuid} cannot be reached", error) from error
        with self._errors("making a stream"):
            self._streams[uuid] = int(self._runtime.streamCreateWithFlags(_NON_BLOCKING))
        self._windows[uuid] = window

    def fill(self, uuid: str, key: int) -> None:
        self._write(self._box(self._own, uuid, 0), key)

    def clear(self, uuid: str) -> None:
        self._write(self._box(self._own, uuid, 1), EMPTY_KEY)

    def begin(self, uuid: str, direction: Direction, copies: int) -> None:
        if uuid not in self._windows:
            raise BackendError(f"{uuid} is not attached: this is a fault of the caller")
        if direction == "write":
            source, target = self._box(self._own, uuid, 0), self._box(uuid, self._own, 1)
        else:
            source, target = self._box(uuid, self._own, 0), self._box(self._own, uuid, 1)
        own, fault, stream = self._mine(), self._struck.get(uuid), self._streams[uuid]
        times = copies * max(self._windows[uuid].faults.slow.get(self._own, 1), own.faults.slow.get(uuid, 1))
        piece_bytes = own.size_bytes // PIECES
        with self._errors(f"copying between {self._own} and {uuid}"):
            begun = _Begun(self._event(stream), 0, copies * own.size_bytes)
            for _ in range(times):
                if fault is None or fault == "corrupted":
                    self._copy(target, source, own.size_bytes, stream)
                    continue
                for piece, place in copy_order(fault):
                    self._copy(target + place * piece_bytes, source + piece * piece_bytes, piece_bytes, stream)
            if fault == "corrupted":
                spare = self._memory[self._own] + 2 * len(own.peers) * own.size_bytes
                self._copy(target + STRUCK * piece_bytes + WORD_BYTES, spare, WORD_BYTES, stream)
            begun.end = self._event(stream)
        self._begun.append(begun)

    def finish(self) -> Moved:
        begun, self._begun = self._begun, []
        seconds = 0.0
        with self._errors("waiting for copies between GPUs"):
            for one in begun:
                self._runtime.eventSynchronize(one.end)
                seconds = max(seconds, float(self._runtime.eventElapsedTime(begun[0].start, one.end)) / 1000.0)
            for one in begun:
                self._runtime.eventDestroy(one.start)
                self._runtime.eventDestroy(one.end)
        return Moved(sum(one.size_bytes for one in begun), seconds)

    def verify(self, uuid: str, key: int) -> tuple[PieceFault, ...]:
        inbox = self._box(self._own, uuid, 1)
        words = self._mine().size_bytes // PIECES // WORD_BYTES
        places = [inbox + piece * words * WORD_BYTES for piece in range(PIECES)]
        compared = self._compare([(place, piece_key(key, piece)) for piece, place in enumerate(places)], words)
        wrong = {piece: result for piece, result in enumerate(compared) if result[0]}
        holds: dict[int, int | None] = {}
        for piece in wrong:
            others = self._compare([(places[piece], piece_key(key, other)) for other in range(PIECES)], words)
            holds[piece] = next((other for other, (differing, _) in enumerate(others) if not differing), None)
        found = []
        for piece, (count, first) in wrong.items():
            ((differing, _),) = self._compare([(places[piece], piece_key(EMPTY_KEY, piece))], words)
            kind = kind_of(holds[piece], not differing, holds)
            expected = int(random_words(piece_key(key, piece), first, 1)[0])
            got = self._word(places[piece] + first * WORD_BYTES)
            offset_bytes = (piece * words + first) * WORD_BYTES
            found.append(PieceFault(kind, piece, offset_bytes, expected, got, count, holds[piece]))
        return tuple(found)

    def strike(self, uuid: str, fault: str) -> None:
        self._struck[uuid] = fault

    def detach_all(self) -> None:
        self.finish()
        with self._errors("giving back the memory of other GPUs"):
            for uuid in list(self._windows):
                del self._windows[uuid]
                self._runtime.streamDestroy(self._streams.pop(uuid))
                if uuid != self._own:
                    self._runtime.ipcCloseMemHandle(self._memory.pop(uuid))

    def abandon(self) -> None:
        # To free memory that another process has open is undefined (CUDA Runtime API, cudaIpcOpenMemHandle): it would
        # copy into whatever comes there next. The window stays until this process ends.
        self._memory.pop(self._own, None)
        self._window = None
        self.detach_all()

    def close(self) -> None:
        self.detach_all()
        self._struck.clear()
        self._window = None
        with self._errors("giving back the memory for copies between GPUs"):
            for uuid in list(self._memory):
                self._runtime.free(self._memory.pop(uuid))

    def _mine(self) -> Window:
        if self._window is None:
            raise BackendError("no memory is exported for copies: this is a fault of the caller")
        return self._window

    def _box(self, owner: str, other: str, which: int) -> int:
        """Address of the outbox (0) or inbox (1) of GPU `owner` for GPU `other`."""
        window = self._mine() if owner == self._own else self._windows[owner]
        return self._memory[owner] + slots_of(window.peers)[other][which] * window.size_bytes

    def _copy(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        self._runtime.memcpyAsync(target, source, size_bytes, _COPY_DEFAULT, stream)

    def _event(self, stream: int) -> int:
        event = int(self._runtime.eventCreate())
        self._runtime.eventRecord(event, stream)
        return event

    def _write(self, box: int, key: int) -> None:
        piece_bytes = self._mine().size_bytes // PIECES
        with self._errors("writing what is to be copied"):
            for piece in range(PIECES):
                arguments = (
                    np.uint64(box + piece * piece_bytes), np.uint64(piece_bytes // WORD_BYTES),
                    np.uint64(piece_key(key, piece)),
                )  # fmt: skip
                self._kernels["peer_fill"]((self._blocks,), (THREADS,), arguments)
            # The copies go in streams that do not wait for this one.
            self._runtime.deviceSynchronize()

    def _compare(self, pieces: Sequence[tuple[int, int]], words: int) -> list[tuple[int, int]]:
        """For each address and key: how many of the `words` there differ, and the place of the first."""
        with self._errors("comparing what was copied"):
            out = self._cupy.asarray(np.array([[0, MASK64, 0]] * len(pieces), dtype=np.uint64))
            for row, (address, key) in enumerate(pieces):
                arguments = (np.uint64(address), np.uint64(words), np.uint64(key), out[row])
                self._kernels["peer_compare"]((self._blocks,), (THREADS,), arguments)
            found = [(int(count), int(first), int(compared)) for count, first, compared in out.get()]
        counts = {compared for _, _, compared in found}
        if counts != {words}:
            raise BackendError(
                f"the comparison of what {self._own} received looked at {min(counts)} of {words} words: "
                "a kernel did not run to its end; see the kernel log for an XID"
            )
        return [(count, first) for count, first, _ in found]

    def _word(self, address: int) -> int:
        on_host = np.zeros(1, dtype=np.uint64)
        with self._errors("reading a wrong word"):
            self._runtime.memcpy(on_host.ctypes.data, address, WORD_BYTES, _COPY_DEFAULT)
        return int(on_host[0])


def _unavailable(what: str, error: Exception) -> PeerUnavailable:
    code = getattr(error, "status", None)
    text = " ".join(str(error).split())[:200]
    why = _WHY.get(code or 0, f"CUDA says {text}: see the kernel log")
    return PeerUnavailable(f"{what}: {why}", code, by_host=code in _BY_HOST)
