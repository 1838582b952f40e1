"""How a service that runs until it is ended is ended."""

from __future__ import annotations

import signal
import sys
import threading


def end_with_sigterm() -> None:
    """Have SIGTERM end this process with 0.

    The first process of a container has to ask for it: without a handler it gets no such signal, and kubelet kills it
    half a minute later.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
