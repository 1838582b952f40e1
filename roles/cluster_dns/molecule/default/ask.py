"""Ask a DNS server for the addresses of names (RFC 1035), print its answer to each: code and addresses."""

from __future__ import annotations

import socket
import struct
import sys

CODES = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED"}
QUESTION_A_IN = struct.pack("!HH", 1, 1)


def main(server: str, *names: str) -> None:
    """One line a name."""
    for name in names:
        print(" ".join(answer(server, name)))


def answer(server: str, name: str) -> list[str]:
    """One question over UDP."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.rstrip(".").split("."))
    question = labels + b"\0" + QUESTION_A_IN
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(10)
        client.sendto(struct.pack("!HHHHHH", 7, 0x0100, 1, 0, 0, 0) + question, (server, 53))
        said = client.recv(4096)
    flags, _, answers = struct.unpack("!HHH", said[2:8])
    rest = said[12 + len(question) :]
    addresses = []
    for _ in range(answers):
        rest = after_name(rest)
        kind, _, _, size = struct.unpack("!HHIH", rest[:10])
        if kind == 1:
            addresses.append(socket.inet_ntoa(rest[10 : 10 + size]))
        rest = rest[10 + size :]
    return [CODES.get(flags & 0xF, str(flags & 0xF)), *addresses]


def after_name(data: bytes) -> bytes:
    """What follows a name: labels up to an empty one, or up to a pointer of two bytes."""
    while 0 < data[0] < 0xC0:
        data = data[1 + data[0] :]
    return data[2:] if data[0] else data[1:]


if __name__ == "__main__":
    main(*sys.argv[1:])
