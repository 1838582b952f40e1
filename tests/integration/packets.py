"""Datagrams between two addresses, a hundred a second, and how many of them come back.

packets.py answer ADDRESS: send back each that comes. packets.py ask SOURCE TARGET: print "answered" when the first came
back, and at the end (SIGTERM) how many were sent and how many came back. One that takes longer than a second is lost.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import sys
import time

PORT = 7790
EACH_S = 0.01
LATE_S = 1.0


def answer(address: str) -> None:
    """Send each datagram back to where it came from."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind((address, PORT))
    while True:
        data, sender = server.recvfrom(64)
        # Where the way back is gone, that answer is the one which is missed.
        with contextlib.suppress(OSError):
            server.sendto(data, sender)


class Asker:
    """Sends numbers, and remembers which came back."""

    def __init__(self, source: str, target: str) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((source, 0))
        self._target = (target, PORT)
        self._ended = False
        self._back: set[bytes] = set()
        signal.signal(signal.SIGTERM, self._end)

    def _end(self, *_: object) -> None:
        self._ended = True

    def listen(self, until: float) -> None:
        """Take what comes back until a time of the monotonic clock."""
        while (left := until - time.monotonic()) > 0:
            if not select.select([self._socket], [], [], left)[0]:
                return
            # A refusal of an earlier one; that one is missed by its number.
            with contextlib.suppress(ConnectionRefusedError):
                self._back.add(self._socket.recv(64))

    def send(self, number: int) -> None:
        """Send one; without a route it is lost like any other."""
        with contextlib.suppress(OSError):
            self._socket.sendto(str(number).encode(), self._target)

    def ask(self) -> tuple[int, int]:
        """First until somebody answers, then count."""
        while not self._back:
            self.send(0)
            self.listen(time.monotonic() + EACH_S)
        print("answered", flush=True)
        self._back, number, due = set(), 0, time.monotonic()
        while not self._ended:
            number, due = number + 1, due + EACH_S
            self.send(number)
            self.listen(due)
        self.listen(time.monotonic() + LATE_S)
        return number, len(self._back - {b"0"})


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["answer", address]:
            answer(address)
        case ["ask", source, target]:
            print(*Asker(source, target).ask())
