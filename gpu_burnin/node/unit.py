"""The one starter of this node's burn-in: a transient systemd unit, which outlives who asked for it.

The role's module, the unit at boot, `gpu-burnin host` and people start it alike, so each of them finds and follows what
another one started. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.report.file_names import REPORT
from gpu_burnin.system.files import read_text
from gpu_burnin.system.own_name import host_name

UNIT = "gpu-burnin-run.service"
PUBLISH_UNIT = "gpu-burnin-publish.service"
# What observes GPUs and pauses while a burn-in needs them for itself: its services are PartOf= it and start After= it.
# The service beside it starts it again and ends: a target that stays active would keep the run's name taken.
MONITORING = Path("/etc/systemd/system/gpu-monitoring.target")
_RESUME = "gpu-monitoring-resume.service"
# On tmpfs and for root only: what the newest run of the unit prints, and how it ended.
RUN_DIR = Path("/run/gpu-burnin")
PROGRESS, ENDED = "progress.log", "ended"
PROPERTIES = "ActiveState,Result,InvocationID"
POLL_S = 0.5
_COMMAND_TIMEOUT_S = 60.0
# systemd forgets a unit once what follows it has been started: milliseconds.
_FORGOTTEN_S = 10.0
_MOST_PROGRESS_BYTES = 64 << 20
_LAST_LINES = 5
NOTHING = "it wrote nothing"


@dataclass(frozen=True)
class UnitState:
    """What systemd says of the unit; one that is not there is idle. `failed` is its reason, "" when it did not fail.

    `invocation` is systemd's id of this one run of the unit, "" for a unit that is not there.
    """

    running: bool
    failed: str = ""
    invocation: str = ""


@dataclass(frozen=True)
class Ended:
    """How the main process of a run ended: `exit_code`, or None and the `signal` that killed it."""

    invocation: str
    exit_code: int | None
    signal: str = ""


@dataclass(frozen=True)
class Started:
    """The run that is under way: whether this call has started it, and systemd's id of it."""

    started: bool
    invocation: str


def command(arguments: Sequence[str]) -> list[str]:
    """The systemd-run command line of one `gpu-burnin run --json ARGUMENTS`."""
    pause = [
        # Waits until its services have stopped; one that does not stop in its time is no reason not to test.
        f"--property=ExecStartPre=-/bin/sh -c 'exec systemctl stop {MONITORING.name}'",
        # By systemd itself, however the unit ends: nothing that is killed with the run can leave it paused.
        f"--property=OnSuccess={_RESUME}",
        f"--property=OnFailure={_RESUME}",
    ]
    return [
        "systemd-run",
        f"--unit={UNIT}",
        "--description=GPU burn-in",
        "--quiet",
        # Comes back when the program runs: until then a unit whose start is only queued looks like one that has ended.
        "--service-type=exec",
        # FAIL and INCONCLUSIVE are results of the burn-in, not failures of the unit.
        "--property=SuccessExitStatus=1 3",
        # SIGTERM to the run alone: it ends its workers itself and still leaves a report.
        "--property=KillMode=mixed",
        # When memory runs out the kernel takes a worker, of which the run tells: systemd must not end the run for it.
        "--property=OOMPolicy=continue",
        # Not truncate: ExecStopPost opens them once more.
        f"--property=StandardOutput=append:{RUN_DIR / REPORT}",
        f"--property=StandardError=append:{RUN_DIR / PROGRESS}",
        f"--property=ExecStopPost=-/bin/sh -c '{_at_its_end()}'",
        *(pause if MONITORING.exists() else ()),
        "--",
        # This very installation, whatever PATH and the working directory hold.
        *(sys.executable, "-P", "-m", "gpu_burnin", "run", "--json"),
        *arguments,
    ]


def _at_its_end() -> str:
    # systemd forgets a unit that has ended well, and its exit code with it.
    tell = f"echo $$INVOCATION_ID $$EXIT_CODE $$EXIT_STATUS >{RUN_DIR / ENDED}"
    # However the run ends, its evidence is published when the node is in the cluster.
    return f"{tell}; systemctl --no-block try-restart {PUBLISH_UNIT} 2>/dev/null"


