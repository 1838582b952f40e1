"""A roll on the controller's disk: its plan, its inventory, and a folder for each step.

A step that has its result is done, whoever began it. One that has none runs while somebody has the lock of its folder,
which its process holds until it ends: no process can be taken for another.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.roll import documents
from gpu_burnin.fleet.waves import temporary
from gpu_burnin.fleet.waves.model import Roll, Step, StepResult
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.files import fsync_directory, write_atomic
from gpu_burnin.system.prose import listed

_ROLL, _RESULT, _LOCK, _HOSTS = "roll.json", "result.json", "running.lock", "hosts"
# A roll until what is left of the one before is gone.
_NEXT = "next.json"
_STEPS, _ENDED = "steps", "ended"
_AGAIN = "begin a new roll with --again"
_UNKNOWN_ROLL = f"nobody knows what was begun; look at the nodes with `muster status`, then {_AGAIN}"
_UNKNOWN_STEP = f"nobody knows what became of its hosts; remove it, and its step runs again, or {_AGAIN}"
# A script that prints the inventory, which Ansible reads faster than any other form.
_SCRIPT = '#!/bin/sh\nexec cat "$(dirname "$0")/{name}.json"\n'


@dataclass(frozen=True)
class Book:
    """The folder of a state directory's rolls: one roll at a time."""

    folder: Path

    def begin(self, roll: Roll, inventory: bytes) -> None:
        """Keep a new roll in the place of an older one, none of whose steps may run. Raises GpuBurninError.

        One that is cut here is there, and begun again: what those before it were done with nobody else knows.
        """
        if running := self.running():
            raise GpuBurninError(
                f"{listed(running)} of the roll before still {'runs' if len(running) == 1 else 'run'}, begun by a call "
                "that has ended; wait until they are over, or go on with that roll, which waits for them"
            )
        documents.write(self.folder / _NEXT, to_json(roll))
        with writing(self.folder):
            temporary.remove_all(self.folder / _STEPS)
            (self.folder / _ENDED).unlink(missing_ok=True)
            self.keep_inventory(self.folder, "inventory", inventory)
            (self.folder / _NEXT).replace(self.folder / _ROLL)
            # Before a step is kept that another begin would remove.
            fsync_directory(self.folder)

    def roll(self) -> Roll | None:
        """The roll, None where there is none. Raises GpuBurninError for one that cannot be read."""
        path = self.folder / (_ROLL if self.begun else _NEXT)
        return documents.read(Roll, path, _UNKNOWN_ROLL) if path.exists() else None

    @property
    def begun(self) -> bool:
        """Whether the roll is all that is here; False where `begin` was cut, and is to be called again with it."""
        return not (self.folder / _NEXT).exists()

    @property
    def ended(self) -> bool:
        """Whether the roll has come to its end, or has stopped."""
        return self.begun and (self.folder / _ENDED).exists()

    def end(self, lines: Sequence[str]) -> Path:
        """Keep that it has ended, with its report; gives the report's file. Raises GpuBurninError."""
        path = self.folder / _ENDED
        with writing(self.folder):
            write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
        return path

    @property
    def inventory(self) -> Path:
        """The inventory as it was when the roll was planned."""
        return self.folder / "inventory"

    @staticmethod
    def keep_inventory(folder: Path, name: str, content: bytes) -> Path:
        """Keep an inventory, as `ansible-inventory --list --export` prints it, in a form that Ansible reads fast."""
        write_atomic(folder / f"{name}.json", content)
        write_atomic(folder / name, _SCRIPT.format(name=name).encode(), mode=0o700)
        return folder / name

    def step(self, step: Step) -> Path:
        """The folder of a step, with its hosts in a file. Raises GpuBurninError."""
        folder = self.folder / _STEPS / step.name
        with writing(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not (folder / _HOSTS).exists():
                write_atomic(folder / _HOSTS, "".join(f"{host}\n" for host in step.hosts).encode())
        return folder

    def running(self) -> list[str]:
        """The steps whose processes run."""
        return [path.parent.name for path in sorted((self.folder / _STEPS).glob(f"*/{_LOCK}")) if _is_locked(path)]

    def result(self, step: Step) -> StepResult | None:
        """How a step ended, None where it has not. Raises GpuBurninError for a result that cannot be read."""
        return result_in(self.folder / _STEPS / step.name)


def result_in(folder: Path) -> StepResult | None:
    """The result in the folder of a step."""
    path = folder / _RESULT
    return documents.read(StepResult, path, _UNKNOWN_STEP) if path.exists() else None


def keep_result(folder: Path, result: StepResult) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    documents.write(folder / _RESULT, to_json(result))


def hosts_file(folder: Path) -> Path:
    """The file with a step's hosts, a line each."""
    return folder / _HOSTS


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[int]:
    """Have the lock of a step, as soon as the process that runs it has ended; it is for the one that will run it."""
    with writing(folder):
        fd = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield fd
    finally:
        os.close(fd)


def gates(results: Mapping[str, StepResult]) -> bytes:
    """The inventory variables by which the ledger and the wait know what each node's own gate said."""
    hostvars = {
        host: {"__node_admission_gate_state": dict(found.gate)}
        for result in results.values()
        for host, found in result.hosts.items()
        if found.gate
    }
    return json.dumps({"_meta": {"hostvars": hostvars}, "all": {"hosts": sorted(hostvars)}}).encode()


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Raises GpuBurninError where what is written below cannot be kept."""
    try:
        yield
    except OSError as error:
        raise GpuBurninError(
            f"{error.filename or path} cannot be written ({error.strerror}); no step begins without it: make room, "
            "then call this again"
        ) from error
