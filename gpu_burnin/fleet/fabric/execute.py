"""Carries out a round by Ansible: its members meet by what rank 0 offers, and each gives its signed view.

What is sent to nodes and read from them is muster.fleet.fabric_test's. Here is which hosts, until when, and what is
made of it. Members that cannot take part make a test inconclusive; those that fall silent are a finding.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from gpu_burnin.api.rendezvous import FabricTest, Member
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fabric.model import Fabric, Kind, Outcome, Result, Round, Settings, Test
from gpu_burnin.fleet.fabric.folder import UNKNOWN_BOOT, Number, Presence, RoundFolder
from gpu_burnin.fleet.waves import leftovers, temporary
from gpu_burnin.fleet.waves.model import Part
from gpu_burnin.fleet.waves.names import FOLDER_VARIABLE, OUTCOMES
from gpu_burnin.fleet.waves.worker import Job, Killed, last_words, play
from gpu_burnin.system.files import parse_json, read_text, write_atomic
from gpu_burnin.system.prose import listed

PLAYBOOK = Path("playbooks/fabric.yml")
# What a task costs the controller for each host, on two cores; a round has four of them.
_HOST_TASK_S = 0.3
_SWEEPS = 4
# For members to meet where all are begun at once, and the longest that a rendezvous may be joined.
_MEET_S, _MOST_MEET_S = 60.0, 3600.0
# Beside `seconds`: four stalls of 10 s that a member may wait for, and two seconds, and its start.
_BESIDE_S = 60.0
# Two minutes until a host that hangs is given up, for each of a few that hang one after the other; and Ansible's start.
_SILENCE_S = 300.0
_MOST_OUTCOMES_BYTES = 64 << 20
# By which the network of the controller is told from nodes that are off.
_WITNESSES = 16
# A node's own limit of a test is a minute longer than the controller waits for it (module_utils/host/fabric_test.py).
_NODE_LIMIT_S = 60.0
_VARIABLES, _WAIT_S = "variables.json", "fabric_wait_s"


class Keeper(Protocol):
    """Keeps nodes from work while they are tested."""

    def take(self, nodes: Sequence[str], for_s: float) -> Mapping[str, str]:
        """Keep new work from nodes for so long, whatever becomes of this process; those that cannot be had, and why."""
        ...

    def release(self, later: Mapping[str, float]) -> None:
        """Give all of them back; these in so many seconds."""
        ...


class Verify(Protocol):
    """Makes a result of what the members of a test signed, and a sentence of each that found a fault: verify.py.

    `offer` with the time at which it came; `boots` as they were after the test.
    """

    def __call__(
        self,
        test: FabricTest,
        offer: tuple[bytes, datetime],
        views: Mapping[str, bytes],
        keys: Mapping[str, str],
        boots: Mapping[str, str],
    ) -> tuple[Result, Sequence[str]]: ...


class Play(Protocol):
    """Runs ansible-playbook on hosts: waves.worker.play. Raises Killed."""

    def __call__(self, folder: Path, job: Job, hosts: Sequence[str]) -> tuple[int, Mapping[str, object]]: ...


@dataclass(frozen=True)
class Times:
    """How long a round may take, in seconds: to meet, for one test, and in all until Ansible is ended."""

    valid_s: float
    test_s: float
    round_s: float


def times(made: Round, settings: Settings) -> Times:
    """From the number of members, since Ansible begins them one after the other."""
    members = sum(len(test.members) for test in made.tests)
    sweep_s = _HOST_TASK_S * members
    valid_s = min(_MEET_S + 2 * sweep_s, _MOST_MEET_S)
    test_s = max((seconds(test, settings) for test in made.tests), default=0.0) + _BESIDE_S
    return Times(valid_s, test_s, _SWEEPS * sweep_s + valid_s + test_s + _SILENCE_S)


def seconds(test: Test, settings: Settings) -> float:
    """How long the members of a test work."""
    return settings.pair_s if test.kind in (Kind.PAIR, Kind.RAIL) else settings.group_s


@dataclass
class Executor:
    """Runs the rounds of one run. `say` shows a line; `rounds` has a folder for each round."""

    run_id: str
    fabric: Fabric
    settings: Settings
    keys: Mapping[str, str]
    inventory: Sequence[str]
    rounds: Path
    keep: Keeper
    verify: Verify
    say: Callable[[str], None]
    playbook: Path = PLAYBOOK
    play: Play = play

    def __call__(self, made: Round) -> tuple[Result, ...]:
        """Run a round, unless it was run and not yet taken in. Raises GpuBurninError where no node answers."""
        limits, folder = times(made, self.settings), self._folder(made.number)
        found = folder.number()
        if found is None or found.run != self.run_id or not folder.played:
            _end_leftovers(folder)
            members = [name for test in made.tests for name in test.members]
            absent = self.keep.take(members, limits.round_s)
            found = Number(self.run_id, made.number, absent)
            tests = [self._planned(test, limits.valid_s) for test in made.tests if not set(test.members) & set(absent)]
            hosts = [name for test in tests for name in test.names]
            folder.begin(found, tests, self.keys, hosts)
            if hosts:
                self._play(folder, hosts, limits)
                if not any(folder.presence(host) for host in hosts):
                    self._refuse_silence(made, hosts, _silence(folder, hosts[0]))
            folder.end()
        else:
            self.say(f"round {made.number} was run by a call that has ended; its results are taken in")
        results = tuple(self._result(folder, test, found.absent) for test in made.tests)
        for result in results:
            for member, why in result.refused.items():
                self.say(f"test {result.test}: the view of {member} is not taken: {why}")
        return results

    def ready(self, names: Sequence[str]) -> dict[str, str]:
        """Which nodes cannot be tested now, and why. Raises GpuBurninError."""
        folder = self._look(names)
        found = {}
        for name in names:
            presence = folder.presence(name)
            why = _silence(folder, name) if presence is None else presence.hindrance
            if why:
                found[name] = why
        return found

    def end_tests(self) -> dict[str, float]:
        """End what may still run of any round. Hosts of which nobody knows, and for how many seconds it may go on."""
        try:
            running = self._running_on()
        except (OSError, GpuBurninError) as error:
            self.say(f"{error}; so any node may be tested still")
            longest_s = _MOST_MEET_S + max(self.settings.pair_s, self.settings.group_s) + _BESIDE_S + _NODE_LIMIT_S
            running = {node.name: longest_s for node in self.fabric.nodes}
        if not running:
            return {}
        self.say(f"tests that may still run on {listed(list(running))} are ended")
        try:
            found = self._look(list(running))
            return {name: left_s for name, left_s in running.items() if not _is_ended(found.presence(name))}
        except (OSError, GpuBurninError) as error:
            self.say(str(error))
            return running

    def _running_on(self) -> dict[str, float]:
        """Hosts on which a test of a round may run, and for how many seconds. Raises GpuBurninError and OSError.

        A host that was silent may test on while further rounds are played, until one meets it again.
        """
        running, ended = dict[str, float](), set[str]()
        for folder in sorted(self._begun(), key=lambda one: one.path, reverse=True):
            if folder.played_s is None:
                # The forks of an Ansible that was killed go on.
                _end_leftovers(folder)
            left_s = _waited_s(folder) + _NODE_LIMIT_S
            if folder.played_s is not None and folder.played_s + left_s <= time.time():
                continue
            for name in folder.hosts():
                answer = folder.answer(name)
                if name in ended:
                    continue
                if answer is None or answer.runs:
                    running[name] = max(left_s, running.get(name, 0.0))
                if (answer is not None and not answer.runs) or _is_ended(folder.presence(name)):
                    ended.add(name)
        return running

    def _look(self, names: Sequence[str]) -> RoundFolder:
        """Who answers and works; a test on it is ended."""
        folder = self._folder(0)
        _end_leftovers(folder)
        folder.begin(Number(self.run_id, 0), (), {}, names)
        self._play(folder, names, Times(0.0, 0.0, _HOST_TASK_S * len(names) + _SILENCE_S), "--tags", "look")
        return folder

    def _refuse_silence(self, made: Round, hosts: Sequence[str], why: str) -> None:
        """Raise GpuBurninError for a round in which nobody answers, unless other nodes do: then it is these nodes."""
        others = [node.name for node in self.fabric.nodes if node.name not in hosts][:_WITNESSES]
        if others:
            found = self._look(others)
            if any(found.presence(name) for name in others):
                self.say(f"no node of round {made.number} answers, and others do: its tests are inconclusive")
                return
        raise GpuBurninError(
            f"no node of round {made.number} answers ({why}); look at the network of the controller and at the nodes, "
            "then call this again: it goes on with this round; where they stay off, begin a run without them: --again"
        )

    def _begun(self) -> Iterator[RoundFolder]:
        """The folders of this run's rounds."""
        for path in self.rounds.glob("round-*"):
            folder = RoundFolder(path)
            number = folder.number()
            if number is not None and number.run == self.run_id and number.round:
                yield folder

    def _folder(self, number: int) -> RoundFolder:
        return RoundFolder(self.rounds / f"round-{number:04}")

    def _planned(self, test: Test, valid_s: float) -> FabricTest:
        members = [self.fabric.by_name[name] for name in test.members]
        return FabricTest(
            run=self.run_id,
            test=test.id,
            kind=test.kind,
            rails=test.rails,
            members=tuple(Member(node.name, UNKNOWN_BOOT, node.nics) for node in members),
            seconds=seconds(test, self.settings),
            size_bytes=self.settings.size_bytes,
            seed=(uuid.UUID(self.run_id).int + test.id) % (1 << 62),
            valid_s=valid_s,
        )

    def _play(self, folder: RoundFolder, hosts: Sequence[str], limits: Times, *arguments: str) -> None:
        variables = {
            "fabric_round_dir": str(folder.path),
            _WAIT_S: round(limits.valid_s + limits.test_s),
        }
        write_atomic(folder.path / _VARIABLES, json.dumps(variables).encode())
        job = Job(
            "fabric",
            Part.NODES,
            str(self.playbook.absolute()),
            (*(str(Path(source).absolute()) for source in self.inventory), str(folder.inventory)),
            ("-e", f"@{folder.path / _VARIABLES}", *arguments),
            str(Path.cwd()),
            timeout_s=round(limits.round_s),
        )
        try:
            rc, _ = self.play(folder.path, job, hosts)
        except Killed as error:
            raise GpuBurninError(f"{error}; call this again: it goes on with this round") from error
        except OSError as error:
            raise GpuBurninError(f"{error.filename or folder.path} cannot be written ({error.strerror})") from error
        _end_leftovers(folder)
        # Hosts that fail or are silent are what is looked for; that nothing ran is another matter.
        if rc != 0 and not any((folder.path / "present").iterdir()) and not _outcomes(folder):
            raise GpuBurninError(f"{self.playbook} did not run: {last_words(folder.path, rc)}")

    def _result(self, folder: RoundFolder, test: Test, lost: Mapping[str, str]) -> Result:
        absent = {**dict(_absent(folder, test)), **{name: lost[name] for name in test.members if name in lost}}
        if absent:
            return Result(test.id, (), absent=absent)
        offer, agreed = folder.offer(test.id), folder.agreed(test.id)
        if offer is None or agreed is None:
            return Result(test.id, ())
        answers = {name: found for name in test.members if (found := folder.answer(name)) is not None}
        result, details = self.verify(
            agreed,
            offer,
            {name: answer.view.encode() for name, answer in answers.items() if answer.view},
            {name: self.keys[name] for name in test.members},
            {name: answer.boot_id for name, answer in answers.items()},
        )
        for detail in details:
            self.say(f"test {test.id}: {detail}")
        return result


