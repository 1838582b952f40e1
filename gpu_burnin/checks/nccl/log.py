"""What NCCL writes of itself with NCCL_DEBUG=INFO: transports, multicast, algorithms. Pure.

Formats, by the strings of the library 2.32.3 and logs of 2.18 to 2.29 in its issues:
    Channel 00/0 : 1[1] -> 0[0] via P2P/CUMEM          also P2P/IPC/read, P2P/direct pointer, P2P/indirect/2[2]
    Channel 01 : 7[7] -> 2[2] via SHM/direct/direct
    Channel 07/0 : 0[0] -> 2[0] [receive] via NET/IB/3/GDRDMA
    NVLS multicast support is not available on dev 4   (from 2.30 on with more behind it)
    Pattern 4, crossNic 0, nChannels 16, bw 20.000000/20.000000, type NVL/PIX, sameChannels 1   (4: ring; before "/":
        between GPUs of the node, one of LOC NVL NVB C2C PIX PXB P2C PXN PHB SYS)
    AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..1}     (rank 0 only)
    805306368 Bytes -> Algo 1 proto 2 time 3970.683594                     (up to 2.23, by number)
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpu_burnin.checks.nccl.port import Route, Transports

_ROUTE = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[(?:send|receive)\])? via (\S+)")
_COLLNET = re.compile(r"CollNet \d+/\d+ : (\d+) \[(?:send|receive)\] via (\S+)")
_RING = re.compile(r"Pattern 4, crossNic \d+, nChannels \d+, .*\btype (\w+)/\w+")
_MULTICAST = re.compile(r"NVLS multicast support is (not )?available on dev")
_ALGORITHM = re.compile(r"(?:(\w+): )?\d+ Bytes -> Algo (\w+) proto")
# ncclAlgoStr by number.
_NUMBERED = ("tree", "ring", "collnetdirect", "collnetchain", "nvls", "nvlstree", "pat")


def read_log(lines: Iterable[str]) -> Transports:
    """All that the log says about one communicator; each route and algorithm once, in order of their first line."""
    routes: dict[Route, None] = {}
    algorithms: dict[str, dict[str, None]] = {}
    multicast: bool | None = None
    ring_path: str | None = None
    read = False
    for line in lines:
        _, mark, text = line.partition("NCCL INFO ")
        if not mark:
            continue
        read = True
        if found := _ROUTE.search(text):
            routes[Route(int(found[1]), int(found[2]), found[3])] = None
        elif found := _COLLNET.search(text):
            routes[Route(int(found[1]), int(found[1]), found[2])] = None
        elif found := _RING.search(text):
            ring_path = found[1]
        elif found := _MULTICAST.search(text):
            multicast = found[1] is None
        elif found := _ALGORITHM.search(text):
            algorithms.setdefault(found[1] or "any", {})[_name(found[2])] = None
    used = {name: tuple(of) for name, of in algorithms.items()}
    return Transports(tuple(routes), multicast, used, read, ring_path)


def _name(algorithm: str) -> str:
    if algorithm.isdigit():
        return _NUMBERED[int(algorithm)] if int(algorithm) < len(_NUMBERED) else algorithm
    return algorithm.lower().replace("_", "")
