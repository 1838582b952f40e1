"""Runs one command for the dcgm check and ends it: python -m gpu_burnin.checks.dcgm.child SECONDS PARENT COMMAND...

The command's tests are done by DCGM's host engine, a service: a dcgmi that is killed leaves them running. dcgmi stops
them when it gets SIGTERM (dcgmi/Diag.cpp, handle_signal_during_diag), so that comes first, and SIGKILL for all that
is left of the process group later: when the time is over, on SIGTERM, and when the worker that started this (process
PARENT) dies. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from types import FrameType
from typing import NoReturn

from gpu_burnin.system.children import die_with_parent

# For dcgmi to stop the tests in the host engine.
GRACE_S = 10.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _Ended(Exception):
    """This process got the signal to end."""


def main(arguments: list[str]) -> int:
    """Exit status of the command; does not return when it had to be ended (this process gets SIGKILL too)."""
    timeout_s, parent, command = float(arguments[0]), int(arguments[1]), arguments[2:]
    for number in _SIGNALS:
        signal.signal(number, _end)
    # Blocked until the command is known, or a signal in between would leave it to its own end.
    usual = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        die_with_parent(parent, signal.SIGTERM)
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, preexec_fn=lambda: signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        )
    except OSError as error:
        print(f"{command[0]} cannot be run: {error.strerror}", file=sys.stderr)
        return 127
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, usual)
        return child.wait(timeout_s)
    except (_Ended, subprocess.TimeoutExpired):
        _end_group(child)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise _Ended


def _end_group(child: subprocess.Popen[bytes]) -> NoReturn:
    """End everything in this process group, this process last."""
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(GRACE_S)
    os.killpg(0, signal.SIGKILL)
    raise SystemExit(1)  # not reached: SIGKILL is delivered before killpg returns to its own caller


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
