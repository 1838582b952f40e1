"""A pod's questions to its name server, from a network namespace of its own: `python -m tests.integration.dns_client`.

Each prints one JSON document. ask SERVER NAME...: one after the other; code and address of each. lookups SERVER COUNT
PORT NAME...: COUNT questions over these names, from PORT and those after it; how many were answered. flood SERVER QPS
SECONDS PREFIX: QPS different names a second, whatever is answered; sent and answered. steady SERVER COUNT PREFIX:
different names, five a second, each once; how many were answered, and the slowest in seconds. glibc NAME: as its
resolver does it, by /etc/resolv.conf; the address and the seconds.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
import time

from tests.support.dns_stand_in import PORT, question

TIMEOUT_S = 1.0
PAUSE_S = 0.2


def ask(server: str, name: str, timeout_s: float = TIMEOUT_S, port: int = 0) -> tuple[str, float]:
    """Code, or "none" without an answer and "refused" without a server, and the seconds that it took.

    `port` is its own, 0 for any.
    """
    began = time.monotonic()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(timeout_s)
        client.bind(("", port))
        client.connect((server, PORT))
        try:
            client.send(question(7, name))
            found = client.recv(4096)
        except TimeoutError:
            return "none", time.monotonic() - began
        except ConnectionRefusedError:
            return "refused", time.monotonic() - began
    flags, _, answers = struct.unpack("!HHH", found[2:8])
    code = {0: "NOERROR", 2: "SERVFAIL", 3: "NXDOMAIN", 5: "REFUSED"}.get(flags & 0xF, str(flags & 0xF))
    return f"{code} {socket.inet_ntoa(found[-4:])}" if answers else code, time.monotonic() - began


def flood(server: str, qps: int, seconds: float, prefix: str) -> dict[str, int]:
    """Questions at a rate, without waiting for answers."""
    sent = answered = 0
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        client.connect((server, PORT))
        began = time.monotonic()
        while (now := time.monotonic()) - began < seconds:
            if sent < (now - began) * qps:
                client.send(question(sent % 65536, f"{prefix}{sent}.example.org"))
                sent += 1
            else:
                time.sleep(0.0005)
            for _ in itertools.repeat(None):
                try:
                    client.recv(4096)
                except (BlockingIOError, ConnectionRefusedError):
                    break
                answered += 1
    return {"sent": sent, "answered": answered}


def steady(server: str, count: int, prefix: str) -> list[tuple[str, float]]:
    """One question each PAUSE_S, each once; with each answer the seconds that it took."""
    took = []
    began = time.monotonic()
    for number in range(count):
        time.sleep(max(0.0, began + number * PAUSE_S - time.monotonic()))
        took.append(ask(server, f"{prefix}{number}.example.org"))
    return took


def main(act: str, *words: str) -> None:
    """Entry point: one JSON document."""
    found: object = None
    match act, *words:
        case "ask", server, *names:
            found = [ask(server, name)[0] for name in names]
        case "lookups", server, count, port, *names:
            ports = range(int(port), int(port) + int(count))
            pairs = zip(ports, itertools.cycle(names), strict=False)
            answers = [ask(server, name, port=own)[0] for own, name in pairs]
            found = sum(answer.startswith("NOERROR") for answer in answers)
        case "flood", server, qps, seconds, prefix:
            found = flood(server, int(qps), float(seconds), prefix)
        case "steady", server, count, prefix:
            took = steady(server, int(count), prefix)
            found = {
                "answered": sum(answer.startswith("NOERROR") for answer, _ in took),
                "slowest_s": max(took_s for _, took_s in took),
            }
        case "glibc", name:
            began = time.monotonic()
            addresses = socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)
            found = {"address": addresses[0][4][0], "seconds": time.monotonic() - began}
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
