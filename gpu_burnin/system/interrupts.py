"""Ctrl-C, SIGTERM and a lost terminal during a run: they end the checks early, and never cut short what follows."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# The first ends the checks, the second is impatient with their workers; what comes after is only noise.
_MEANT = 2


class Interrupts:
    """Takes SIGINT, SIGTERM (systemd stops the unit) and SIGHUP while it is entered; the handlers of before come back.

    A signal that the caller ignores (nohup) stays ignored. Outside the main thread signals cannot be taken: then
    the caller's own handlers stay. With `last` nothing but the end of the process follows: the signals stay taken, so
    that none comes between a verdict and its exit code.
    """

    def __init__(self, *, last: bool = False) -> None:
        self._last = last
        self._count = 0
        self._noted = 0
        self._raising = False

    @contextlib.contextmanager
    def taken(self) -> Iterator[None]:
        """Note the signals; nothing is raised but within `raising`."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: handler for number in _NUMBERS if (handler := signal.getsignal(number)) is not signal.SIG_IGN}
        for number in before:
            signal.signal(number, self._handle)
        try:
            yield
        finally:
            if not self._last:
                for number, handler in before.items():
                    signal.signal(number, handler)

    @contextlib.contextmanager
    def raising(self) -> Iterator[None]:
        """Raise KeyboardInterrupt for a signal, also for one that was noted before."""
        self._raising = True
        try:
            if self._noted:
                self._noted -= 1
                raise KeyboardInterrupt
            yield
        finally:
            self._raising = False

    def _handle(self, _: int, __: FrameType | None) -> None:
        self._count += 1
        if self._count > _MEANT:
            return
        if self._raising:
            # Once for each time: another signal may come on the way out.
            self._raising = False
            raise KeyboardInterrupt
        self._noted += 1
