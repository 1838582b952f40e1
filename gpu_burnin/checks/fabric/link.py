"""One connection to one other member on one rail: frames out, frames in, and when anything last came.

A frame is a header (kind, tag, length) and its payload. Data goes straight into the memory that is waiting for its tag;
while none does, the link is not read, so that a member that is ahead waits in its own kernel. A header travels alone:
of a large message that is lost on its way it shows that there was one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import sys
import time
from collections.abc import Callable
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

_HEADER = struct.Struct("!BQQ")
# Messages that are no data: reports of all ranks in one.
MOST_MESSAGE_BYTES = 1 << 20
_PIECE_BYTES = 1 << 20
# Where tcpi_total_retrans is in the kernel's struct tcp_info (linux/tcp.h).
_TOTAL_RETRANS = 100


class Frame(IntEnum):
    """Kinds of frames."""

    BEAT = 0
    MESSAGE = 1
    DATA = 2
    BYE = 3


class Broken(Exception):
    """The other end sent what is no frame of this protocol."""


class Link:
    """A connection that has authenticated. `heard(link, kind, payload)` gets messages, `ended(link, why)` its end."""

    def __init__(
        self,
        sock: socket.socket,
        rail: int,
        rank: int,
        heard: Callable[[Link, Frame, bytes], None],
        ended: Callable[[Link, str], None],
    ) -> None:
        self._sock, self.rail, self.rank = sock, rail, rank
        self._heard, self._ended = heard, ended
        self._lock, self._changed = asyncio.Lock(), asyncio.Event()
        self._awaited: dict[int, tuple[Bytes, asyncio.Future[float]]] = {}
        self._sends: set[asyncio.Task[None]] = set()
        self._drains = False
        self.last_in_s = time.monotonic()
        self.waits = False  # for memory: what comes is not read
        self.in_data = False  # between a header of data and its last byte
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = asyncio.create_task(self._read())

    # --- out ---

    def post(self, kind: Frame, payload: bytes | Bytes = b"", tag: int = 0) -> asyncio.Task[None]:
        """Send a frame behind those before it. The task ends when the kernel has all of it; it raises nothing."""
        task = asyncio.create_task(
            self._send(kind, payload.data if isinstance(payload, np.ndarray) else memoryview(payload), tag)
        )
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)
        return task

    async def _send(self, kind: Frame, payload: memoryview, tag: int) -> None:
        loop = asyncio.get_running_loop()
        # A connection that is gone ends its reader, which says so.
        with contextlib.suppress(OSError):
            async with self._lock:
                await loop.sock_sendall(self._sock, _HEADER.pack(kind, tag, payload.nbytes))
                if payload.nbytes:
                    await loop.sock_sendall(self._sock, payload)

    @property
    def sends(self) -> bool:
        """Whether frames wait to be sent."""
        return bool(self._sends)

    def sent_again(self) -> int:
        """Segments that the kernel has sent more than once, because they or their confirmation were lost."""
        try:
            info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TOTAL_RETRANS + 4)
            return int.from_bytes(info[_TOTAL_RETRANS : _TOTAL_RETRANS + 4], sys.byteorder)
        except OSError:
            return 0

    # --- in ---

    def expect(self, tag: int, room: Bytes) -> asyncio.Future[float]:
        """Memory for the data with this tag: seconds from its header to its last byte, when it is there."""
        future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._awaited[tag] = (room, future)
        self._changed.set()
        return future

    def drain(self) -> None:
        """Throw away what comes from now on, but for messages."""
        self._drains = True
        self._changed.set()

    async def _read(self) -> None:
        why = ""
        try:
            await self._frames()
        except Broken as error:
            why = str(error)
        except OSError as error:
            why = f"its connection broke ({error.strerror or type(error).__name__})"
        except EOFError:
            why = "it closed its connection"
        self._ended(self, why)

    async def _frames(self) -> None:
        header = np.zeros(_HEADER.size, dtype=np.uint8)
        while True:
            await self._fill(header)
            number, tag, length = _HEADER.unpack(header.tobytes())
            if number == Frame.DATA:
                await self._data(tag, length)
            elif number in (Frame.MESSAGE, Frame.BYE) and length <= MOST_MESSAGE_BYTES:
                payload = np.zeros(length, dtype=np.uint8)
                await self._fill(payload)
                self._heard(self, Frame(number), payload.tobytes())
            elif number != Frame.BEAT or length:
                raise Broken("it sent what is no message of a test between nodes")

    async def _data(self, tag: int, length: int) -> None:
        self.in_data = True
        while tag not in self._awaited and not self._drains:
            self._changed.clear()
            self.waits = True
            await self._changed.wait()
        if self.waits:
            self.waits, self.last_in_s = False, time.monotonic()
        if self._drains:
            await self._discard(length)
            return
        room, future = self._awaited.pop(tag)
        if room.nbytes != length:
            raise Broken(f"it sent {length} bytes where {room.nbytes} were due")
        began_s = time.monotonic()
        await self._fill(room)
        self.in_data = False
        if not future.done():
            future.set_result(time.monotonic() - began_s)

    async def _discard(self, length: int) -> None:
        scratch = np.zeros(min(length, _PIECE_BYTES), dtype=np.uint8)
        while length:
            part = scratch[: min(length, scratch.size)]
            await self._fill(part)
            length -= part.size

    async def _fill(self, room: Bytes) -> None:
        """Read until the memory is full. Raises EOFError, OSError."""
        loop = asyncio.get_running_loop()
        view, done = room.data, 0
        while done < view.nbytes:
            got = await loop.sock_recv_into(self._sock, view[done : done + _PIECE_BYTES])
            if not got:
                raise EOFError
            done += got
            self.last_in_s = time.monotonic()
            # Where bytes are always there, reading never gives way by itself.
            await asyncio.sleep(0)

    # --- the end ---

    async def say_bye(self, payload: bytes) -> None:
        """The last frame, behind all others."""
        self.drain()
        await self.post(Frame.BYE, payload)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    async def read_to_end(self) -> None:
        """Until the other end has closed its side."""
        await asyncio.wait({self._reader})

    async def close(self) -> None:
        """Give everything back."""
        for task in (self._reader, *self._sends):
            task.cancel()
        await asyncio.gather(self._reader, *self._sends, return_exceptions=True)
        self._sock.close()
