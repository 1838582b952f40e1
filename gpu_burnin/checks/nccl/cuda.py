"""Collectives of the CUDA device: NCCL moves and adds, own kernels fill and compare.

On hardware it ran with one rank: between GPUs it was not tried.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.log import read_log
from gpu_burnin.checks.nccl.operations import (
    KINDS,
    MOST_RECORDED,
    POISON_BYTE,
    Operation,
    Outcome,
    Wrong,
    rank_key,
)
from gpu_burnin.checks.nccl.port import NcclMissing, Transports
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_errors import DeviceErrors, all_compared
from gpu_burnin.device.cuda_source import THREADS, cuda_source
from gpu_burnin.device.kernels import Loader
from gpu_burnin.device.port import DeviceError
from gpu_burnin.types import JSON

SOURCE = cuda_source(__package__, "kernels.cu")
# Codes of the types, shared by host and device.
_KIND_CODE = {"int32": 0, "int64": 1, "fp32": 2, "bf16": 3}
_BLOCKS_PER_SM = 8
# When all others have been heard of, a rank that hung has been killed: then an abort has nothing to wait for.
_GIVE_UP_S = 20.0
# cudaErrorNotReady (driver_types.h).
_NOT_READY = 600
# Words of a report where the wrong elements and the counters of the sources start.
_RECORDS = 2
_SOURCES = _RECORDS + 2 * MOST_RECORDED


def make_port(device: CudaDevice) -> CudaNccl:
    """See Device.port."""
    return CudaNccl(device.cupy, device.errors, device.loader, device.multiprocessors())


class CudaNccl:
    """The NcclPort protocol on the current GPU.

    `cupy` and `errors` are those of the device, `multiprocessors` the SMs of the GPU; `end_process` ends this process,
    and gets the reason. Everything goes in the current stream; nothing here waits for the device without a deadline
    while a communicator is in use.
    """

    algorithms: tuple[str, ...] = ("default", "ring", "nvls")

    def __init__(
        self,
        cupy: Any,
        errors: DeviceErrors,
        loader: Loader,
        multiprocessors: int,
        end_process: Callable[[str], None] | None = None,
    ) -> None:
        self._cupy, self._errors, self._loader = cupy, errors, loader
        self._end_process = end_process or _end_process
        self._blocks = multiprocessors * _BLOCKS_PER_SM
        self._kernels: dict[str, Any] = {}
        self._send: Any = None
        self._recv: Any = None
        # Of as many ranks as there have been: their keys, and what comparisons have counted.
        self._keys: Any = None
        self._report: Any = None
        self._nccl: nccl.Nccl | None = None
        self._comm: nccl.Communicator | None = None
        self._pending: tuple[str, list[tuple[Any, Any]]] | None = None
        self._compared = 0  # comparisons that were enqueued and not yet read
        self._log = Log()
        self._log_start = 0

    def version(self) -> str:
        return nccl.version_text(self._library().version())

    def expected_version(self) -> str | None:
        wheel = nccl.installed_wheel()
        return None if wheel is None else ".".join(wheel[0].split(".")[:3])

    def room_bytes(self) -> int:
        with self._errors("asking for free memory"):
            return int(self._cupy.cuda.runtime.memGetInfo()[0]) // 4

    def open(self, size_bytes: int) -> None:
        with self._errors(f"allocating two buffers of {size_bytes} bytes"):
            self._send, self._recv = (self._cupy.empty(size_bytes, dtype=np.uint8) for _ in range(2))
            self._kernels = self._loader.load(SOURCE, ("nccl_keys", "nccl_fill", "nccl_verify"))
        self._reserve(1)

    def offer(self, rank: int, ranks: int) -> JSON:
        return self._library().unique_id() if rank == 0 else None

    def join(self, offers: Sequence[JSON], rank: int, algorithm: str, timeout_s: float) -> None:
        self._reserve(len(offers))  # memory is asked for while nothing is under way
        self._log_start = self._log.size()
        if algorithm == "default":
            os.environ.pop("NCCL_ALGO", None)
        else:
            os.environ["NCCL_ALGO"] = algorithm
        deadline_s = time.monotonic() + timeout_s
        self._comm = nccl.Communicator(self._library(), str(offers[0]), rank, len(offers), deadline_s)

    def fill(self, op: Operation) -> None:
        self._launch(
            "nccl_fill",
            self._send,
            np.int32(_KIND_CODE[op.kind]),
            np.uint64(op.send_elements),
            np.uint64(rank_key(op.key, op.rank)),
            np.int32(op.shift),
            np.int32(op.adds),
            np.uint64(op.rank),
            np.uint64(op.groups),
        )
        self.forget(op)
        self._clear_report()

    def begin(self, op: Operation, times: int, timeout_s: float) -> None:
        comm, deadline_s = self._joined(), time.monotonic() + timeout_s
        send, recv, item_bytes = self._send.data.ptr, self._recv.data.ptr, KINDS[op.kind].size_bytes
        spans: list[tuple[Any, Any]] = []
        if self._pending is not None:
            self.forget(op)  # what another operation has left is not what this one brings
        for number in range(times):
            if number:
                self._compare(op)
                self.forget(op)
            with self._errors(f"running {op.collective}"):
                stream = self._cupy.cuda.get_current_stream().ptr
                started, ended = self._cupy.cuda.Event(), self._cupy.cuda.Event()
                started.record()
                comm.launch(op.collective, send, recv, op.chunk, op.kind, item_bytes, stream, deadline_s)
                ended.record()
            spans.append((started, ended))
        self._pending = (op.collective, spans)

    def finish(self, timeout_s: float) -> float:
        assert self._pending is not None
        (name, spans), self._pending = self._pending, None
        last = spans[-1][1]
        with self._errors(f"running {name}"):
            self._joined().wait(lambda: self._reached(last), name, time.monotonic() + timeout_s)
            return sum(float(self._cupy.cuda.get_elapsed_time(*span)) for span in spans) / 1e3

    def loop(self, op: Operation) -> None:
        with self._errors("copying"):
            self._recv.data.copy_from_device_async(self._send.data, op.send_bytes)

    def verify(self, op: Operation) -> Outcome:
        self._compare(op)
        times = self._compared
        with self._errors("reading a report"):
            words = [int(word) for word in self._report[: _SOURCES + (0 if op.adds else op.ranks)].get()]
        self._clear_report()
        wrong, compared = words[:_RECORDS]
        all_compared(op.collective, compared, times * op.recv_elements, "elements")
        listed = words[_RECORDS : _RECORDS + 2 * min(wrong, MOST_RECORDED)]
        found = [Wrong(position, bits) for position, bits in zip(listed[::2], listed[1::2], strict=True)]
        by_source = tuple(words[_SOURCES:])
        recorded = tuple(sorted(found, key=lambda one: one.position))
        return Outcome(wrong, recorded, compared, by_source)

    def _reached(self, event: Any) -> bool:
        """Whether the device has come to an event. Raises CuPy's error where the device has failed: CuPy's Event.done
        takes that for an event that is still to come, and an uncorrectable memory error for a hang."""
        runtime = self._cupy.cuda.runtime
        status = int(runtime.eventQuery(event.ptr))
        if status != _NOT_READY:
            runtime.check_status(status)
        return status == 0

    def _compare(self, op: Operation) -> None:
        """Enqueue a comparison of what was received, which adds to the report."""
        self._reserve(op.ranks)
        self._launch("nccl_keys", self._keys, np.uint64(op.ranks), np.uint64(op.key))
        self._launch(
            "nccl_verify",
            self._recv,
            np.int32(_KIND_CODE[op.kind]),
            np.uint64(op.recv_elements),
            self._keys,
            np.uint64(op.ranks),
            np.uint64(op.groups),
            np.uint64(op.chunk),
            np.uint64(op.offset),
            np.int32(op.shift),
            np.int32(op.adds),
            self._report,
            np.uint64(MOST_RECORDED),
        )
        self._compared += 1

    def _reserve(self, ranks: int) -> None:
        """Room for the keys and counters of so many ranks; what was counted is lost where there was not enough."""
        if self._keys is None or self._keys.size < ranks:
            with self._errors(f"allocating the keys and counters of {ranks} ranks"):
                self._keys = self._cupy.empty(ranks, dtype=np.uint64)
                self._report = self._cupy.zeros(_SOURCES + ranks, dtype=np.uint64)

    def _clear_report(self) -> None:
        with self._errors("clearing a report"):
            self._report.data.memset_async(0, self._report.nbytes)
        self._compared = 0

    def flip(self, op: Operation, position: int, mask: int) -> None:
        size = KINDS[op.kind].size_bytes
        with self._errors("planting a fault"):
            element = self._recv[position * size : (position + 1) * size]
            bits = int.from_bytes(element.get().tobytes(), "little") ^ mask
            element.set(np.frombuffer(bits.to_bytes(size, "little"), dtype=np.uint8))

    def forget(self, op: Operation) -> None:
        with self._errors("poisoning"):
            self._recv.data.memset_async(POISON_BYTE, op.recv_bytes)

    def transports(self) -> Transports:
        return read_log(self._log.lines(self._log_start))

    def leave(self, timeout_s: float) -> None:
        comm, self._comm = self._joined(), None
        try:
            comm.leave(time.monotonic() + timeout_s)
        except DeviceError:
            comm.abort()
            raise

    def abort(self) -> None:
        self._pending = None
        if self._comm is not None:
            self._comm.abort()
            self._comm = None

    def close(self) -> None:
        self.abort()
        os.environ.pop("NCCL_ALGO", None)
        if self._nccl is not None and not self._nccl.given_up(_GIVE_UP_S):
            # Its kernel may still be on the device: what comes next would wait for it, or measure it.
            self._end_process("NCCL does not return from ncclCommAbort: this worker ends, a fresh one goes on")
        if self._send is not None:
            self._send = self._recv = self._keys = self._report = None
            self._kernels = {}
            with self._errors("giving back memory"):
                self._cupy.get_default_memory_pool().free_all_blocks()

    def _library(self) -> nccl.Nccl:
        """The library, loaded at the first call."""
        if self._nccl is None:
            library = nccl.Nccl(nccl.load_library())
            self._log.start()
            code = library.version()
            if code < nccl.OLDEST:
                raise NcclMissing(
                    f"NCCL {nccl.version_text(code)} is too old, {nccl.version_text(nccl.OLDEST)} is the oldest that "
                    "can be used: install gpu-burnin[cuda12] or gpu-burnin[cuda13]"
                )
            self._nccl = library
        return self._nccl

    def _joined(self) -> nccl.Communicator:
        assert self._comm is not None, "no communicator"
        return self._comm

    def _launch(self, kernel: str, *arguments: Any) -> None:
        with self._errors(f"launching {kernel}"):
            self._kernels[kernel]((self._blocks,), (THREADS,), arguments)


def _end_process(why: str) -> None:
    """At once: an orderly exit would wait for the device."""
    print(why, file=sys.stderr, flush=True)
    os._exit(os.EX_SOFTWARE)


class Log:
    """What NCCL writes of itself, in memory: nothing is left behind, however the process ends.

    The library opens the file of NCCL_DEBUG_FILE once a process, so a later object goes on with the one of the first.
    """

    def __init__(self) -> None:
        self._fd = -1

    def start(self) -> None:
        """Has to come before the first call of the library."""
        named, own = os.environ.get("NCCL_DEBUG_FILE", ""), f"/proc/{os.getpid()}/fd/"
        if named.startswith(own):
            self._fd = int(named.removeprefix(own))
            return
        # By process: a child inherits the variable, and not the file.
        self._fd = os.memfd_create("gpu-burnin-nccl-log")
        nccl.prepare_environment(f"{own}{self._fd}", os.environ)

    def size(self) -> int:
        """Bytes until now."""
        return os.fstat(self._fd).st_size if self._fd >= 0 else 0

    def lines(self, start: int) -> list[str]:
        """Whole lines from a byte on."""
        size = self.size()
        return os.pread(self._fd, size - start, start).decode(errors="replace").splitlines() if size > start else []
