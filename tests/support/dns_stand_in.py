"""A name server that stands in for one that is not here: each name has an address, but those that begin with "no".

dns_stand_in.py ADDRESS COUNTS [--ttl S] [--max-qps N] [--until FILE]: answer on port 53, UDP and TCP, and write into
COUNTS how often it was asked for each name. --max-qps drops what is more from one address in a second, as a cloud's
resolver does. Names that begin with "late" are there once FILE is. Standard library only: scenarios run it on hosts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import struct
import threading
import time
from collections import Counter
from pathlib import Path

NXDOMAIN = 3
TYPE_A, TYPE_SOA, CLASS_IN = 1, 6, 1
PORT = 53
HEADER = struct.Struct("!HHHHHH")


def question(number: int, name: str) -> bytes:
    """A query for the addresses of a name."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    return HEADER.pack(number, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!HH", TYPE_A, CLASS_IN)


def name_and_type(query: bytes) -> tuple[str, int, int]:
    """Of a query its name in lower case, its type, and where its question ends."""
    labels, at = [], HEADER.size
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode().lower())
        at += 1 + query[at]
    return ".".join(labels), struct.unpack("!H", query[at + 1 : at + 3])[0], at + 5


def reply(query: bytes, address: str, ttl_s: int, present: bool) -> bytes:
    """The answer: an address, nothing for another type, or that there is no such name, for as long."""
    _, kind, end = name_and_type(query)
    body = query[HEADER.size : end]
    number = struct.unpack("!H", query[:2])[0]
    if present and kind == TYPE_A:
        record = struct.pack("!HHHIH", 0xC00C, TYPE_A, CLASS_IN, ttl_s, 4) + socket.inet_aton(address)
        return HEADER.pack(number, 0x8580, 1, 1, 0, 0) + body + record
    data = b"\0\0" + struct.pack("!IIIII", 1, 7200, 1800, 86400, ttl_s)
    record = b"\0" + struct.pack("!HHIH", TYPE_SOA, CLASS_IN, ttl_s, len(data)) + data
    return HEADER.pack(number, 0x8580 | (0 if present else NXDOMAIN), 1, 0, 1, 0) + body + record


class StandIn:
    """The server's counts and its limit."""

    def __init__(self, address: str, counts: Path, ttl_s: int, max_qps: int, until: Path | None) -> None:
        self.address, self.counts, self.ttl_s, self.max_qps, self.until = address, counts, ttl_s, max_qps, until
        self.names: Counter[str] = Counter()
        self.second: tuple[int, Counter[str]] = (0, Counter())

    def answer(self, query: bytes, client: str) -> bytes:
        """The answer to a query, b"" for one that is dropped."""
        now = int(time.monotonic())
        if self.second[0] != now:
            self.second = now, Counter()
            self.write()
        self.second[1][client] += 1
        if self.max_qps and self.second[1][client] > self.max_qps:
            return b""
        name = name_and_type(query)[0]
        self.names[name] += 1
        late = name.startswith("late") and self.until is not None and not self.until.exists()
        return reply(query, self.address, self.ttl_s, not (name.startswith("no") or late))

    def write(self) -> None:
        """Write the counts."""
        new = self.counts.with_suffix(".new")
        new.write_text(json.dumps(self.names))
        new.replace(self.counts)

    def serve_udp(self) -> None:
        """Answer datagrams, for as long as the process lives. The counts are written when it is quiet too."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
            server.bind((self.address, PORT))
            server.settimeout(0.1)
            while True:
                try:
                    query, client = server.recvfrom(4096)
                except TimeoutError:
                    self.write()
                    continue
                if found := self.answer(query, client[0]):
                    server.sendto(found, client)

    def serve_tcp(self) -> None:
        """Answer the first question of each connection."""
        with socket.create_server((self.address, PORT)) as server:
            while True:
                connection, client = server.accept()
                # A caller that goes away takes nothing of the others with it.
                with connection, contextlib.suppress(OSError, struct.error):
                    size = struct.unpack("!H", connection.recv(2))[0]
                    found = self.answer(connection.recv(size), client[0])
                    connection.sendall(struct.pack("!H", len(found)) + found)


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser()
    parser.add_argument("address")
    parser.add_argument("counts", type=Path)
    parser.add_argument("--ttl", type=int, default=5)
    parser.add_argument("--max-qps", type=int, default=0)
    parser.add_argument("--until", type=Path)
    options = parser.parse_args()
    server = StandIn(options.address, options.counts, options.ttl, options.max_qps, options.until)
    threading.Thread(target=server.serve_tcp, daemon=True).start()
    server.serve_udp()


if __name__ == "__main__":
    main()
