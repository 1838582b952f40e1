"""A stand-in for libnccl and the part of CuPy that the collectives use. With one rank it also moves data."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

from gpu_burnin.checks.nccl.cuda import SOURCE, CudaNccl
from tests.support.clocks import PATIENCE_S
from tests.support.cuda_fakes import LAUNCH, SHIM, CudaError, FakeCupy, FakeEvent, FakeFunction
from tests.support.host_kernels import THREADED, compile_for_host, with_host_threads

_SIZE = {2: 4, 4: 8, 7: 4, 9: 2, 1: 1}
COMM = 0xC033
# Of the messages and of the time for one thing in most tests.
SIZE_BYTES, LIMIT_S = 20_000, PATIENCE_S


def join(port: CudaNccl, ranks: int = 1, rank: int = 0, algorithm: str = "default") -> None:
    """A communicator of which this rank alone has made an offer."""
    offers = [port.offer(0, ranks), *[None] * (ranks - 1)]
    port.join(offers, rank, algorithm, LIMIT_S)


def compile_nccl_kernels() -> ctypes.CDLL:
    """The kernels of the collectives as a host library."""
    return compile_for_host(SHIM + with_host_threads(SOURCE) + LAUNCH, *THREADED)


class _Event(FakeEvent):
    ptr = 0xE7


class FakeGpu(FakeCupy):
    """CuPy with events that can be asked, and are over as soon as they are recorded. `hangs` stops the device, `status`
    is the error that it has come to: like CuPy's, eventQuery gives it back and raises nothing."""

    def __init__(self, kernels: ctypes.CDLL | None = None) -> None:
        super().__init__(kernels)
        self.hangs, self.status = False, 0
        self.runtime.eventQuery = lambda event: self.status or (600 if self.hangs else 0)
        self.runtime.check_status = self._check
        self.free_bytes = 1 << 40
        self.runtime.memGetInfo = lambda: (self.free_bytes, 1 << 40)
        self.cuda.Event = lambda: _Event(self)

    @staticmethod
    def _check(status: int) -> None:
        if status:
            raise CudaError(status, f"status {status}")


class FakeNccl:
    """libnccl: `states` are the answers of ncclCommGetAsyncError, success when they are used up."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.statuses: dict[str, int] = {}
        self.states: list[int] = []
        self.stuck = False
        self.abort_may_end = threading.Event()
        self.abort_may_end.set()
        self.code = 23203
        self.config: Any = None
        self.environment: dict[str, str] = {}
        self._functions: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("nccl"):
            raise AttributeError(name)
        return self._functions.setdefault(name, FakeFunction(self, name))  # type: ignore[arg-type]

    def names(self) -> list[str]:
        """Names of the calls so far, without the questions about the state."""
        return [name for name, _ in self.calls if name != "ncclCommGetAsyncError"]

    def call(self, name: str, arguments: tuple[Any, ...]) -> Any:
        """Answer one call."""
        if name == "ncclGetErrorString":
            return {1: b"unhandled cuda error", 6: b"remote process exited"}.get(arguments[0])
        if name == "ncclGetLastError":
            return b"Cuda failure\n  'out of memory'"
        self.calls.append((name, arguments))
        if name == "ncclCommGetAsyncError":
            arguments[1]._obj.value = 7 if self.stuck else self.states.pop(0) if self.states else 0
            return 0
        status = self.statuses.get(name, 0)
        if status == 0:
            getattr(self, f"_{name}", lambda *rest: None)(*arguments)
        return status

    def _ncclGetVersion(self, where: Any) -> None:
        where._obj.value = self.code

    def _ncclGetUniqueId(self, where: Any) -> None:
        ctypes.memset(ctypes.byref(where._obj), 0xAB, 128)

    def _ncclCommInitRankConfig(self, where: Any, ranks: int, unique_id: Any, rank: int, config: Any) -> None:
        where._obj.value = COMM
        self.config = config._obj
        self.joined = (ranks, bytes(unique_id), rank)

    def _ncclAllReduce(self, send: int, recv: int, count: int, kind: int, *rest: Any) -> None:
        ctypes.memmove(recv, send, count * _SIZE[kind])

    _ncclReduceScatter = _ncclAllGather = _ncclAllReduce

    def _ncclCommAbort(self, comm: Any) -> None:
        self.abort_may_end.wait(PATIENCE_S)

    def _ncclSend(self, send: int, count: int, kind: int, *rest: Any) -> None:
        self._sent = (send, count * _SIZE[kind])

    def _ncclRecv(self, recv: int, count: int, kind: int, *rest: Any) -> None:
        ctypes.memmove(recv, *self._sent)
