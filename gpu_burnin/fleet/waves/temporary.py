"""What a step has on this machine only while it runs: ansible-runner's folder, and that of SSH's sockets.

The first is in the step's own folder, which is its owner's alone. A socket's name has 107 bytes at most (unix(7)), so
the other is in the folder for temporary files, by a name that the step's folder has before it is made. What a step
leaves that was killed is removed by it, or by whoever finds that it is dead.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpu_burnin.system.files import write_atomic

RUNNER, SOCKETS = "runner", "sockets"
_SOCKETS_NAME = re.compile(r"muster-[0-9a-f]{12}")


@contextlib.contextmanager
def runner(folder: Path) -> Iterator[str]:
    """ansible-runner's private_data_dir, in a step's folder. Raises OSError."""
    path = folder / RUNNER
    path.mkdir(mode=0o700)
    try:
        yield str(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def sockets(folder: Path) -> Iterator[str]:
    """The folder for SSH's sockets of a step, whose connections end with it. Raises OSError."""
    path = Path(tempfile.gettempdir()) / f"muster-{secrets.token_hex(6)}"
    write_atomic(folder / SOCKETS, os.fsencode(path))
    path.mkdir(mode=0o700)
    try:
        yield str(path)
    finally:
        _close(path)
        _remove_sockets(folder)


def clear(folder: Path) -> None:
    """Remove what is left of a step of which nothing runs any more. Raises OSError."""
    shutil.rmtree(folder / RUNNER, ignore_errors=True)
    _remove_sockets(folder)


def remove_all(folders: Path) -> None:
    """Remove a folder of such steps, with what is left of each. Raises OSError."""
    for folder in folders.glob("*/"):
        clear(folder)
    shutil.rmtree(folders, ignore_errors=True)


def forget_environment(status: Mapping[str, Any], runner_config: Any) -> None:
    """A status_handler of ansible-runner, which keeps its environment in a file that nobody reads: remove that file.

    It is there from when the run is prepared until ansible-playbook is about to start.
    """
    if status.get("status") == "running":
        (Path(runner_config.artifact_dir) / "command").unlink(missing_ok=True)


def _remove_sockets(folder: Path) -> None:
    try:
        path = Path(os.fsdecode((folder / SOCKETS).read_bytes()))
    except OSError:
        return
    if _is_ours(path):
        shutil.rmtree(path, ignore_errors=True)
    (folder / SOCKETS).unlink(missing_ok=True)


def _is_ours(path: Path) -> bool:
    """Whether it is a folder that this user has made for sockets: anybody may have taken the name since."""
    try:
        found = path.lstat()
    except (OSError, ValueError):
        return False
    named = path.is_absolute() and _SOCKETS_NAME.fullmatch(path.name) is not None
    return named and stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()


def _close(path: Path) -> None:
    """End the connections of a step, which would be kept for half an hour and have 2 MB each."""
    for socket in path.glob("*"):
        command = ["ssh", "-o", f"ControlPath={socket}", "-O", "exit", "none"]
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
