"""libnccl through ctypes, non-blocking: every call comes back, and what hangs is given up after a deadline.

Only what the nccl check needs. Layout and values are those of nccl.h 2.32.3; members of ncclConfig_t are only ever
added at its end, and the library reads as much of it as it knows. Version, unique id and the symbols were tried
against the library without a GPU; communicators of one rank have run on hardware (docs/verified-hardware.md), and
several ranks have not run on hardware.

NCCL_ALGO is read each time a communicator is made (ncclGetEnv in the tuning model), so two communicators of one
process can use two algorithms. NCCL_DEBUG, NCCL_DEBUG_SUBSYS and NCCL_DEBUG_FILE are read once a process
(ncclDebugInit), so they have to be set before the first call.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from gpu_burnin.checks.nccl.port import NcclFailed, NcclMissing, NcclTimeout
from gpu_burnin.device.wheels import open_first, wheel_files

SONAME = "libnccl.so.2"
WHEELS = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
# Non-blocking communicators came with 2.14, ncclCommSplit and its config with 2.18, which CuPy wants as well.
OLDEST = 21801
UNIQUE_ID_BYTES = 128
# ncclResult_t.
SUCCESS, IN_PROGRESS = 0, 7
# ncclDataType_t and ncclRedOp_t.
DATA_TYPE = {"int32": 2, "int64": 4, "fp32": 7, "bf16": 9}
_BYTES, _SUM = 1, 0  # ncclUint8, ncclSum
# NCCL_API_MAGIC, NCCL_CONFIG_UNDEF_INT, and NCCL_VERSION_CODE of the header that Config follows.
_MAGIC, _UNDEFINED, HEADER_VERSION = 0xCAFEBEEF, -(1 << 31), 23203
# Between two looks at a communicator that is under way.
_POLL_S = 0.0002
# An abort takes well under a second where all ranks are there to do the same.
_ABORT_S = 5.0
_FIXES = {
    1: "see the kernel log for an XID, and check the driver with nvidia-smi",
    2: "see the limits on memory, files and shared memory (/dev/shm) of this host or container",
    3: "run again; if it stays, look the message up in the NCCL issues",
    4: "this is a fault of gpu-burnin: report it",
    5: "this is a fault of gpu-burnin or of the environment: report it",
    6: "another worker ended: see its own reasons",
}

_INTEGERS = (
    "cgaClusterSize", "minCTAs", "maxCTAs", "*netName", "splitShare", "trafficClass", "*commName", "collnetEnable",
    "CTAPolicy", "shrinkShare", "nvlsCTAs", "nChannelsPerNetPeer", "nvlinkCentricSched", "graphUsageMode", "numRmaCtx",
    "maxP2pPeers", "graphStreamOrdering", "launchOrderImplicit", "numRmaSig", "rmaEagerInit", "hostCftMode",
    "nvlsHostMode",
)  # fmt: skip


class Config(ctypes.Structure):
    """ncclConfig_t; all but `blocking` undefined, as NCCL_CONFIG_INITIALIZER leaves it."""

    _fields_ = (
        ("size", ctypes.c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
        *((name.lstrip("*"), ctypes.c_char_p if name[0] == "*" else ctypes.c_int) for name in _INTEGERS),
    )


class UniqueId(ctypes.Structure):
    """ncclUniqueId: passed by value."""

    _fields_ = (("internal", ctypes.c_char * UNIQUE_ID_BYTES),)


def make_config() -> Config:
    """A configuration for a communicator that never blocks."""
    made = Config(ctypes.sizeof(Config), _MAGIC, HEADER_VERSION, 0)
    for name in _INTEGERS:
        if name[0] != "*":
            setattr(made, name, _UNDEFINED)
    return made


_PTR, _INT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "ncclGetVersion": (_PTR,),
    "ncclGetUniqueId": (_PTR,),
    "ncclCommInitRankConfig": (_PTR, _INT, UniqueId, _INT, _PTR),
    "ncclCommFinalize": (_PTR,),
    "ncclCommDestroy": (_PTR,),
    "ncclCommAbort": (_PTR,),
    "ncclCommGetAsyncError": (_PTR, _PTR),
    "ncclGroupStart": (),
    "ncclGroupEnd": (),
    "ncclAllReduce": (_PTR, _PTR, _SIZE, _INT, _INT, _PTR, _PTR),
    "ncclReduceScatter": (_PTR, _PTR, _SIZE, _INT, _INT, _PTR, _PTR),
    "ncclAllGather": (_PTR, _PTR, _SIZE, _INT, _PTR, _PTR),
    "ncclSend": (_PTR, _SIZE, _INT, _INT, _PTR, _PTR),
    "ncclRecv": (_PTR, _SIZE, _INT, _INT, _PTR, _PTR),
}


def version_text(code: int) -> str:
    """23203 as 2.32.3 (NCCL_VERSION of nccl.h, from 2.9 on)."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


