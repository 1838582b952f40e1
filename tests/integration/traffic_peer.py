"""Both ends of known transfers, for test_node_traffic.py, each in a network namespace.

traffic_peer.py serve: take what comes by TCP, answer with as many bytes as were asked for; and take datagrams.
traffic_peer.py transfer '[[ADDRESS, UP, DOWN], ...]': one after the other. traffic_peer.py send ADDRESS COUNT SIZE: so
many datagrams, in two seconds or more.
"""

from __future__ import annotations

import json
import socket
import struct
import sys
import time

PORT, ANSWER_S = 7780, 20.0
_ORDER = struct.Struct("!QQ")
_CHUNK = bytes(1 << 18)
_PAUSES = 200


def serve() -> None:
    """Answer each caller, one at a time."""
    datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    datagrams.bind(("::", PORT))  # nobody reads them: that a port is open spares the answer that none is
    server = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    print("ready", flush=True)
    while True:
        connection, _ = server.accept()
        with connection:
            up, down = _ORDER.unpack(connection.recv(_ORDER.size, socket.MSG_WAITALL))
            take(connection, up)
            give(connection, down)


def transfer(address: str, up: int, down: int) -> None:
    """Give and take so many bytes."""
    with socket.create_connection((address, PORT), timeout=ANSWER_S) as connection:
        connection.sendall(_ORDER.pack(up, down))
        give(connection, up)
        take(connection, down)


def give(connection: socket.socket, size: int) -> None:
    """Send so many bytes."""
    while size > 0:
        size -= connection.send(_CHUNK[:size])


def take(connection: socket.socket, size: int) -> None:
    """Receive so many bytes."""
    while size > 0:
        received = len(connection.recv(min(size, len(_CHUNK))))
        if not received:
            raise EOFError(f"{size} bytes are missing")
        size -= received


def send(address: str, count: int, size: int) -> None:
    """Datagrams in _PAUSES portions, so that something else happens meanwhile."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        sender.connect((address, PORT))
        for number in range(count):
            sender.send(_CHUNK[:size])
            if number % max(1, count // _PAUSES) == 0:
                time.sleep(0.01)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            serve()
        case ["transfer", transfers]:
            for one in json.loads(transfers):
                transfer(*one)
        case ["send", to, count, size]:
            send(to, int(count), int(size))
