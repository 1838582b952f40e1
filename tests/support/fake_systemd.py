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
    print(state.read_text() if state.exists() else "ActiveState=inactive\nResult=success\nInvocationID=")


def _run(host: Path, state: Path, words: list[str]) -> None:
    command = words[words.index("--") + 1 :]
    said = [word.removeprefix("--property=").split("=", 1) for word in words if word.startswith("--property=")]
    properties = dict(said)
    (host / "command").write_text(shlex.join(words))
    invocation = uuid.uuid4().hex
    state.write_text(f"ActiveState=active\nResult=success\nInvocationID={invocation}\n")
    if os.fork():
        return
    os.setsid()
    outputs = [
        Path(properties[key].removeprefix("truncate:")).open("wb")  # noqa: SIM115 until the process ends
        for key in ("StandardOutput", "StandardError")
    ]
    for descriptor, output in enumerate(outputs, 1):
        os.dup2(output.fileno(), descriptor)
    code = subprocess.run([*shlex.split(os.environ["FAKE_PROGRAM"]), *command], check=False).returncode
    how = ("exited", str(code)) if code >= 0 else ("killed", str(-code))
    environment = {**os.environ, "INVOCATION_ID": invocation, "EXIT_CODE": how[0], "EXIT_STATUS": how[1]}
    for step in [value.removeprefix("-") for key, value in said if key == "ExecStopPost"]:
        if not step.startswith("/usr/bin/systemctl"):
            subprocess.run([word.replace("$$", "$") for word in shlex.split(step)], env=environment, check=False)
    if str(code) in ["0", *properties["SuccessExitStatus"].split()]:
        state.unlink()
    else:
        state.write_text(f"ActiveState=failed\nResult=exit-code\nInvocationID={invocation}\n")


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
        case words:
            sys.exit(f"not played: {words}")


if __name__ == "__main__":
    main()
