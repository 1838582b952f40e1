"""The processes of one pod, a rank each, from start to end. Standard library alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from gpu_burnin.launch.pod.leave import Leave
from gpu_burnin.launch.pod.output import note, prefixed, say
from gpu_burnin.launch.pod.setup import Setup
from gpu_burnin.launch.pod.signals import Signals

# Saved, start me again: the gang starts anew, and that counts as no failure.
AGAIN = 42
# Of the grace period: the last part is for SIGTERM, the very last for SIGKILL, before kubelet's own.
_TERM_BEFORE_END_S, _KILL_BEFORE_END_S = 15.0, 5.0
_TERM_TO_KILL_S = 10.0
_LOOK_S = 1.0
_DRAIN_S = 2.0


class Ranks:
    """The processes of this pod, until all have ended."""

    def __init__(self, setup: Setup, signals: Signals) -> None:
        self._setup, self._signals = setup, signals
        self._leave = Leave(setup)
        self._live: dict[int, int] = {}  # rank by process id
        self._readers: list[threading.Thread] = []
        self._first: tuple[int, int] | None = None  # rank and exit code of what failed first
        self._told_to_end = False
        self._started = time.monotonic()
        self._term_at = self._kill_at = float("inf")

    def run(self, entry: Path) -> int:
        """Start all, and the pod's exit code once all have ended."""
        self._leave.look()
        for local in range(self._setup.processes):
            self._start(local, entry)
        while self._live:
            now = time.monotonic()
            due = min(self._term_at, self._kill_at)
            for number in self._signals.wait(min(_LOOK_S, max(0.0, due - now))):
                self._take(number)
            self._reap()
            self._leave.look()
            self._keep_deadlines()
        for reader in self._readers:
            reader.join(_DRAIN_S)
        if self._told_to_end:
            # Not 0 either: a node that counts as done would be missing when the others start again.
            return AGAIN
        return self._first[1] if self._first else 0

    def _start(self, local: int, entry: Path) -> None:
        environment = self._setup.of_rank(local, os.environ)
        command = [sys.executable, "-u", str(entry), *self._setup.argv]
        process = subprocess.Popen(
            command,
            cwd=str(self._setup.source),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        rank = int(environment["RANK"])
        self._live[process.pid] = rank
        # Its end is seen by waitpid below, which also buries what the processes leave behind.
        process.returncode = 0
        prefix = f"[{rank}] ".encode()
        reader = threading.Thread(target=prefixed, args=(process.stdout, prefix), daemon=True)
        reader.start()
        self._readers.append(reader)

    def _take(self, number: int) -> None:
        if number in (signal.SIGTERM, signal.SIGINT):
            if self._told_to_end or self._first:
                return
            self._told_to_end = True
            grace_s = self._setup.grace_s
            self._leave.pod_ends(grace_s)
            now = time.monotonic()
            self._term_at = now + max(grace_s - _TERM_BEFORE_END_S, grace_s / 2)
            self._kill_at = now + max(grace_s - _KILL_BEFORE_END_S, grace_s * 3 / 4)
            # One without a handler would end at once, unsaved.
            self._send(signal.SIGTERM, [pid for pid in self._live if _catches_sigterm(pid)])
        elif number != signal.SIGCHLD:
            self._send(number, list(self._live))

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            rank = self._live.pop(pid, None)
            if rank is None:
                continue
            # What it started and left, such as workers that read its data; mostly there is nothing.
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
            code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
            self._ended(rank, code)

    def _ended(self, rank: int, code: int) -> None:
        if code == 0 or self._first:
            return
        if self._told_to_end:
            say(f"rank {rank} ended with exit code {code}")
            return
        now = time.monotonic()
        if code == AGAIN and not self._leave.is_shown and now - self._started < self._setup.least_run_s:
            say(
                f"rank {rank} asked to be started again (exit code {AGAIN}) within {self._setup.least_run_s:.0f} s and "
                "unasked: that is taken for a failure, since it would go on for ever"
            )
            code = 1
        self._first = (rank, code)
        if code == AGAIN:
            say(f"rank {rank} saved, and asks to be started again (exit code {AGAIN})")
            self._term_at = now + max(self._setup.grace_s - _TERM_BEFORE_END_S, self._setup.grace_s / 2)
        else:
            words = f"rank {rank} on node {self._setup.node} {_ending(code)}"
            say(f"{words}; its peers here are ended")
            note(self._setup.termination_log, words)
            self._term_at = now
        self._kill_at = self._term_at + _TERM_TO_KILL_S

    def _keep_deadlines(self) -> None:
        now = time.monotonic()
        if now >= self._term_at:
            self._term_at = float("inf")
            self._send(signal.SIGTERM, list(self._live))
        if now >= self._kill_at:
            self._kill_at = float("inf")
            self._send(signal.SIGKILL, list(self._live))

    @staticmethod
    def _send(number: int, pids: list[int]) -> None:
        for pid in pids:
            # It may have ended since it was listed.
            with contextlib.suppress(OSError):
                os.killpg(pid, number)


def _ending(code: int) -> str:
    if code <= 128:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(code - 128).name
    except ValueError:
        return f"ended with exit code {code}"
    return f"was ended by {name} (exit code {code})" + (", maybe for want of memory" if name == "SIGKILL" else "")


def _catches_sigterm(pid: int) -> bool:
    """Whether a process has a handler of its own."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
            if line.startswith("SigCgt:"):
                return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)
    except (OSError, ValueError, IndexError):
        pass
    return False
