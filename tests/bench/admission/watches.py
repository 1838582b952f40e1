"""One watch by name for each node, as its agent holds it: what it costs the API server, and how soon it tells."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.bench.admission.api import Api
from tests.bench.admission.fleet import NODES
from tests.bench.admission.measure import Stopwatch, memory_mib

AT_ONCE = 32
IDLE_S = 30.0
CHANGES = 20


@dataclass
class Watches:
    """What so many watches cost the API server: to open them, and to hold them."""

    count: int
    memory_mib: float = 0.0
    open_s: float = 0.0
    open_cpu_s: float = 0.0
    idle_cpu_share: float = 0.0
    latencies_s: list[float] = field(default_factory=list)


def measure_watches(api: Api, apiserver_pid: int, names: Sequence[str]) -> Watches:
    """Open them, hold them, change some of their nodes."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return asyncio.run(_measure(api, apiserver_pid, names))


async def _measure(api: Api, pid: int, names: Sequence[str]) -> Watches:
    found = Watches(len(names))
    before_mib, watch = memory_mib(pid), Stopwatch([pid])
    turns = asyncio.Semaphore(AT_ONCE)

    async def opened(name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        async with turns:
            return await _open(api, name)

    streams = await asyncio.gather(*(opened(name) for name in names))
    found.open_s, found.open_cpu_s = watch.wall_s, watch.cpu_s
    idle = Stopwatch([pid])
    await asyncio.sleep(IDLE_S)
    found.idle_cpu_share = idle.cpu_s / idle.wall_s
    found.memory_mib = memory_mib(pid) - before_mib
    step = max(1, len(names) // CHANGES)
    for name, (reader, _) in list(zip(names, streams, strict=True))[::step]:
        found.latencies_s.append(await _told_after(api, name, reader))
    for _, writer in streams:
        writer.transport.abort()
    return found


async def _open(api: Api, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A watch that has said what its Node is now."""
    reader, writer = await asyncio.open_connection("127.0.0.1", api.server.port, ssl=api.context)
    path = f"{NODES}?watch=1&fieldSelector=metadata.name%3D{name}&resourceVersion=0&timeoutSeconds=3600"
    headers = f"Host: 127.0.0.1\r\nImpersonate-User: system:node:{name}\r\nImpersonate-Group: system:nodes\r\n"
    writer.write(f"GET {path} HTTP/1.1\r\n{headers}\r\n".encode())
    answer = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in answer.partition(b"\r\n")[0]:
        raise RuntimeError(f"the watch of {name}: {answer[:200]!r}")
    await _event(reader)
    return reader, writer


async def _event(reader: asyncio.StreamReader) -> bytes:
    """One event, which the server sends as one or more chunks that end with a newline."""
    data = b""
    while not data.endswith(b"\n"):
        size = int(await reader.readline(), 16)
        data += await reader.readexactly(size)
        await reader.readexactly(2)
    return data


async def _told_after(api: Api, name: str, reader: asyncio.StreamReader) -> float:
    """Seconds from sending a change of the Node to hearing of it."""
    mark = f"{time.monotonic_ns()}"
    began_s = time.monotonic()
    change = asyncio.to_thread(api.merge, f"{NODES}/{name}", {"metadata": {"annotations": {"bench": mark}}})
    sent = asyncio.ensure_future(change)
    while mark.encode() not in await _event(reader):
        pass
    told_s = time.monotonic() - began_s
    await sent
    return told_s
