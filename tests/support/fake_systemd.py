#!/usr/bin/env python3
"""Stands for systemctl and systemd-run on a host that is the folder $FAKE_HOST: runs the one transient unit for real.

Instead of the unit's own command it runs $FAKE_PROGRAM with the command's words, and keeps those in $FAKE_HOST/command.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import uuid
from pathlib import Path


def install(folder: Path) -> None:
    """Put both commands into a folder for PATH."""
    for name in ("systemctl", "systemd-run"):
        path = folder / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} {__file__} {name} "$@"\n')
        path.chmod(0o755)


def _show(state: Path) -> None:
    try:
        print(state.read_text())
    except FileNotFoundError:  # its unit has ended well, or never ran
        print("ActiveState=inactive\nResult=success\nInvocationID=")


def _run(host: Path, state: Path, words: list[str]) -> None:
    command = words[words.index("--") + 1 :]
    properties = dict(
        word.removeprefix("--property=").split("=", 1) for word in words if word.startswith("--property=")
    )
    (host / "command").write_text(shlex.join(words))
    invocation = uuid.uuid4().hex
    _write(state, f"ActiveState=active\nResult=success\nInvocationID={invocation}\n")
    if os.fork():
        return
    os.setsid()
    # Who called shall not wait for the unit's end.
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    code = _executed([*shlex.split(os.environ["FAKE_PROGRAM"]), *command], properties, {})
    how = ("exited", str(code)) if code >= 0 else ("killed", str(-code))
    told = {"INVOCATION_ID": invocation, "EXIT_CODE": how[0], "EXIT_STATUS": how[1]}
    last = shlex.split(properties["ExecStopPost"].removeprefix("-"))
    _executed([word.replace("$$", "$") for word in last], properties, told)
    if str(code) in ["0", *properties["SuccessExitStatus"].split()]:
        state.unlink()
    else:
        _write(state, f"ActiveState=failed\nResult=exit-code\nInvocationID={invocation}\n")


def _write(state: Path, text: str) -> None:
    """Whole: another call may just be reading it."""
    fresh = state.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(state)


def _executed(words: list[str], properties: dict[str, str], more: dict[str, str]) -> int:
    """The exit code of one command of the unit; as systemd does, each command opens the unit's outputs anew."""
    modes = {"truncate": "wb", "append": "ab"}
    (out_mode, out), (err_mode, err) = (properties[key].split(":", 1) for key in ("StandardOutput", "StandardError"))
    with Path(out).open(modes[out_mode]) as stdout, Path(err).open(modes[err_mode]) as stderr:
        done = subprocess.run(words, stdout=stdout, stderr=stderr, env={**os.environ, **more}, check=False)
    return done.returncode


def main() -> None:
    """One call of either command."""
    host = Path(os.environ["FAKE_HOST"])
    state = host / "unit"
    match sys.argv[1:]:
        case ["systemctl", "show", *_]:
            _show(state)
        case ["systemctl", "reset-failed", _]:
            state.unlink()
        case ["systemd-run", *words]:
            _run(host, state, words)
        case ["systemctl", "--no-block", "try-restart", _]:
            sys.exit("Unit not found.")
        case words:
            sys.exit(f"not played: {words}")


if __name__ == "__main__":
    main()
