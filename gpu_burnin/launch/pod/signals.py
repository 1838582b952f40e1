"""Signals as something to wait for. Standard library alone."""

from __future__ import annotations

import contextlib
import os
import select
import signal

_FORWARDED = ("SIGUSR1", "SIGUSR2", "SIGHUP", "SIGWINCH", "SIGCONT")


class Signals:
    """Signals that came, each once, and a way to wait for the next."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        for end in (self._read, self._write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for name in ("SIGTERM", "SIGINT", "SIGCHLD", *_FORWARDED):
            signal.signal(getattr(signal, name), lambda number, frame: None)
        self.asked_to_end = False

    def wait(self, timeout_s: float) -> list[int]:
        """The signals since the last call; waits for one up to `timeout_s`."""
        select.select([self._read], [], [], max(0.0, timeout_s))
        found: list[int] = []
        # That is how the pipe says that it is empty.
        with contextlib.suppress(BlockingIOError):
            while True:
                found += os.read(self._read, 256)
        self.asked_to_end |= signal.SIGTERM in found or signal.SIGINT in found
        return found