def installed_wheel() -> tuple[str, str] | None:
    """Version of the installed nvidia wheel and the path of its library, newest CUDA first; None without one."""
    return next(wheel_files(WHEELS, (SONAME,)), None)


def load_library(open_library: Callable[[str], Any] = ctypes.CDLL) -> Any:
    """libnccl of the nvidia wheels, else of the loader's path. Raises NcclMissing."""
    wheel = installed_wheel()
    texts = {"ncclGetErrorString": (ctypes.c_char_p, (_INT,)), "ncclGetLastError": (ctypes.c_char_p, (_PTR,))}
    try:
        return open_first((*((wheel[1],) if wheel else ()), SONAME), SIGNATURES, texts, open_library)
    except OSError as error:
        raise NcclMissing(
            f"NCCL cannot be loaded ({error}): install gpu-burnin[cuda12] or gpu-burnin[cuda13]"
        ) from error


def prepare_environment(log: str, environment: Any = os.environ) -> None:
    """Have the library tell of its transports and algorithms in a file; set before it is called for the first time.

    The ranks of one node find each other over the loopback interface, and no network card has a part in the check:
    neither a firewall nor a broken card nor a missing network may stop it.
    """
    environment["NCCL_SOCKET_IFNAME"] = "=lo"
    environment["NCCL_IB_DISABLE"] = "1"
    environment["NCCL_DEBUG"] = "INFO"
    environment["NCCL_DEBUG_SUBSYS"] = "INIT,GRAPH,TUNING,P2P,SHM,NET,NVLS"
    environment["NCCL_DEBUG_FILE"] = log


class Nccl:
    """The library, and what a call of it means."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._aborting: threading.Thread | None = None

    def version(self) -> int:
        """NCCL_VERSION_CODE of the library."""
        found = ctypes.c_int()
        self.call("ncclGetVersion", ctypes.byref(found))
        return found.value

    def unique_id(self) -> str:
        """An id for a new communicator, in hex."""
        made = UniqueId()
        self.call("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made).hex()

    def call(self, name: str, *arguments: Any) -> int:
        """SUCCESS or IN_PROGRESS. Raises NcclFailed with the library's own words."""
        status = int(getattr(self._library, name)(*arguments))
        if status not in (SUCCESS, IN_PROGRESS):
            raise NcclFailed(self.explain(name, status))
        return status

    def abandon(self, comm: Any) -> None:
        """Begin ncclCommAbort, and wait for its end a little; whatever it says, there is nothing left to do about it.

        It waits for the other ranks of the node: with one that hangs it comes back when that one is killed, if at all
        (NVIDIA/nccl issues 863 and 1777). So it has a thread of its own.
        """
        self._aborting = threading.Thread(target=self._library.ncclCommAbort, args=(comm,), daemon=True)
        self._aborting.start()
        self.given_up(_ABORT_S)

    def given_up(self, timeout_s: float) -> bool:
        """Whether the last abort has ended, waiting for that up to `timeout_s`; True where there was none."""
        if self._aborting is not None:
            self._aborting.join(timeout_s)
        return self._aborting is None or not self._aborting.is_alive()

    def end_group(self) -> None:
        """ncclGroupEnd after a call in the group has failed: else all later calls would only be put into it."""
        self._library.ncclGroupEnd()

    def explain(self, name: str, status: int) -> str:
        """One sentence for a status that is not success."""
        error = self._library.ncclGetErrorString(status)
        text = error.decode(errors="replace") if error else "unknown status"
        last = self._library.ncclGetLastError(None)
        detail = f"; {' '.join(last.decode(errors='replace').split())[:300]}" if last else ""
        return f"{name}: status {status} ({text}{detail}): {_FIXES.get(status, 'see the NCCL documentation')}"


