"""A sampler that fails for one GPU: failing_sampler.py MODE FAULTY_UUID MARK UUID INTERVAL_S PARENT_PID.

It becomes the real sampler (the same process, so that its parent stays its parent), but for the faulty GPU it exits,
sleeps, babbles first, or is killed a while after its start; the file MARK then says that it was.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

_LIFE_S = 0.8


def main(mode: str, faulty: str, mark: str, *arguments: str) -> None:
    """Fail, or become the sampler."""
    if arguments[0] == faulty:
        if mode == "exits":
            sys.exit("no such library")
        if mode == "sleeps":
            time.sleep(3600)
        if mode == "babbles":
            os.write(1, b"Segmentation fault\n[1, 2]\n")
        if mode == "dies" and os.fork() == 0:
            parent = os.getppid()
            time.sleep(_LIFE_S)
            os.kill(parent, signal.SIGKILL)
            Path(mark).touch()
            os._exit(0)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "gpu_burnin.telemetry.sampler", *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
