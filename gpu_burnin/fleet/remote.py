"""One burn-in on a remote host: started in a transient systemd unit, followed over SSH, its report brought back.

The unit, not the connection, owns the run: when the controller goes away the run goes on, and the next call follows it.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import paramiko

from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_USAGE, GpuBurninError
from gpu_burnin.fleet.model import ProblemCode, SshError, Target
from gpu_burnin.fleet.ssh import connect
from gpu_burnin.system import known_hosts as kh

UNIT = "gpu-burnin-host.service"
# On tmpfs and for root only: what the run prints. Its files are in a directory which its last line names.
RUN_DIR = "/run/gpu-burnin-host"
REPORT, PROGRESS = f"{RUN_DIR}/report.json", f"{RUN_DIR}/progress.log"
PROGRAM = "/usr/local/bin/gpu-burnin"
POLL_S = 1.0
RECONNECT_S = 600.0
COMMAND_TIMEOUT_S = 60.0
_PROPERTIES = "LoadState,ActiveState,SubState,ExecMainCode,ExecMainStatus"
_CLD_EXITED = "1"
_RUN_FILES = re.compile(r"report: (/.+)")
_PAGE = "report.html"
# Problems of a host that is away for a while, as against those of a host that is not to be talked to.
_MAY_PASS = (ProblemCode.UNREACHABLE, ProblemCode.NO_SSH, ProblemCode.KEX_FAILED)


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
    Raises SshError when the host cannot be reached at the start or refuses us, GpuBurninError when it cannot run
    (exit 2), stays away, or has lost the run (exit 3).
    """
    started, follower = False, _Follower(target, on_line)
    last_contact = clock()
    while True:
        try:
            with connect(target, known) as connection:
                if not started:
                    start(connection.transport, target, arguments, on_line)
                    started = True
                while True:
                    finished = follower.poll(connection.transport)
                    last_contact = clock()
                    if finished is not None:
                        return _collect(connection.transport, target, finished, follower.run_files)
                    sleep(POLL_S)
        except (SshError, paramiko.SSHException, EOFError, OSError) as error:
            refused = isinstance(error, SshError) and error.problem.code not in _MAY_PASS
            if refused or not started:
                raise _as_ssh_error(target, error) from error
            if clock() - last_contact > reconnect_s:
                raise GpuBurninError(
                    f"{target.name}: no connection for {reconnect_s:.0f} s ({error}); if the host is up the run goes "
                    f"on there: `gpu-burnin host {target.name}` follows it, else look at its console",
                    EXIT_INCONCLUSIVE,
                ) from error
            on_line(f"{target.name}: connection lost ({error}); the run goes on there, connecting again")
            sleep(POLL_S)


def start(
    transport: paramiko.Transport,
    target: Target,
    arguments: Sequence[str],
    on_line: Callable[[str], None],
) -> None:
    """Start the unit, unless it is running already; raises GpuBurninError (exit 2) when systemd refuses."""
    if _running(_state(transport, target)):
        on_line(f"{target.name}: a burn-in is already running there; following it (its options stay as they are)")
        return
    _forget(transport, target)
    command = [PROGRAM, "run", "--json", *arguments]
    unit = [
        "systemd-run",
        "--quiet",
        f"--unit={UNIT}",
        "--description=gpu-burnin run, asked for by gpu-burnin host",
        # exec: systemd-run fails when the program cannot be started; RemainAfterExit: the exit code stays readable.
        "--property=Type=exec",
        "--property=RemainAfterExit=yes",
        # SIGTERM to the run alone: it ends its workers itself and still leaves a report.
        "--property=KillMode=mixed",
        f"--property=StandardOutput=truncate:{REPORT}",
        f"--property=StandardError=truncate:{PROGRESS}",
        "--",
        *command,
    ]
    for step in (["install", "-d", "-m", "0700", RUN_DIR], unit):
        reply = _execute(transport, target, step)
        if reply.exit_code != 0:
            raise GpuBurninError(
                f"{target.name}: cannot start {PROGRAM} in a systemd unit ({reply.stderr or 'no reason given'}); "
                f"install gpu-burnin there (role gpu_burnin); {target.user} must be root or have sudo without password",
                EXIT_USAGE,
            )


class _Follower:
    """Knows how much of the progress was seen, across connections; `run_files` is the run's directory, once named."""

    def __init__(self, target: Target, on_line: Callable[[str], None]) -> None:
        self._target = target
        self._on_line = on_line
        self._offset = 0
        self._rest = b""
        self.run_files: str | None = None

    def poll(self, transport: paramiko.Transport) -> Mapping[str, str] | None:
        """Pass on new lines; the unit's state once it is finished, else None."""
        # The state first: once it says finished, the file that is read next is complete.
        state = _state(transport, self._target)
        if state.get("LoadState") != "loaded":
            raise GpuBurninError(
                f"{self._target.name}: the run is gone: the host has booted meanwhile, or somebody stopped {UNIT}; "
                "after a boot `gpu-burnin report` there says in which check it died",
                EXIT_INCONCLUSIVE,
            )
        reply = _execute(transport, self._target, ["tail", "-c", f"+{self._offset + 1}", PROGRESS])
        self._offset += len(reply.stdout)
        *lines, self._rest = (self._rest + reply.stdout).split(b"\n")
        finished = not _running(state)
        if finished and self._rest:
            lines.append(self._rest)
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if named := _RUN_FILES.fullmatch(text):
                self.run_files = named[1]
            self._on_line(text)
        return state if finished else None


def _collect(
    transport: paramiko.Transport, target: Target, state: Mapping[str, str], run_files: str | None
) -> RemoteRun:
    report = _execute(transport, target, ["cat", REPORT])
    page = _execute(transport, target, ["cat", f"{run_files}/{_PAGE}"]).stdout if run_files else b""
    _forget(transport, target)
    if state.get("ExecMainCode") != _CLD_EXITED:
        raise GpuBurninError(
            f"{target.name}: the burn-in was killed (signal {state.get('ExecMainStatus')}); "
            f"look at `journalctl -u {UNIT}` there (out of memory?) and run it again",
            EXIT_INCONCLUSIVE,
        )
    return RemoteRun(int(state.get("ExecMainStatus", str(EXIT_INCONCLUSIVE))), report.stdout, page)


def _forget(transport: paramiko.Transport, target: Target) -> None:
    """Let systemd drop a finished unit; both commands fail harmlessly when there is none."""
    _execute(transport, target, ["systemctl", "stop", UNIT])
    _execute(transport, target, ["systemctl", "reset-failed", UNIT])


def _state(transport: paramiko.Transport, target: Target) -> Mapping[str, str]:
    reply = _execute(transport, target, ["systemctl", "show", "--property", _PROPERTIES, UNIT])
    if reply.exit_code != 0:
        raise GpuBurninError(
            f"{target.name}: cannot ask systemd for {UNIT} ({reply.stderr or 'no reason given'}); "
            f"let {target.user} be root or use sudo without password",
            EXIT_USAGE,
        )
    lines = reply.stdout.decode("utf-8", "replace").splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _running(state: Mapping[str, str]) -> bool:
    return state.get("ActiveState") in ("activating", "active", "deactivating") and state.get("SubState") != "exited"


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


def _as_ssh_error(target: Target, error: Exception) -> Exception:
    if isinstance(error, SshError):
        return error
    return GpuBurninError(
        f"{target.name}: the SSH connection failed ({error or type(error).__name__}); try again", EXIT_INCONCLUSIVE
    )