def _end_leftovers(folder: RoundFolder) -> None:
    """The forks of an Ansible that was killed go on with their tasks, on these hosts."""
    leftovers.end(FOLDER_VARIABLE, str(folder.path))
    temporary.clear(folder.path)


def _is_ended(presence: Presence | None) -> bool:
    """Whether a host has ended what ran there before: one whose part failed has said nothing of itself."""
    return presence is not None and presence.boot_id != UNKNOWN_BOOT and not presence.runs


def _waited_s(folder: RoundFolder) -> float:
    """How long the controller waits for the tests of a round."""
    try:
        return float(parse_json(read_text(folder.path / _VARIABLES))[_WAIT_S])
    except FileNotFoundError:
        # Nothing was begun.
        return 0.0
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise GpuBurninError(
            f"{folder.path / _VARIABLES} cannot be read ({error}); wait for the holds to end"
        ) from error


def _outcomes(folder: RoundFolder) -> Mapping[str, Mapping[str, object]]:
    """What the callback kept of each host."""
    try:
        kept = parse_json(read_text(folder.path / OUTCOMES, _MOST_OUTCOMES_BYTES))
    except (OSError, ValueError):
        return {}
    hosts = kept.get("hosts") if isinstance(kept, Mapping) else None
    return hosts if isinstance(hosts, Mapping) else {}


