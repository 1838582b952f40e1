"""One burn-in on a remote host: started in a transient systemd unit, followed over SSH, its report brought back.

The unit, not the connection, owns the run: when the controller goes away the run goes on, and the next call follows it.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import paramiko

from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_USAGE, GpuBurninError
from gpu_burnin.fleet.model import ProblemCode, SshError, Target
from gpu_burnin.fleet.ssh import connect
from gpu_burnin.node import unit
from gpu_burnin.report.file_names import REPORT, REPORT_HTML
from gpu_burnin.system import known_hosts as kh

PROGRAM = "/usr/local/bin/gpu-burnin"
POLL_S = 1.0
RECONNECT_S = 600.0
COMMAND_TIMEOUT_S = 60.0
_REPORT, _PROGRESS, _ENDED = (str(unit.RUN_DIR / name) for name in (REPORT, unit.PROGRESS, unit.ENDED))
_RUN_FILES = re.compile(r"report: (/.+)")
# Problems of a host that is away for a while, as against those of a host that is not to be talked to.
_MAY_PASS = (ProblemCode.NAME_UNKNOWN, ProblemCode.UNREACHABLE, ProblemCode.NO_SSH, ProblemCode.KEX_FAILED)


_FOLLOW = "the same command follows it"


@dataclass(frozen=True)
class RemoteRun:
    """A finished run: its exit code, and its report and the page of it as the host wrote them.

    They are b"" when it ended without them.
    """

    exit_code: int
    report: bytes
    page: bytes = b""


@dataclass(frozen=True)
class _Reply:
    exit_code: int
    stdout: bytes
    stderr: str


def run_on_host(
    target: Target,
    known: kh.KnownHosts,
    arguments: Sequence[str],
    on_line: Callable[[str], None],
    *,
    reconnect_s: float = RECONNECT_S,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> RemoteRun:
    """Run `gpu-burnin run --json ARGUMENTS` on a host, or follow the one that goes on there already.

    `on_line` gets each line of progress once. A lost connection is made again for up to `reconnect_s` seconds.
    Raises SshError when the host cannot be reached at the start or refuses us, GpuBurninError when it cannot run or the
    connection is lost before a run was seen to begin (exit 2), and when a run that has begun goes out of sight: the
    host stays away, refuses us now, or has lost it (exit 3).
    """
    follower: _Follower | None = None
    last_contact = clock()
    while True:
        try:
            with connect(target, known) as connection:
                if follower is None:
                    follower = _Follower(target, on_line, start(connection.transport, target, arguments, on_line))
                while True:
                    ended = follower.poll(connection.transport)
                    last_contact = clock()
                    if ended is not None:
                        return _collect(connection.transport, target, ended, follower.run_files)
                    sleep(POLL_S)
        except (SshError, paramiko.SSHException, EOFError, OSError) as error:
            if follower is None:
                raise _not_begun(target, error) from error
            if isinstance(error, SshError) and error.problem.code not in _MAY_PASS:
                raise GpuBurninError(f"{error}; the run goes on there: {_FOLLOW}", EXIT_INCONCLUSIVE) from error
            if clock() - last_contact > reconnect_s:
                raise GpuBurninError(
                    f"{target.name}: no connection for {reconnect_s:.0f} s ({error}); if the host is up the run goes "
                    f"on there: {_FOLLOW}; else look at its console",
                    EXIT_INCONCLUSIVE,
                ) from error
            on_line(f"{target.name}: connection lost ({error}); the run goes on there, connecting again")
            sleep(POLL_S)


def start(
    transport: paramiko.Transport, target: Target, arguments: Sequence[str], on_line: Callable[[str], None]
) -> str:
    """Have the host start a burn-in, unless one runs there; systemd's id of it. Raises GpuBurninError (exit 2)."""
    reply = _execute(transport, target, [PROGRAM, "start", "--json", "--", *arguments])
    if reply.exit_code != 0:
        raise GpuBurninError(
            f"{target.name}: {PROGRAM} start does not work ({reply.stderr or 'no reason given'}); install gpu-burnin "
            f"there (role gpu_burnin); {target.user} must be root or have sudo without password",
            EXIT_USAGE,
        )
    try:
        answer = json.loads(reply.stdout)
        started, invocation = bool(answer["started"]), str(answer["invocation"])
    except (ValueError, KeyError, TypeError) as error:
        raise GpuBurninError(
            f"{target.name}: {PROGRAM} start gave an answer that cannot be read ({error}); install this version there",
            EXIT_USAGE,
        ) from error
    if not started:
        on_line(f"{target.name}: a burn-in is already running there; following it (its options stay as they are)")
    return invocation


