"""As much of HTTP/2 as a node's clients need: many watches and requests on one connection, as client-go has them.

Headers are sent as they are (RFC 7541, literals), and those of answers are not read: whether a request went well is
seen from its body. The windows are so large that the server never waits for more.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GOAWAY, _WINDOW = 0, 1, 3, 4, 6, 7, 8
_ACK = _END_STREAM = 1
_END_HEADERS = 4
_PADDED_OR_PRIORITY = 8 | 32
_LARGEST = 2**31 - 1
_CANCEL = struct.pack(">I", 8)
_FIRST_WINDOW = 65535
_INITIAL_WINDOW_SIZE = 4
# The kind of an answer in protobuf that is a failure.
_STATUS = b"\x12\x06Status"
# The reason of a watch's first and only event.
_EARLY = b"ResourceVersionTooLarge"
PROTOBUF = "application/vnd.kubernetes.protobuf"
JSON = "application/json"


class Broken(RuntimeError):
    """The connection is lost, or the server refused."""


@dataclass
class Stream:
    """One request: `done` has the body; of a watch `opened` is set with its first bytes, and its bytes are counted.

    Where `until` is given, `done` has what was read when that was in it.
    """

    what: str
    done: asyncio.Future[bytes]
    opened: asyncio.Future[None]
    watch: bool = False
    until: bytes = b""
    body: bytearray = field(default_factory=bytearray)
    size_bytes: int = 0

    @property
    def early(self) -> bool:
        """Whether the server could not answer yet."""
        return self.watch and _EARLY in self.body


class Connection(asyncio.Protocol):
    """A connection to the API server with one certificate."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._rest = b""
        self._next = 1
        self._streams: dict[int, Stream] = {}
        self._transport: asyncio.Transport | None = None
        self.lost = ""
        self.early = 0

    @classmethod
    async def to(cls, port: int, context: ssl.SSLContext) -> Connection:
        """A new one; the context must offer h2."""
        loop = asyncio.get_running_loop()
        _, made = await loop.create_connection(lambda: cls(f"127.0.0.1:{port}"), "127.0.0.1", port, ssl=context)
        return made

    async def request(
        self, method: str, path: str, body: bytes = b"", kind: str = JSON, answer: str = JSON, agent: str = "kubelet"
    ) -> bytes:
        """The body of the answer. Raises Broken, also where the answer is a failure."""
        found = await self._send(method, path, body, kind, answer, agent).done
        if b'"status":"Failure"' in found or _STATUS in found[:64]:
            raise Broken(f"{method} {path}: {found[:300]!r}")
        return found

    async def watch(self, path: str, answer: str = PROTOBUF, agent: str = "kubelet") -> Stream:
        """A watch that goes on, of which something has come.

        A busy API server that does not know yet how new its cache is says so after 3 s, and client-go asks again.
        """
        while True:
            stream = self._send("GET", path, b"", JSON, answer, agent, watch=True)
            await stream.opened
            if not stream.early:
                return stream
            self.early += 1

    async def watch_until(self, path: str, until: bytes) -> bytes:
        """What a watch has said when `until` was in it; the watch ends then."""
        return await self._send("GET", path, b"", JSON, JSON, "kubelet", watch=True, until=until).done

    def close(self) -> None:
        """At once."""
        if self._transport is not None:
            self._transport.abort()

    def _send(
        self,
        method: str,
        path: str,
        body: bytes,
        kind: str,
        answer: str,
        agent: str,
        *,
        watch: bool = False,
        until: bytes = b"",
    ) -> Stream:
        if self._transport is None or self.lost:
            raise Broken(f"{method} {path}: the connection is lost ({self.lost})")
        loop = asyncio.get_running_loop()
        number, self._next = self._next, self._next + 2
        stream = Stream(f"{method} {path}", loop.create_future(), loop.create_future(), watch, until)
        self._streams[number] = stream
        fields = {":method": method, ":scheme": "https", ":path": path, ":authority": self._host, "accept": answer}
        fields["user-agent"] = agent
        if body:
            fields |= {"content-type": kind, "content-length": str(len(body))}
        last = 0 if body else _END_STREAM
        data = frame(_HEADERS, _END_HEADERS | last, number, headers(fields))
        if body:
            data += frame(_DATA, _END_STREAM, number, body)
        self._transport.write(data)
        return stream

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol: the preface, with the largest windows."""
        self._transport = cast(asyncio.Transport, transport)
        settings = struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST)
        window = struct.pack(">I", _LARGEST - _FIRST_WINDOW)
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
        self._transport.write(preface + frame(_SETTINGS, 0, 0, settings) + frame(_WINDOW, 0, 0, window))

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
        data, at = self._rest + data, 0
        while len(data) - at >= 9:
            end = at + 9 + int.from_bytes(data[at : at + 3], "big")
            if end > len(data):
                break
            kind, flags, number = struct.unpack(">BBI", data[at + 3 : at + 9])
            self._frame(kind, flags, number, data[at + 9 : end])
            at = end
        self._rest = data[at:]

    def connection_lost(self, error: Exception | None) -> None:
        """See asyncio.Protocol."""
        self._fail(str(error or "closed"))

    def _frame(self, kind: int, flags: int, number: int, payload: bytes) -> None:
        assert self._transport is not None
        if kind == _SETTINGS and not flags & _ACK:
            self._transport.write(frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _PING and not flags & _ACK:
            self._transport.write(frame(_PING, _ACK, 0, payload))
        elif kind == _GOAWAY:
            self._fail(f"the server sends it away: {payload!r}")
        elif kind == _RESET and number in self._streams:
            self._end(number, "the server has reset it")
        elif kind == _DATA and number in self._streams:
            if flags & _PADDED_OR_PRIORITY:
                raise Broken("the server pads its frames")
            self._data(number, payload, last=bool(flags & _END_STREAM))
        elif kind == _HEADERS and flags & _END_STREAM and number in self._streams:
            self._data(number, b"", last=True)

    def _data(self, number: int, payload: bytes, *, last: bool) -> None:
        stream = self._streams[number]
        stream.size_bytes += len(payload)
        if not stream.watch or stream.until or not stream.opened.done():
            stream.body += payload
        if stream.until and stream.until in stream.body and stream.body.endswith(b"\n"):
            assert self._transport is not None
            self._transport.write(frame(_RESET, 0, number, _CANCEL))
            self._end(number, "")
        elif last:
            self._end(number, f"it has ended: {bytes(stream.body[:300])!r}" if stream.watch else "")
        elif stream.watch and payload and not stream.opened.done():
            stream.opened.set_result(None)

    def _end(self, number: int, why: str) -> None:
        stream = self._streams.pop(number)
        for future, result in ((stream.done, bytes(stream.body)), (stream.opened, None)):
            if future.done():
                continue
            if why:
                future.set_exception(Broken(f"{stream.what}: {why}"))
                # Nobody may wait for one of the two.
                future.exception()
            else:
                cast("asyncio.Future[object]", future).set_result(result)
        if why and stream.watch and not stream.early:
            self.lost = self.lost or f"{stream.what}: {why}"

    def _fail(self, why: str) -> None:
        self.lost = self.lost or why
        for number in list(self._streams):
            self._end(number, why)


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame (RFC 9113, 4.1)."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def headers(fields: Mapping[str, str]) -> bytes:
    """Header fields as literals that are not indexed (RFC 7541, 6.2.2)."""
    return b"".join(b"\0" + _text(name) + _text(value) for name, value in fields.items())


def _text(text: str) -> bytes:
    """A string without Huffman's code: its length with a prefix of 7 bits (RFC 7541, 5.1 and 5.2)."""
    data = text.encode()
    size = len(data)
    if size < 127:
        return bytes([size]) + data
    size, head = size - 127, b"\x7f"
    while size >= 128:
        head += bytes([size % 128 + 128])
        size //= 128
    return head + bytes([size]) + data