def start(arguments: Sequence[str]) -> Started:
    """Start the unit, unless it runs already; then its options stay as they are.

    Raises GpuBurninError (exit 2) when systemd refuses.
    """
    found = state()
    if found.running:
        return Started(False, found.invocation)
    if found.failed:
        # A unit left failed by an earlier configuration error would keep its name occupied.
        systemctl("reset-failed", UNIT)
    try:
        RUN_DIR.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name in (ENDED, REPORT, PROGRESS):
            (RUN_DIR / name).unlink(missing_ok=True)
    except OSError as error:
        raise GpuBurninError(f"{host_name()}: {RUN_DIR} cannot be written ({error.strerror}); run as root") from error
    end_s = time.monotonic() + _FORGOTTEN_S
    while systemctl("show", "--property=LoadState", UNIT).strip() == "LoadState=loaded" and time.monotonic() < end_s:
        time.sleep(POLL_S)
    done = call(command(arguments))
    found, over = state(), ended()
    if done.returncode == 0:
        return Started(True, found.invocation or (over.invocation if over else ""))
    if found.running:  # somebody else was quicker
        return Started(False, found.invocation)
    raise GpuBurninError(f"{host_name()}: systemd-run cannot start the burn-in ({why(done)}); run as root")


def state() -> UnitState:
    """What the unit does now. Raises GpuBurninError (exit 2) when systemd does not say."""
    return parse_state(systemctl("show", f"--property={PROPERTIES}", UNIT))


def parse_state(text: str) -> UnitState:
    """The state out of the PROPERTIES that `systemctl show` prints, KEY=VALUE a line."""
    properties = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    active = properties.get("ActiveState")
    return UnitState(
        running=active in ("active", "activating", "deactivating", "reloading"),
        failed=properties.get("Result", "no reason given") if active == "failed" else "",
        invocation=properties.get("InvocationID", ""),
    )


def ended() -> Ended | None:
    """How the newest run of the unit ended in this boot; None when it has not."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return parse_ended(read_text(RUN_DIR / ENDED, follow=False))
    return None


def parse_ended(text: str) -> Ended | None:
    """What ExecStopPost has written (systemd.exec(5), $EXIT_CODE and $EXIT_STATUS); None when it is not that."""
    match text.split():
        case [invocation, "exited", status] if status.isdecimal():
            return Ended(invocation, int(status))
        case [invocation, "killed" | "dumped", signal]:
            return Ended(invocation, None, signal)
    return None


def last_lines() -> str:
    """The last lines that the newest run of the unit wrote."""
    with contextlib.suppress(OSError):
        lines = read_text(RUN_DIR / PROGRESS, _MOST_PROGRESS_BYTES, follow=False, errors="replace").splitlines()
        return " / ".join(line.strip() for line in lines[-_LAST_LINES:] if line.strip()) or NOTHING
    return NOTHING


def follow(
    invocation: str,
    on_line: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Pass on the lines of a run, and give its exit code once it has ended. Raises GpuBurninError (exit 3)."""
    offset, rest = 0, b""
    while True:
        # The state first: once it says that the run has ended, what is read next is complete.
        found = state()
        running = found.running and found.invocation == invocation
        with contextlib.suppress(OSError), (RUN_DIR / PROGRESS).open("rb") as file:
            file.seek(offset)
            offset += len(new := file.read())
            *whole, rest = (rest + new).split(b"\n")
            for line in whole if running or not rest else (*whole, rest):
                on_line(line.decode("utf-8", "replace"))
        if not running:
            break
        sleep(POLL_S)
    over = ended()
    if over is None or over.invocation != invocation:
        raise GpuBurninError(f"{host_name()}: the burn-in in {UNIT} is gone; run it again", EXIT_INCONCLUSIVE)
    if over.exit_code is None:
        raise GpuBurninError(
            f"{host_name()}: the burn-in in {UNIT} was killed (signal {over.signal}); look at `journalctl -u {UNIT}` "
            "(out of memory?) and run it again",
            EXIT_INCONCLUSIVE,
        )
    return over.exit_code


def systemctl(*arguments: str) -> str:
    """What systemctl prints. Raises GpuBurninError."""
    done = call(["systemctl", *arguments])
    if done.returncode != 0:
        raise GpuBurninError(
            f"{host_name()}: systemd does not answer ({why(done)}); run as root, on a machine with systemd"
        )
    return done.stdout


def call(command_line: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """How a program of systemd ended. Raises GpuBurninError where it cannot be run."""
    try:
        # In the C locale: what is read here is not translated.
        return subprocess.run(
            command_line,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=_COMMAND_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuBurninError(
            f"{host_name()}: {command_line[0]} does not work ({error}); the burn-in's unit needs systemd"
        ) from error


def why(done: subprocess.CompletedProcess[str]) -> str:
    """What it complained of, in one line."""
    return " ".join(done.stderr.split()) or "no reason given"