class _Follower:
    """Knows how much of the progress was seen, across connections; `run_files` is the run's directory, once named."""

    def __init__(self, target: Target, on_line: Callable[[str], None], invocation: str) -> None:
        self._target = target
        self._invocation = invocation
        self._on_line = on_line
        self._offset = 0
        self._rest = b""
        self.run_files: str | None = None

    def poll(self, transport: paramiko.Transport) -> unit.Ended | None:
        """Pass on new lines; how the run ended once it has, else None. Raises GpuBurninError for a run that is gone."""
        # The state first, the progress last: what is read once the run has ended is complete.
        state = unit.parse_state(
            self._text(transport, ["systemctl", "show", f"--property={unit.PROPERTIES}", unit.UNIT])
        )
        ended = unit.parse_ended(self._text(transport, ["cat", _ENDED]))
        if ended is not None and ended.invocation != self._invocation:
            ended = None
        if ended is None and not (state.running and state.invocation == self._invocation):
            raise GpuBurninError(
                f"{self._target.name}: the run is gone: the host has booted meanwhile, or what it left was removed; "
                "after a boot `gpu-burnin report` there says in which check it died",
                EXIT_INCONCLUSIVE,
            )
        reply = _execute(transport, self._target, ["tail", "-c", f"+{self._offset + 1}", _PROGRESS])
        self._offset += len(reply.stdout)
        *lines, self._rest = (self._rest + reply.stdout).split(b"\n")
        if ended and self._rest:
            lines.append(self._rest)
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if named := _RUN_FILES.fullmatch(text):
                self.run_files = named[1]
            self._on_line(text)
        return ended

    def _text(self, transport: paramiko.Transport, command: Sequence[str]) -> str:
        return _execute(transport, self._target, command).stdout.decode("utf-8", "replace")


def _collect(transport: paramiko.Transport, target: Target, ended: unit.Ended, run_files: str | None) -> RemoteRun:
    report = _execute(transport, target, ["cat", _REPORT])
    page = _execute(transport, target, ["cat", f"{run_files}/{REPORT_HTML}"]).stdout if run_files else b""
    if ended.exit_code is None:
        raise GpuBurninError(
            f"{target.name}: the burn-in was killed (signal {ended.signal}); "
            f"look at `journalctl -u {unit.UNIT}` there (out of memory?) and run it again",
            EXIT_INCONCLUSIVE,
        )
    return RemoteRun(ended.exit_code, report.stdout, page)


def _execute(transport: paramiko.Transport, target: Target, arguments: Sequence[str]) -> _Reply:
    """Run one short command as root; raises SSHException or EOFError when the connection is lost."""
    sudo = [] if target.user == "root" else ["sudo", "-n"]
    channel = transport.open_session(timeout=COMMAND_TIMEOUT_S)
    try:
        channel.settimeout(COMMAND_TIMEOUT_S)
        channel.exec_command(shlex.join([*sudo, *arguments]))
        # In this order: what these commands say on stderr fits into the channel's window.
        stdout = channel.makefile("rb").read()
        stderr = channel.makefile_stderr("rb").read().decode("utf-8", "replace").strip()
        exit_code = channel.recv_exit_status()
    finally:
        channel.close()
    if exit_code == -1:
        raise EOFError("the connection ended before the command did")
    return _Reply(exit_code, stdout, stderr)


def _not_begun(target: Target, error: Exception) -> Exception:
    if isinstance(error, SshError):
        return error
    return GpuBurninError(
        f"{target.name}: the SSH connection was lost before a run was seen to begin ({error or type(error).__name__}); "
        f"try again: if one has begun there, {_FOLLOW}"
    )