def _silence(folder: RoundFolder, host: str) -> str:
    found = _outcomes(folder).get(host) or {}
    why = found.get("unreachable") or found.get("failed")
    return f"it does not answer: {why}" if why else "it does not answer"


def _absent(folder: RoundFolder, test: Test) -> Iterator[tuple[str, str]]:
    for name in test.members:
        presence, answer = folder.presence(name), folder.answer(name)
        if presence is not None and presence.hindrance:
            yield name, presence.hindrance
        # Of one that was booted anew the unit is gone with its files: that is told by its boot.
        elif presence is not None and answer is not None and answer.boot_id == presence.boot_id and answer.hindrance:
            yield name, answer.hindrance


def result_of(
    test: FabricTest,
    offer: tuple[bytes, datetime],
    views: Mapping[str, bytes],
    keys: Mapping[str, str],
    boots: Mapping[str, str],
) -> tuple[Result, Sequence[str]]:
    """A test's result by the signatures of its members. An offer that does not hold leaves it without a view."""
    from gpu_burnin.admission.sshsig import signature_holds
    from gpu_burnin.api.fabric_documents import RendezvousError
    from gpu_burnin.fabric import verify

    try:
        offered = verify.offered(offer[0], test, keys, offer[1], signature_holds)
    except RendezvousError as error:
        return Result(test.test, (), refused={test.names[0]: str(error)}), ()
    verified = verify.result_of(offered, views, keys, boots, signature_holds)
    details = [f"{view.member}: {view.detail or view.outcome}" for view in verified.found if view.outcome != Outcome.OK]
    return replace(verified.result, refused={one.member: one.why for one in verified.refused}), details
