"""What the stand-in services share: to go to the background with a pid file, and to end when told."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path


def to_background(pid_file: Path) -> None:
    """Go on as a background process of which the pid file tells; the caller's process ends with 0 (daemon(7))."""
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        # Before this process ends: systemd reads it then.
        pid_file.write_text(f"{pid}\n")
        os._exit(0)
    os.setsid()


def end_of_service() -> threading.Event:
    """An event that is set when systemd asks the service to end."""
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    return end
