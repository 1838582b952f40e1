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
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_errors import DeviceErrors, all_compared
from gpu_burnin.device.cuda_source import THREADS, cuda_source
from gpu_burnin.device.kernels import Loader
from gpu_burnin.exact.operands import MASK64
from gpu_burnin.types import JSON

SOURCE = cuda_source(__package__, "kernels.cu")
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
    400: "the handle is no longer valid (cudaErrorInvalidResourceHandle): the worker of the other GPU died",
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


def make_port(device: CudaDevice) -> CudaNvlink:
    """See Device.port."""
    return CudaNvlink(device.cupy, device.errors, device.loader, device.blocks)


class CudaNvlink(WindowedPort[int]):
    """The NvlinkPort protocol on the GPU of this worker. `blocks` is how many blocks the device holds at a time."""

    simulated = False

    def __init__(self, cupy: Any, errors: DeviceErrors, loader: Loader, blocks: int) -> None:
        super().__init__()
        self._cupy, self._errors, self._loader, self._blocks = cupy, errors, loader, blocks
        self._runtime = cupy.cuda.runtime
        self._kernels: dict[str, Any] = {}
        self._memory: dict[str, int] = {}
        self._streams: dict[str, int] = {}
        self._begun: list[_Begun] = []

    def export(self, own: str, peers: Sequence[str], size_bytes: int, faults: LinkFaults | None = None) -> JSON:
        window = self._new_window(peers, size_bytes, faults)
        self.close()
        total = window.total_bytes
        with self._errors(f"taking {total} bytes for copies between GPUs"):
            if not self._kernels:
                self._kernels = self._loader.load(SOURCE, ("nvlink_fill", "nvlink_compare"))
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
        window, given = self._window_of(uuid, handle)
        if uuid != self._own:
            try:
                self._memory[uuid] = int(self._runtime.ipcOpenMemHandle(bytes.fromhex(str(given["handle"]))))
            except self._runtime.CUDARuntimeError as error:
                raise _unavailable(f"the memory of {uuid} cannot be reached", error) from error
        with self._errors("making a stream"):
            self._streams[uuid] = int(self._runtime.streamCreateWithFlags(_NON_BLOCKING))
        self._windows[uuid] = window

    def begin(self, uuid: str, direction: Direction, copies: int = 1) -> None:
        source, target, times = self._planned(uuid, direction, copies)
        own, fault, stream = self._mine(), self._injected.get(uuid), self._streams[uuid]
        piece_bytes = own.size_bytes // PIECES
        with self._errors(f"copying between {self._own} and {uuid}"):
            begun = _Begun(self._event(stream), 0, copies * own.size_bytes)
            for _ in range(times):
                if fault is None or fault == Kind.CORRUPTED:
                    self._copy(target, source, own.size_bytes, stream)
                    continue
                for piece, place in copy_order(fault):
                    self._copy(target + place * piece_bytes, source + piece * piece_bytes, piece_bytes, stream)
            if fault == Kind.CORRUPTED:
                spare = self._memory[self._own] + own.total_bytes
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
        self._injected.clear()
        self._window = None
        with self._errors("giving back the memory for copies between GPUs"):
            for uuid in list(self._memory):
                self._runtime.free(self._memory.pop(uuid))

    def _box(self, owner: str, offset_bytes: int) -> int:
        return self._memory[owner] + offset_bytes

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
                self._kernels["nvlink_fill"]((self._blocks,), (THREADS,), arguments)
            # The copies go in streams that do not wait for this one.
            self._runtime.deviceSynchronize()

    def _compare(self, box: int, pieces: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        piece_bytes = self._mine().size_bytes // PIECES
        words = piece_bytes // WORD_BYTES
        with self._errors("comparing what was copied"):
            out = self._cupy.asarray(np.array([[0, MASK64, 0]] * len(pieces), dtype=np.uint64))
            for row, (piece, key) in enumerate(pieces):
                arguments = (np.uint64(box + piece * piece_bytes), np.uint64(words), np.uint64(key), out[row])
                self._kernels["nvlink_compare"]((self._blocks,), (THREADS,), arguments)
            found = [(int(count), int(first), int(compared)) for count, first, compared in out.get()]
        for _, _, compared in found:
            all_compared("what was copied", compared, words)
        return [(count, first) for count, first, _ in found]

    def _word(self, box: int, place: int) -> int:
        on_host = np.zeros(1, dtype=np.uint64)
        with self._errors("reading a wrong word"):
            self._runtime.memcpy(on_host.ctypes.data, box + place * WORD_BYTES, WORD_BYTES, _COPY_DEFAULT)
        return int(on_host[0])


def _unavailable(what: str, error: Exception) -> NvlinkUnavailable:
    code = getattr(error, "status", None)
    text = " ".join(str(error).split())[:200]
    why = _WHY.get(code or 0, f"CUDA says {text}: see the kernel log")
    return NvlinkUnavailable(f"{what}: {why}", code, by_host=code in _BY_HOST)
