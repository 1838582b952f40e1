"""A member's part in a test between nodes, as the module fabric_test does it on the host. Standard library only."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.host.commands import CommandError, Run
from ansible_collections.muster.fleet.plugins.module_utils.host.files import replacing

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_TEST, _OFFER, _KEYS, _VIEW = "test", "offer", "keys", "view"
_ENDED, _LOG, _STARTED = "ended", "log", "started"
_FILES = (_TEST, _OFFER, _KEYS, _VIEW, _ENDED, _LOG, _STARTED)
# How a test has ended is on the disk before the unit is gone, whoever ends it otherwise.
_SCRIPT = 'dir=$1; shift; "$@"; echo $? >"$dir/ended.new"; mv "$dir/ended.new" "$dir/ended"'
_POLL_S = 0.5
# A node's own limit beside the controller's: it may outlast the controller by so much and no more.
_SPARE_S = 60
# From SIGTERM to SIGKILL, which are within it; units that an older Muster began have 90 s.
_KILL_S, _STOP_S = 10, 120.0
# What `systemctl is-active` says of a unit of which processes may run; "" where it says nothing.
_MAY_RUN = ("active", "activating", "deactivating", "")
_PROGRAM_S = 60.0
_MOST_SENTENCE = 600


class Member:
    """The host's files and unit. `run` runs a command to its end; without `act` nothing is changed."""

    def __init__(self, directory: str, program: str, run: Run, *, act: bool, boot_id: Path = BOOT_ID) -> None:
        self.directory, self.program, self.run, self.act = Path(directory), program, run, act
        self._boot_id = boot_id
        self.unit = f"{self.directory.name}.service"

    def look(self) -> dict[str, Any]:
        """The boot and who works; a test of an earlier call is ended. `runs`: it could not be, and may go on."""
        left = self._running()
        why = self._stop() if left and self.act else ""
        found = {"changed": left, "boot_id": self.boot_id(), "working": [], "problem": why, "runs": bool(why)}
        if why:
            return found
        try:
            done = self.run([self.program, "repair", "look"], _PROGRAM_S)
        except CommandError as error:
            return {**found, "problem": f"{error}; apply the role gpu_burnin to the whole host"}
        if done.code != 0:
            return {**found, "problem": _sentence(done.err) or f"gpu-burnin repair look ended with {done.code}"}
        working = json.loads(done.out)["working"]
        return {**found, "working": [f"{one['name']} (process {one['pid']})" for one in working]}

    def offer(self, test: str) -> dict[str, Any]:
        """What rank 0 offers the members of a test."""
        if not self.act:
            return {"changed": True, "offer": "", "problem": ""}
        self._clear()
        self._write(_TEST, test)
        paths = ["--test", str(self.directory / _TEST), "--output", str(self.directory / _OFFER)]
        try:
            done = self.run([self.program, "fabric", "offer", *paths], _PROGRAM_S)
        except CommandError as error:
            return {"changed": True, "offer": "", "problem": str(error)}
        if done.code != 0:
            why = _sentence(done.err) or f"gpu-burnin fabric offer ended with {done.code}"
            return {"changed": True, "offer": "", "problem": why}
        return {"changed": True, "offer": (self.directory / _OFFER).read_text(encoding="utf-8"), "problem": ""}

    def start(self, offer: str, keys: str, wait_s: int) -> dict[str, Any]:
        """Begin the test, and come back."""
        if not self.act:
            return {"changed": True, "problem": ""}
        self._clear()
        for name, text in ((_OFFER, offer), (_KEYS, keys), (_STARTED, self.boot_id())):
            self._write(name, text)
        with contextlib.suppress(CommandError):
            # One that an earlier test left failed would keep its name occupied.
            self.run(["systemctl", "reset-failed", self.unit])
        paths = [f"--{name}={self.directory / name}" for name in (_OFFER, _KEYS)]
        command = [
            *("systemd-run", f"--unit={self.unit}", "--description=A test between nodes", "--quiet", "--collect"),
            *("--service-type=exec", f"--property=RuntimeMaxSec={wait_s + _SPARE_S - _KILL_S}"),
            f"--property=TimeoutStopSec={_KILL_S}",
            *(f"--property=Standard{of}=append:{self.directory / _LOG}" for of in ("Output", "Error")),
            *("--", "/bin/sh", "-c", _SCRIPT, "sh", str(self.directory)),
            *(self.program, "fabric", "join", *paths, f"--output={self.directory / _VIEW}"),
        ]
        try:
            done = self.run(command)
        except CommandError as error:
            return {"changed": True, "problem": str(error)}
        why = _sentence(done.err) or f"systemd-run ended with {done.code}"
        return {"changed": True, "problem": "" if done.code == 0 else f"systemd-run cannot start the test ({why})"}

    def wait(self, wait_s: float) -> dict[str, Any]:
        """How the test has ended, and the view. `code` is left out where it has not, or was killed.

        `runs`: it may go on, as it could not be ended.
        """
        found: dict[str, Any] = {"changed": False, "boot_id": self.boot_id(), "view": "", "problem": "", "runs": False}
        # The folder does not outlast a boot.
        if not self.act or not (self.directory / _STARTED).exists():
            return found
        end_s = time.monotonic() + wait_s
        while (code := self._code()) is None and self._goes_on() and time.monotonic() < end_s:
            time.sleep(_POLL_S)
        code = self._code() if code is None else code
        if code is None and self._running():
            # Its node may get work when this is over.
            found["problem"] = self._stop()
            found["runs"] = bool(found["problem"])
        with contextlib.suppress(FileNotFoundError):
            found["view"] = (self.directory / _VIEW).read_text(encoding="utf-8", errors="replace")
        if code is not None:
            found["code"] = code
            found["problem"] = "" if code <= 1 else _sentence(self._log())
        # A secret that is used, and the rest.
        self._clear()
        return found

    def boot_id(self) -> str:
        """The boot of this host."""
        return self._boot_id.read_text(encoding="ascii").strip()

    def _code(self) -> int | None:
        try:
            return int((self.directory / _ENDED).read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return None

    def _goes_on(self) -> bool:
        """Whether there is something to wait for. A shutdown ends the unit first, and then the connection."""
        return self._running() or self._systemctl("is-system-running") == "stopping"

    def _running(self) -> bool:
        """Whether something of it may run."""
        return self._systemctl("is-active", self.unit) in _MAY_RUN

    def _stop(self) -> str:
        """End the test; why it may go on, "" where it has ended."""
        with contextlib.suppress(CommandError):
            self.run(["systemctl", "stop", self.unit], _STOP_S)
        state = self._systemctl("is-active", self.unit)
        if state not in _MAY_RUN:
            return ""
        said = f"is {state}" if state else "cannot be asked for"
        return (
            f"{self.unit} {said} after `systemctl stop`, so a test may go on; look at its processes, or boot the node"
        )

    def _systemctl(self, *words: str) -> str:
        try:
            return str(self.run(["systemctl", *words]).out.strip())
        except CommandError:
            return ""

    def _log(self) -> str:
        try:
            return (self.directory / _LOG).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return ""

    def _clear(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        for name in _FILES:
            (self.directory / name).unlink(missing_ok=True)

    def _write(self, name: str, text: str) -> None:
        with replacing(self.directory / name) as file:
            file.write(text.encode())


def _sentence(text: str) -> str:
    """The last line of what a command said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1].removeprefix("gpu-burnin: ")[:_MOST_SENTENCE] if lines else ""
