"""Ctrl-C and SIGTERM during a run: they end the checks early, and never cut short what follows."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM)
# The first ends the checks, the second is impatient with their workers; what comes after is only noise.
_MEANT = 2


class Interrupts:
    """Takes SIGINT and SIGTERM (systemd stops the unit) while it is entered; the handlers of before come back.

    Outside the main thread signals cannot be taken: then the caller's own handlers stay.
    """

    def __init__(self) -> None:
        self._count = 0
        self._raising = False

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Note the signals; nothing is raised but within `raising`."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in _NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise KeyboardInterrupt for a signal, also for one that was noted before."""
        self._raising = True
        try:
            if self._count:
                raise KeyboardInterrupt
            yield
        finally:
            self._raising = False

    def _handle(self, _: int, __: FrameType | None) -> None:
        self._count += 1
        if self._raising and self._count <= _MEANT:
            raise KeyboardInterrupt
