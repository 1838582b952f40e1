"""Members meet: each listens for those after it and connects to those before it, on every rail, until all are there.

Whoever cannot authenticate is dropped: only addresses of members are heard at all, a handshake has HANDSHAKE_S, and of
one address at most MOST_PENDING are in it at a time, of which a new one ends the oldest. Nobody listens afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import os
import socket
import time
from collections import deque

from gpu_burnin.checks.fabric import auth
from gpu_burnin.checks.fabric.link import Frame
from gpu_burnin.checks.fabric.meeting import Meeting
from gpu_burnin.checks.fabric.mesh import Mesh
from gpu_burnin.device.port import DeviceError

HANDSHAKE_S = 2.0
MOST_PENDING = 4
_TRY_S = 3.0
_PAUSE_S = 0.1
_BACKLOG = 128


async def join(mesh: Mesh) -> None:
    """Until every link is there, the time is up, or another member waits no longer. Raises DeviceError of this host."""
    meeting = mesh.meeting
    deadline_s = time.monotonic() + meeting.join_s
    listeners = open_listeners(meeting)
    tasks = [asyncio.create_task(_serve(mesh, listener, rail)) for rail, listener in listeners.items()]
    tasks += [
        asyncio.create_task(_reach(mesh, rail, rank)) for rail in meeting.together for rank in range(meeting.rank)
    ]
    try:
        await _all_there(mesh, deadline_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for listener in listeners.values():
            listener.close()
    if mesh.missing():
        mesh.send(meeting.others, Frame.MESSAGE, {"kind": "closing"})
    mesh.joining = False


async def _all_there(mesh: Mesh, deadline_s: float) -> None:
    closing = asyncio.create_task(mesh.closing.wait())
    try:
        while mesh.missing() and not mesh.closing.is_set() and (left_s := deadline_s - time.monotonic()) > 0:
            mesh.changed.clear()
            changed = asyncio.create_task(mesh.changed.wait())
            await asyncio.wait({changed, closing}, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            changed.cancel()
    finally:
        closing.cancel()


def open_listeners(meeting: Meeting) -> dict[int, socket.socket]:
    """By rail; of the last member too, to whom nobody comes: it shows that the addresses are this host's."""
    found: dict[int, socket.socket] = {}
    try:
        for rail in meeting.together:
            address = meeting.address(meeting.rank, rail)
            found[rail] = sock = _socket(address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, meeting.port))
            sock.listen(_BACKLOG)
    except OSError as error:
        for sock in found.values():
            sock.close()
        remedy = "give the node's own addresses in fleet_fabric_nics"
        if error.errno == errno.EADDRINUSE:
            remedy = "run the test again, which takes another port"
        raise DeviceError(
            f"{meeting.name(meeting.rank)} cannot listen on {address} port {meeting.port} (rail {rail}: "
            f"{error.strerror}): {remedy}"
        ) from error
    return found


def _socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ipaddress.ip_address(address).version == 6 else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    return sock


# --- those who come ---


async def _serve(mesh: Mesh, listener: socket.socket, rail: int) -> None:
    loop, meeting = asyncio.get_running_loop(), mesh.meeting
    sources = {
        rank: str(ipaddress.ip_address(meeting.address(rank, rail))) for rank in range(meeting.rank + 1, meeting.ranks)
    }
    pending: dict[str, deque[asyncio.Task[None]]] = {source: deque() for source in sources.values()}
    try:
        while True:
            try:
                sock, source = await loop.sock_accept(listener)
            except OSError:
                # It went away again, or no file is left: others may come.
                await asyncio.sleep(_PAUSE_S)
                continue
            queue = pending.get(source[0])
            if queue is None:
                sock.close()
            else:
                while queue and (queue[0].done() or len(queue) >= MOST_PENDING):
                    queue.popleft().cancel()
                queue.append(asyncio.create_task(_admit(mesh, sock, rail, sources)))
            await asyncio.sleep(0)
    finally:
        left = [task for queue in pending.values() for task in queue]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def _admit(mesh: Mesh, sock: socket.socket, rail: int, sources: dict[int, str]) -> None:
    """Let one in, or close its connection."""
    way = None
    try:
        with contextlib.suppress(OSError, TimeoutError, auth.Refused):
            async with asyncio.timeout(HANDSHAKE_S):
                way = await auth.accept(sock, mesh.meeting.rank, rail, sources, _credential(mesh.meeting))
    finally:
        if way is None:
            sock.close()
    if way is not None:
        mesh.add(sock, rail, way.sender)


# --- those that are reached ---


async def _reach(mesh: Mesh, rail: int, rank: int) -> None:
    """Connect to a member, and again whenever that is lost."""
    meeting = mesh.meeting
    mesh.tries[rail, rank] = "no answer"  # while the first try is under way
    while True:
        if (rail, rank) not in mesh.links:
            sock = _socket(meeting.address(meeting.rank, rail))
            try:
                async with asyncio.timeout(_TRY_S):
                    await _connect(sock, meeting, rail, rank)
            except (OSError, TimeoutError, auth.Refused) as error:
                sock.close()
                # Who was there and did not authenticate says more than that it has gone since.
                if "authenticate" not in mesh.tries.get((rail, rank), ""):
                    mesh.tries[rail, rank] = _words(error)
            except BaseException:
                sock.close()
                raise
            else:
                mesh.add(sock, rail, rank)
        await asyncio.sleep(_PAUSE_S)


async def _connect(sock: socket.socket, meeting: Meeting, rail: int, rank: int) -> None:
    sock.bind((meeting.address(meeting.rank, rail), 0))
    await asyncio.get_running_loop().sock_connect(sock, (meeting.address(rank, rail), meeting.port))
    await auth.connect(sock, auth.Way(meeting.rank, rank, rail), _credential(meeting))


def _credential(meeting: Meeting) -> auth.Credential:
    return auth.Credential(meeting.secret, meeting.digest)


def _words(error: BaseException) -> str:
    """Why a connection could not be made."""
    if isinstance(error, TimeoutError) and not error.errno:
        return "no answer"
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error)
