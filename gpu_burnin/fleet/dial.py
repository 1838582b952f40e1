"""The first words with an SSH server: TCP and its version, for thousands of hosts at once and without a thread each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass

from gpu_burnin.fleet.model import Problem, ProblemCode, SshError, Target

# A server may say other lines before its version (RFC 4253, 4.2); OpenSSH's client reads 1,024 of them, each short.
_MOST_BYTES = 8 << 10
_SHOWN_CHARS = 60
# What OpenSSH says instead of its version to a connection that it drops: MaxStartups, PerSourcePenalties.
_REFUSALS = ("Exceeded MaxStartups", "Not allowed at this time")


class Line:
    """A connected socket that gives once more what has been read of it, for a reader that begins at the beginning."""

    def __init__(self, sock: socket.socket, said: bytes) -> None:
        self._sock = sock
        self._said = said

    def recv(self, size_bytes: int) -> bytes:
        """As a socket's."""
        if not self._said:
            return self._sock.recv(size_bytes)
        part, self._said = self._said[:size_bytes], self._said[size_bytes:]
        return part

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


@dataclass(frozen=True)
class Dialled:
    """A connection on which an SSH server has told its version. `rtt_s` is the time of the TCP handshake."""

    line: Line
    rtt_s: float

    def close(self) -> None:
        """Hang up."""
        self.line.close()  # type: ignore[operator]


async def dial(target: Target, timeout_s: float) -> Dialled:
    """Connect and read the server's version, each within `timeout_s`. Raises SshError."""
    started = time.monotonic()
    try:
        sock = await _connect(target, timeout_s)
    except ConnectionResetError as error:
        # It was accepted and reset before we looked; a port without a listener refuses.
        raise SshError(_no_version(target, b"", None)) from error
    except OSError as error:
        raise SshError(_unreachable(target, error)) from error
    rtt_s = time.monotonic() - started
    try:
        said = await _version(target, sock, timeout_s)
        # Small packets in turn: Nagle's algorithm would wait for a delayed ACK (40 ms) at each.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(True)
        return Dialled(Line(sock, said), rtt_s)
    except BaseException:
        sock.close()
        raise


async def _connect(target: Target, timeout_s: float) -> socket.socket:
    """The first address of the target that accepts a connection, as socket.create_connection. Raises OSError."""
    loop = asyncio.get_running_loop()
    last: OSError | None = None
    for family, kind, protocol, _, address in await _addresses(target):
        sock = socket.socket(family, kind, protocol)
        sock.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.sock_connect(sock, address)
            return sock
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            last = error
    raise last or OSError("the name has no address")


async def _addresses(target: Target) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    where = (target.address, target.port)
    with contextlib.suppress(socket.gaierror):  # a name, which may take the resolver's time
        return socket.getaddrinfo(*where, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)  # type: ignore[return-value]
    return await asyncio.get_running_loop().getaddrinfo(*where, type=socket.SOCK_STREAM)  # type: ignore[return-value]


async def _version(target: Target, sock: socket.socket, timeout_s: float) -> bytes:
    """What the server says up to the line of its version, and what came with it. Raises SshError."""
    loop, said, silent = asyncio.get_running_loop(), b"", False
    try:
        async with asyncio.timeout(timeout_s):
            while len(said) < _MOST_BYTES and (part := await loop.sock_recv(sock, 1024)):
                said += part
                complete = said.rpartition(b"\n")[0]
                if any(line.startswith(b"SSH-") for line in complete.split(b"\n")):
                    return said
    except TimeoutError:
        silent = True
    except OSError:
        pass  # it hung up with a reset, which says no more than the end of the stream
    raise SshError(_no_version(target, said, timeout_s if silent else None))


def _no_version(target: Target, said: bytes, waited_s: float | None) -> Problem:
    """Why there is no SSH: `waited_s` is None for a server that ended the connection, or its talk, itself."""
    text = said.split(b"\n")[0].decode("ascii", "replace").strip()[:_SHOWN_CHARS]
    if text in _REFUSALS:
        kind = shown = f"sshd refuses more connections ({text!r})"
        fix = "wait a minute; raise MaxStartups in its sshd_config, or exempt the controller from PerSourcePenalties"
    elif text and not text.startswith("SSH-"):
        kind, shown = "something that is not SSH answers", f"something that is not SSH answers ({text!r})"
        fix = "correct the port (ansible_port, --port) or the address"
    elif waited_s is None:
        kind = shown = "the connection was closed before a word of SSH"
        fix = (
            "look at sshd's log there: MaxStartups and tcp wrappers (/etc/hosts.deny) are the usual cause; "
            "or a forwarder answers for a host that is off"
        )
    else:
        kind = shown = f"something answers but no SSH banner came within {waited_s:g} s"
        fix = (
            "check that the port is sshd's, and that the host is not overloaded; or a forwarder answers for a host "
            "that is off"
        )
    return Problem(ProblemCode.NO_SSH, f"{target.place}: {shown}", fix, kind)


def _unreachable(target: Target, error: OSError) -> Problem:
    if isinstance(error, socket.gaierror):
        what, fix = f"the name does not resolve ({error.strerror})", "correct ansible_host or the name service"
        return Problem(ProblemCode.NAME_UNKNOWN, f"{target.place}: {what}", fix, what)
    if isinstance(error, TimeoutError):
        what, fix = "no answer to a TCP connection", "check its power, its address and the firewalls"
    elif isinstance(error, ConnectionRefusedError):
        what, fix = "the TCP connection was refused", "start sshd on it, or correct the port (ansible_port, --port)"
    else:
        what, fix = f"the TCP connection failed ({error.strerror or error})", "correct its address or route"
    return Problem(ProblemCode.UNREACHABLE, f"{target.place}: {what}", fix, what)