class Communicator:
    """One non-blocking communicator. Each call has a deadline, a moment of CLOCK_MONOTONIC in seconds."""

    def __init__(self, nccl: Nccl, unique_id: str, rank: int, ranks: int, deadline_s: float) -> None:
        """Raises NcclTimeout when not all ranks come, NcclFailed when the library fails."""
        self._nccl, self.rank, self.ranks = nccl, rank, ranks
        self._comm: ctypes.c_void_p | None = ctypes.c_void_p()
        config = make_config()
        made = UniqueId.from_buffer_copy(bytes.fromhex(unique_id))
        try:
            nccl.call("ncclCommInitRankConfig", ctypes.byref(self._comm), ranks, made, rank, ctypes.byref(config))
            self._settle("ncclCommInitRankConfig", deadline_s)
        except (NcclFailed, NcclTimeout):
            self.abort()
            raise

    def launch(
        self, collective: str, send: int, recv: int, chunk: int, kind: str, item_bytes: int, stream: int,
        deadline_s: float,
    ) -> None:  # fmt: skip
        """Enqueue one operation. `send` and `recv` are device addresses, `chunk` elements for each rank."""
        nccl, comm = self._nccl, self._comm
        kind_code = DATA_TYPE[kind]
        if collective == "all_reduce":
            nccl.call("ncclAllReduce", send, recv, chunk * self.ranks, kind_code, _SUM, comm, stream)
        elif collective == "reduce_scatter":
            nccl.call("ncclReduceScatter", send, recv, chunk, kind_code, _SUM, comm, stream)
        elif collective == "all_gather":
            nccl.call("ncclAllGather", send, recv, chunk, kind_code, comm, stream)
        else:
            size = chunk * item_bytes
            nccl.call("ncclGroupStart")
            try:
                for peer in range(self.ranks):
                    nccl.call("ncclSend", send + peer * size, size, _BYTES, peer, comm, stream)
                    nccl.call("ncclRecv", recv + peer * size, size, _BYTES, peer, comm, stream)
            except NcclFailed:
                nccl.end_group()
                raise
            nccl.call("ncclGroupEnd")
        # A call that is still in progress has not yet put its kernel on the stream.
        self._settle(collective, deadline_s)

    def wait(self, done: Callable[[], bool], what: str, deadline_s: float) -> None:
        """Until `done`, looking for errors of the library meanwhile. Raises NcclTimeout, NcclFailed."""
        while not done():
            self._state(what)
            if time.monotonic() > deadline_s:
                raise NcclTimeout(f"{what} did not end before its deadline")
            time.sleep(_POLL_S)

    def leave(self, deadline_s: float) -> None:
        """Finalize and destroy."""
        self._nccl.call("ncclCommFinalize", self._comm)
        self._settle("ncclCommFinalize", deadline_s)
        self._nccl.call("ncclCommDestroy", self._comm)
        self._comm = None

    def abort(self) -> None:
        """Give it up (Nccl.abandon); a second call does nothing."""
        if self._comm:
            self._nccl.abandon(self._comm)
        self._comm = None

    def _settle(self, what: str, deadline_s: float) -> None:
        self.wait(lambda: self._state(what) == SUCCESS, what, deadline_s)

    def _state(self, what: str) -> int:
        state = ctypes.c_int()
        self._nccl.call("ncclCommGetAsyncError", self._comm, ctypes.byref(state))
        if state.value not in (SUCCESS, IN_PROGRESS):
            raise NcclFailed(self._nccl.explain(what, state.value))
        return state.value
