"""Who is at the other end of a connection: both prove that they know the meeting's secret, for this connection alone.

The one that connects sends its hello (ranks, rail, a nonce). The other answers with a nonce of its own and its proof;
then the first one proves itself. A proof is the HMAC-SHA256, under the secret, of the side, the meeting's digest, the
hello and the answer's nonce: of no use at another connection, rank, rail or meeting, nor when sent back.
Every message has one length, so that nobody makes a member read more. What follows is neither encrypted nor
authenticated packet by packet: this keeps strangers out, not one who can change packets on the way.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import socket
import struct
from dataclasses import dataclass

_MAGIC = b"muster-fabric/1\n"
_HELLO = struct.Struct("!16sHHI32s")
_NONCE_BYTES, _PROOF_BYTES = 32, 32
_READY = b"\x01"


class Refused(Exception):
    """The other end did not authenticate."""


@dataclass(frozen=True)
class Way:
    """A connection: from the member that makes it to the one that listens."""

    sender: int
    receiver: int
    rail: int


@dataclass(frozen=True)
class Credential:
    """What a member proves itself with."""

    secret: bytes
    digest: bytes

    def proof(self, side: bytes, hello: bytes, nonce: bytes) -> bytes:
        """That this side knows the secret. The parts have fixed lengths but for the side, which ends with a zero."""
        return hmac.digest(self.secret, side + b"\0" + self.digest + hello + nonce, "sha256")


async def connect(sock: socket.socket, way: Way, credential: Credential) -> None:
    """The side that has connected. Raises Refused, OSError."""
    loop = asyncio.get_running_loop()
    hello = _HELLO.pack(_MAGIC, way.sender, way.receiver, way.rail, secrets.token_bytes(_NONCE_BYTES))
    await loop.sock_sendall(sock, hello)
    answer = await exactly(sock, _NONCE_BYTES + _PROOF_BYTES)
    nonce, proof = answer[:_NONCE_BYTES], answer[_NONCE_BYTES:]
    if not hmac.compare_digest(proof, credential.proof(b"listens", hello, nonce)):
        raise Refused("what listens there did not authenticate")
    await loop.sock_sendall(sock, credential.proof(b"connects", hello, nonce))
    if await exactly(sock, len(_READY)) != _READY:
        raise Refused("what listens there did not authenticate this member")


async def accept(sock: socket.socket, receiver: int, rail: int, sources: dict[int, str], credential: Credential) -> Way:
    """The side that listens; `sources` are the addresses from which ranks may come. Raises Refused, OSError."""
    loop = asyncio.get_running_loop()
    hello = await exactly(sock, _HELLO.size)
    magic, sender, wanted, on_rail, _ = _HELLO.unpack(hello)
    source = sock.getpeername()[0]
    if (magic, wanted, on_rail) != (_MAGIC, receiver, rail) or sources.get(sender) != source:
        raise Refused("a hello of another meeting or member")
    nonce = secrets.token_bytes(_NONCE_BYTES)
    await loop.sock_sendall(sock, nonce + credential.proof(b"listens", hello, nonce))
    proof = await exactly(sock, _PROOF_BYTES)
    if not hmac.compare_digest(proof, credential.proof(b"connects", hello, nonce)):
        raise Refused("a proof that does not hold")
    await loop.sock_sendall(sock, _READY)
    return Way(sender, receiver, rail)


async def exactly(sock: socket.socket, size_bytes: int) -> bytes:
    """So many bytes and no more. Raises Refused when the other end closes before, OSError."""
    loop = asyncio.get_running_loop()
    found = b""
    while len(found) < size_bytes:
        part = await loop.sock_recv(sock, size_bytes - len(found))
        if not part:
            raise Refused("what listens there closed the connection before it could authenticate")
        found += part
    return found
