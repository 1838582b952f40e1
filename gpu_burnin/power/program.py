"""Machines that a program of yours switches: `PROGRAM create|delete|list`, JSON lines in and out.

The protocol is in docs/operations/scaler-programs.md. A machine that `list` does not name is off; one that it names is
on where its state is `on`, and on its way where that is `starting`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpu_burnin.power.port import Clock, PowerError, Target

STATES = ("on", "starting", "stopping", "off")
# How long one call may take, and how long until `list` shows what was ordered.
CALL_S, SHOWN_S = 120.0, 600.0
_POLL_S = 5.0
# More of what a program writes is not read into a sentence.
_MOST_WORDS = 300
_MOST_OUTPUT = 16 * 2**20


@dataclass(frozen=True)
class Call:
    """What one run of a program gave."""

    code: int
    out: str
    errors: str


def run_program(command: tuple[str, ...], line: str, timeout_s: float) -> Call:
    """Run it with one line of input; it and its children are ended at `timeout_s`. Raises OSError and TimeoutError."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            out, errors = process.communicate(line, timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise TimeoutError from error
    return Call(process.returncode, out[:_MOST_OUTPUT], errors)


@dataclass(frozen=True)
class Program:
    """The machines of one program; `name` is how the configuration calls it. See port.Provider."""

    name: str
    command: tuple[str, ...]
    call_s: float = CALL_S
    shown_s: float = SHOWN_S
    clock: Clock = field(default_factory=Clock)
    run: Callable[[tuple[str, ...], str, float], Call] = run_program

    def is_on(self, target: Target) -> bool:
        """See port.Provider."""
        return self._state(target) in ("on", "starting")

    def turn_on(self, target: Target) -> None:
        """See port.Provider. A machine that is there already is not ordered again."""
        if self._state(target) not in ("on", "starting"):
            self._order("create", target)
        self._await(target, "create", ("on",))

    def turn_off(self, target: Target) -> None:
        """See port.Provider."""
        if self._state(target) not in ("off", "stopping"):
            self._order("delete", target)
        self._await(target, "delete", ("off",))

    def machines(self, about: str = "") -> dict[str, Mapping[str, Any]]:
        """What `list` names, by name. `about` is the machine that is asked for. Raises PowerError."""
        found: dict[str, Mapping[str, Any]] = {}
        for one in self._lines("list", "", about or self.name):
            name, state = one.get("name"), one.get("state", "on")
            if not isinstance(name, str) or not name or state not in STATES:
                raise PowerError(
                    f"{about or self.name}: {self._title('list')} answered {_brief(json.dumps(one))}, which is no "
                    f"machine with `name` and a `state` of {', '.join(STATES)}; correct the program"
                )
            if name in found:
                raise PowerError(
                    f"{name}: {self._title('list')} names it twice, so nobody knows which is meant; end one of them"
                )
            found[name] = one
        return found

    def _state(self, target: Target) -> str:
        found = self.machines(target.name).get(target.name)
        if found is None:
            return "off"
        for key, pinned in (("uuid", target.uuid), ("serial", target.serial)):
            told = str(found.get(key) or "")
            if pinned and told and told.lower() != pinned.lower():
                raise PowerError(
                    f"{target.name}: {self._title('list')} names a machine with the {key} {told}, and {pinned} is "
                    f"pinned; correct fleet_power.{key}, or the program"
                )
        return str(found.get("state", "on"))

    def _order(self, what: str, target: Target) -> None:
        given = {
            "name": target.name,
            "model": target.model,
            "gpus": target.gpus,
            "place": dict(target.place),
            "parameters": dict(target.parameters),
        }
        for one in self._lines(what, json.dumps(given, sort_keys=True) + "\n", target.name):
            if one.get("error"):
                raise PowerError(
                    f"{target.name}: {self._title(what)} refuses: {_brief(str(one['error']))}; do as it says, then "
                    "release the machine"
                )

    def _await(self, target: Target, what: str, states: tuple[str, ...]) -> None:
        deadline_s = self.clock.now_s() + self.shown_s
        while (state := self._state(target)) not in states:
            if self.clock.now_s() >= deadline_s:
                raise PowerError(
                    f"{target.name}: {self._title(what)} took the order, and {self.shown_s:.0f} s later `list` says "
                    f"that the machine is {state}; look at the provider's own log"
                )
            self.clock.sleep(_POLL_S)

    def _lines(self, what: str, line: str, about: str) -> list[Mapping[str, Any]]:
        try:
            call = self.run((*self.command, what), line, self.call_s)
        except TimeoutError as error:
            raise PowerError(
                f"{about}: {self._title(what)} did not end within {self.call_s:.0f} s, and was ended; look at the "
                "provider's own log"
            ) from error
        except OSError as error:
            raise PowerError(f"{about}: {self._title(what)} cannot be run ({error}); correct its path") from error
        if call.code != 0:
            raise PowerError(
                f"{about}: {self._title(what)} ended with {call.code} ({_brief(call.errors) or 'no word'}); do as it "
                "says, or correct the program"
            )
        return [self._object(text, what, about) for text in call.out.splitlines() if text.strip()]

    def _object(self, text: str, what: str, about: str) -> Mapping[str, Any]:
        try:
            found = json.loads(text)
        except ValueError as error:
            found, why = None, str(error)
        else:
            why = "it is no object"
        if not isinstance(found, dict):
            raise PowerError(
                f"{about}: {self._title(what)} wrote a line that is no JSON object ({why}): {_brief(text)}; correct it"
            )
        return found

    def _title(self, what: str) -> str:
        return f"`{what}` of the program {self.name}"


def _brief(text: str) -> str:
    line = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return line if len(line) <= _MOST_WORDS else f"{line[: _MOST_WORDS - 3]}..."
