"""A round on the controller's disk, beside a run: who is in which test, and what came back of each of them.

The executor writes tests, keys and inventory; the action muster.fleet.fabric_test reads them for each host and writes
what the host gave. All is written whole. A round that was played has its mark: it is judged and not played again.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gpu_burnin.api.fabric_documents import BOOT_ID
from gpu_burnin.api.rendezvous import FabricTest, Member, keys_text
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import MOST_BYTES, parse_json, read_bytes, write_atomic
from gpu_burnin.system.prose import printable

# The inventory's group of those that are in the round.
GROUP = "fabric_members"
_ROUND, _PLAYED, _TEST_ID = "round.json", "played", "fabric_test_id"
_HOSTS = "inventory.json"
_MOST_BYTES = 64 << 20
# Of what a host says.
_MOST_SENTENCE, _MOST_WORKING = 600, 64
# The largest exit code that a shell makes of no signal.
_MOST_OWN_CODE = 128
# Stands for the boot of a member that did not answer: its partner is to find it gone.
UNKNOWN_BOOT = "00000000-0000-0000-0000-000000000000"
_T = TypeVar("_T")


@dataclass(frozen=True)
class Number:
    """Which round of which run the folder has; 0: nobody is tested, and who answers is found."""

    run: str
    round: int
    absent: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Presence:
    """What a host said before its test: its boot, the processes that compute on its GPUs, why it can be in none.

    `runs`: a test of before may go on there, as it could not be ended.
    """

    boot_id: str
    working: tuple[str, ...] = ()
    problem: str = ""
    runs: bool = False

    @property
    def hindrance(self) -> str:
        """Why it can be in no test; "" where it can."""
        work = f"work is on its GPUs: {', '.join(self.working)}" if self.working else ""
        return self.problem or work


@dataclass(frozen=True)
class Answer:
    """What a host gave after its test. `code`: what `gpu-burnin fabric join` ended with, None where it did not end.

    `runs`: its test may go on, as it could not be ended.
    """

    boot_id: str
    code: int | None
    view: str = ""
    problem: str = ""
    runs: bool = False

    @property
    def hindrance(self) -> str:
        """Why it took no part though it answered: it could not, or would not. "" where it did, or fell silent.

        One that was killed by a signal, of which a shell makes a code, has fallen silent.
        """
        refused = not self.view and self.code is not None and 1 < self.code <= _MOST_OWN_CODE
        return (self.problem or f"gpu-burnin fabric join ended with {self.code}") if refused else ""


@dataclass(frozen=True)
class RoundFolder:
    """The folder of the round that is played last."""

    path: Path

    def number(self) -> Number | None:
        """Which round it has; None for none. Raises GpuBurninError."""
        return self._read(Number, _ROUND)

    def begin(self, number: Number, tests: Sequence[FabricTest], keys: Mapping[str, str], hosts: Sequence[str]) -> None:
        """A new round in the place of the last. `hosts` stand in the order in which they are begun."""
        shutil.rmtree(self.path, ignore_errors=True)
        for name in ("tests", "keys", "offers", "present", "answers"):
            (self.path / name).mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path.chmod(0o700)
        of_host = {name: {_TEST_ID: test.test} for test in tests for name in test.names}
        inventory = {
            "_meta": {"hostvars": {host: of_host.get(host, {}) for host in hosts}},
            GROUP: {"hosts": list(hosts)},
        }
        for test in tests:
            self._write(f"tests/{test.test}", test.canonical())
            self._write(f"keys/{test.test}", keys_text({name: keys[name] for name in test.names}).encode())
        self._write(_HOSTS, json.dumps(inventory).encode())
        write_atomic(self.inventory, b'#!/bin/sh\nexec cat "$(dirname "$0")/inventory.json"\n', mode=0o700)
        self._write(_ROUND, json.dumps(to_json(number)).encode())

    @property
    def inventory(self) -> Path:
        """The inventory of the round, beside the fleet's: its group and the test of each host."""
        return self.path / "inventory"

    @property
    def played(self) -> bool:
        """Whether its playbook has come to its end."""
        return (self.path / _PLAYED).exists()

    @property
    def played_s(self) -> float | None:
        """When that was, in seconds of the clock; None where it has not: nothing of it was begun later."""
        try:
            return (self.path / _PLAYED).stat().st_mtime
        except FileNotFoundError:
            return None

    def hosts(self) -> list[str]:
        """The hosts in the round. Raises GpuBurninError."""
        try:
            return [str(one) for one in parse_json(read_bytes(self.path / _HOSTS, _MOST_BYTES))[GROUP]["hosts"]]
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise self._damaged(_HOSTS, error) from error

    def end(self) -> None:
        """Keep that the playbook has come to its end."""
        self._write(_PLAYED, b"")

    def keep_presence(self, host: str, presence: Presence) -> None:
        """Keep what a host said before its test. Raises Misfit for what is no answer."""
        known = from_json(Presence, to_json(presence))
        if not BOOT_ID.fullmatch(known.boot_id):
            raise Misfit("boot_id is not of its form")
        known = replace(known, working=tuple(map(_fit, known.working[:_MOST_WORKING])), problem=_fit(known.problem))
        self._write(f"present/{host}", json.dumps(to_json(known)).encode())

    def presence(self, host: str) -> Presence | None:
        """What a host said before its test; None where it did not answer. Raises GpuBurninError."""
        return self._read(Presence, f"present/{host}")

    def test(self, number: int) -> FabricTest:
        """A test as it was planned. Raises GpuBurninError."""
        found = self._read(FabricTest, f"tests/{number}")
        if found is None:
            raise GpuBurninError(f"{self.path} has no test {number}; begin the round again with `muster fabric run`")
        return found

    def agreed(self, number: int) -> FabricTest | None:
        """A test with the boots of its members, those that answer first: rank 0 is one of them.

        None where a member can take no part, or none answers. Raises GpuBurninError.
        """
        test = self.test(number)
        present = {name: self.presence(name) for name in test.names}
        if not any(present.values()) or any(one.hindrance for one in present.values() if one is not None):
            return None
        members = [_in_boot(member, present[member.name]) for member in test.members]
        return replace(test, members=tuple(sorted(members, key=lambda one: one.boot_id == UNKNOWN_BOOT)))

    def keys(self, number: int) -> str:
        """The host keys of a test's members, as a node reads them."""
        return read_bytes(self.path / f"keys/{number}", _MOST_BYTES).decode()

    def keep_offer(self, number: int, offer: str) -> None:
        """Keep what rank 0 of a test offers, for its members alone: it has their secret."""
        self._write(f"offers/{number}", offer.encode())

    def offer(self, number: int) -> tuple[bytes, datetime] | None:
        """What rank 0 of a test offers, and when it came; None where there is none."""
        path = self.path / f"offers/{number}"
        try:
            return read_bytes(path, _MOST_BYTES), datetime.fromtimestamp(path.stat().st_mtime, UTC)
        except FileNotFoundError:
            return None

    def keep_answer(self, host: str, answer: Answer) -> None:
        """Keep what a host gave after its test; a view that can be none is kept as such. Raises Misfit."""
        known = from_json(Answer, to_json(answer))
        view = known.view if known.view.isascii() and len(known.view) <= MOST_BYTES else "unreadable"
        known = replace(known, view=view, problem=_fit(known.problem))
        self._write(f"answers/{host}", json.dumps(to_json(known)).encode())

    def answer(self, host: str) -> Answer | None:
        """What a host gave after its test; None where it is silent. Raises GpuBurninError."""
        return self._read(Answer, f"answers/{host}")

    def _write(self, name: str, content: bytes) -> None:
        write_atomic(self.path / name, content, mode=0o600)

    def _read(self, kind: type[_T], name: str) -> _T | None:
        path = self.path / name
        try:
            return from_json(kind, parse_json(read_bytes(path, _MOST_BYTES)))
        except FileNotFoundError:
            return None
        except (OSError, Misfit, ValueError) as error:
            raise self._damaged(name, error) from error

    def _damaged(self, name: str, error: Exception) -> GpuBurninError:
        return GpuBurninError(
            f"{self.path / name} cannot be read ({error}); remove {self.path}: its round is run again"
        )


def _fit(text: str) -> str:
    """What a host says, so that it can be shown and written anywhere."""
    return printable(text[:_MOST_SENTENCE])


def _in_boot(member: Member, presence: Presence | None) -> Member:
    return replace(member, boot_id=presence.boot_id if presence is not None else UNKNOWN_BOOT)
