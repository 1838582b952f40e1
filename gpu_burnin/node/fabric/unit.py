"""A member's part in a test that the admitter asks for: a transient unit, which outlives the agent. Its files."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.unit import call, parse_state, systemctl, why
from gpu_burnin.system.files import read_text

UNIT = "gpu-burnin-fabric.service"
# By it the agent knows its own: a test of `muster fabric run` has a unit of the same name.
_DESCRIPTION = "A test with other nodes"
OFFER, KEYS, VIEW, OUTCOME, PROGRESS = "offer", "keys", "view", "outcome", "progress"
# No test lasts so long: an hour to meet, and what it works.
_MOST_S = 2 * 3600
_MOST_WORDS = 200
# What does not end when it is asked is killed: the next test waits for it.
_STOP_S = 5


def command(folder: Path) -> list[str]:
    """The systemd-run command line of one `gpu-burnin fabric join`."""
    return [
        "systemd-run",
        f"--unit={UNIT}",
        f"--description={_DESCRIPTION}",
        "--quiet",
        "--collect",
        "--service-type=exec",
        # A fault that it found, and an offer that it refused, are results and not failures of the unit.
        "--property=SuccessExitStatus=1 3",
        "--property=NoNewPrivileges=yes",
        f"--property=RuntimeMaxSec={_MOST_S}",
        f"--property=TimeoutStopSec={_STOP_S}",
        f"--property=StandardOutput=append:{folder / OUTCOME}",
        f"--property=StandardError=append:{folder / PROGRESS}",
        "--",
        *joining(folder),
    ]


def joining(folder: Path) -> list[str]:
    """The command line of `gpu-burnin fabric join` with the files of `folder`, by this very installation."""
    files = ("--offer", str(folder / OFFER), "--keys", str(folder / KEYS), "--output", str(folder / VIEW))
    return [sys.executable, "-P", "-m", "gpu_burnin", "fabric", "join", "--json", *files]


def start(folder: Path) -> None:
    """Start the unit. Raises GpuBurninError, also where another test runs in it."""
    done = call(command(folder))
    if done.returncode != 0:
        raise GpuBurninError(f"systemd-run cannot start the test ({why(done)}); see `systemctl status {UNIT}`")


def running() -> bool:
    """Whether the unit is at work. Raises GpuBurninError when systemd does not say."""
    return parse_state(systemctl("show", "--property=ActiveState", UNIT)).running


def end() -> bool:
    """Ask a unit of an agent that is there to end, without waiting; whether there is none. Raises GpuBurninError.

    One that has ended is there until systemd forgets it: only then another one can start. One of `muster fabric run`
    is left to its end.
    """
    found = systemctl("show", "--property=LoadState,Description", UNIT).splitlines()
    if "LoadState=loaded" not in found:
        return True
    if f"Description={_DESCRIPTION}" in found:
        # Where it is forgotten meanwhile the next look says so.
        call(["systemctl", "--no-block", "stop", UNIT])
    return False


def why_no_view(folder: Path) -> str:
    """What `fabric join` said of a part that has left no view, in one sentence."""
    try:
        found = json.loads(read_text(folder / OUTCOME).strip() or "{}")
        if isinstance(found, dict) and found.get("message"):
            return str(found["message"])[:_MOST_WORDS]
        lines = read_text(folder / PROGRESS).split("\n")
    except (OSError, ValueError):
        lines = []
    words = [line.strip() for line in lines if line.strip()]
    return words[-1][:_MOST_WORDS] if words else "its part in the test ended without a word"
