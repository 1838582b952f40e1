"""The admitter on a real API server: it admits, revokes, is killed, is paused, and loses the API server.

Only here: every version of every node is seen while admitters, API server and etcd die; a paused leader writes nothing.
"""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.types import Verdict
from tests.integration.admitter_fleet import (
    Machine,
    Person,
    Process,
    Witness,
    admitters,
    leader,
    make_machines,
)
from tests.integration.gate import numbers
from tests.integration.kube import Client, Server, until

# In `make test` one of each kind, and twice the leader alone; in `make soak` as many as find what is rare.
FEW_KILLS, MANY_KILLS = 4, 20
# The tests are of the admitter's safety, not of its pace.
PACE = {"joins_per_s": 1000, "max_unready_share": 1.0, "workers": 4}


@pytest.fixture(scope="module")
def boss(own: Server) -> Client:
    return own.client("root", ["system:masters"])


@pytest.fixture(scope="module")
def person(own: Server) -> Person:
    return Person(own.client("admin", ["muster:admins"]), "admin")


@pytest.fixture(scope="class")
def alone(own: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One admitter, which leads."""
    with admitters(own, tmp_path_factory.mktemp("alone"), ["api-1"], **PACE) as (process,):
        yield process


@pytest.fixture
def one(own: Server, alone: Process, tmp_path: Path) -> tuple[Process, Machine]:
    """It, and one node, which it has let in."""
    machine = make_machines(own, tmp_path, f"one-{next(numbers)}", 1)[0]
    machine.publish()
    until("the admission", lambda: (machine.report(), machine.open())[1])
    return alone, machine


def _is_held_throughout(machine: Machine, person: Person) -> bool:
    """Whether the admitter has written all of a hold: the ledger, the Node, and its condition at last."""
    status = person.record(machine)["status"]
    (verified,) = [one for one in machine.node()["status"]["conditions"] if one["type"] == "GPUVerified"]
    return bool(status["state"] == "held" and verified["reason"] == status["code"])


class TestOneNode:
    def test_a_fail_takes_it_out_and_a_pass_lets_it_in(self, one: tuple[Process, Machine], person: Person) -> None:
        _, machine = one
        began = time.monotonic()
        machine.publish(Verdict.FAIL)
        until("the revocation", lambda: not machine.open())
        print(f"revoked {time.monotonic() - began:.2f} s after the FAIL")
        until("the state", lambda: person.record(machine)["status"]["state"] == "quarantined")
        machine.publish()
        until("the admission", machine.open)
        assert person.record(machine)["status"]["accepted"]["sequence"] == machine.sequence

    def test_a_short_reboot_shuts_it_before_kubelet_may_tell(self, one: tuple[Process, Machine]) -> None:
        _, machine = one
        machine.boot = "another"
        assert not machine.report()
        machine.reboot()
        until("the taint", lambda: not machine.open())
        until("kubelet's status", machine.report)
        assert not machine.open()
        machine.publish()
        until("the admission", machine.open)

    def test_a_hold_keeps_it_from_work_until_it_is_taken_back(
        self, one: tuple[Process, Machine], person: Person
    ) -> None:
        _, machine = one
        person.hold(machine)
        until("the hold", lambda: not machine.open())
        machine.publish()
        until("the look", lambda: person.record(machine)["status"]["highestSequence"] == machine.sequence)
        assert not machine.open() and person.record(machine)["status"]["state"] == "held"
        person.release(machine)
        until("the admission", machine.open)

    def test_a_paused_leader_writes_nothing_when_it_wakes(
        self, one: tuple[Process, Machine], own: Server, boss: Client, person: Person, tmp_path: Path
    ) -> None:
        """Last of these: it leads no more."""
        first, machine = one
        before = leader(boss)
        with admitters(own, tmp_path, ["api-2"], **PACE) as (second,):
            until("the second's start", lambda: second.lines() != [])
            machine.publish(Verdict.INCONCLUSIVE)
            first.signal(signal.SIGSTOP)
            began = time.monotonic()
            until("the takeover", lambda: leader(boss) not in ("", before))
            print(f"takeover from a paused leader: {time.monotonic() - began:.1f} s (15 s or less is wanted)")
            person.hold(machine)
            until("the hold, to the last write", lambda: _is_held_throughout(machine, person))
            versions = machine.node()["metadata"]["resourceVersion"], person.record(machine)["metadata"]
            told = len(first.lines())
            first.signal(signal.SIGCONT)
            until("its own word", lambda: any("leads no more" in str(line) for line in first.lines()[told:]))
            assert (machine.node()["metadata"]["resourceVersion"], person.record(machine)["metadata"]) == versions
            assert leader(boss).startswith("api-2")
        person.release(machine)


_ACTIONS = ("pass",) * 6 + ("fail", "inconclusive", "reboot", "hold", "release", "release")


class _Driver:
    """Nodes and people that go on, whatever becomes of the control plane."""

    def __init__(self, machines: list[Machine], person: Person, seed: int) -> None:
        self.machines, self.person, self.random = machines, person, random.Random(seed)
        self.turn = itertools.cycle(machines)
        self.held: set[str] = set()
        self.passed: dict[str, bool] = {}
        self.actions = 0
        self.stopped = threading.Event()
        self.errors: list[BaseException] = []
        self.thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        try:
            while not self.stopped.wait(self.random.uniform(0.02, 0.3)):
                self._act(self.random.choice(self.machines))
                self.actions += 1
        except BaseException as error:
            self.errors.append(error)

    def _act(self, machine: Machine) -> None:
        what = self.random.choice(_ACTIONS)
        if what == "hold":
            self.person.hold(machine)
            self.held.add(machine.name)
        elif what == "release":
            self.person.release(machine)
            self.held.discard(machine.name)
        elif what == "reboot":
            machine.reboot()
            self.passed[machine.name] = False
        else:
            verdict = {"pass": Verdict.PASS, "fail": Verdict.FAIL, "inconclusive": Verdict.INCONCLUSIVE}[what]
            machine.publish(verdict)
            self.passed[machine.name] = verdict is Verdict.PASS
        _report(machine)
        # Kubelets report in turn, as they do each few seconds.
        _report(next(self.turn))


def _report(machine: Machine) -> bool:
    try:
        return machine.report()
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("kills", [FEW_KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.soak)])
def test_kills_at_random_points_admit_nothing_false_and_lose_no_hold(
    own: Server, boss: Client, person: Person, tmp_path: Path, kills: int
) -> None:
    """The leader is killed so often, API server and etcd once each with it; nodes and people go on meanwhile."""
    chance = random.Random(13)
    with_it = {kills // 4: own.apiserver, kills * 3 // 5: own.etcd}
    machines = make_machines(own, tmp_path, f"kill-{kills}", 12)
    witness, driver = Witness(boss), _Driver(machines, person, 7)
    takeovers: list[float] = []
    with admitters(own, tmp_path, ["api-1", "api-2"], **PACE) as processes, witness.watching():
        until("a leader", lambda: leader(boss) != "")
        driver.thread.start()
        for number in range(kills):
            time.sleep(chance.uniform(0.0, 3.0))
            until("a leader", lambda: leader(boss) != "")
            holder = leader(boss)
            victim = next(process for process in processes if holder.startswith(f"{process.identity}_"))
            if part := with_it.get(number):
                # The control plane goes with it, and comes back: the Lease's time is no measure then.
                victim.kill()
                part.kill()
                time.sleep(chance.uniform(0.5, 3.0))
                part.start()
                own.wait_ready()
                until("the takeover", lambda: leader(boss) not in ("", holder), 120)  # noqa: B023
            else:
                victim.kill()
                began = time.monotonic()
                until("the takeover", lambda: leader(boss) not in ("", holder))  # noqa: B023
                takeovers.append(time.monotonic() - began)
            victim.start()
        driver.stopped.set()
        driver.thread.join(60)
        assert not driver.errors, driver.errors
        for machine in machines:
            until("kubelet's status", lambda: _report(machine))  # noqa: B023
        wanted = {m.name: driver.passed.get(m.name, False) and m.name not in driver.held for m in machines}
        until("what the nodes and people said last", lambda: {m.name: m.open() for m in machines} == wanted)
    print(
        f"{kills} kills, {driver.actions} actions, {witness.seen} versions, {witness.openings} openings, "
        f"{witness.gaps} gaps: "
        f"{len(witness.false_admits)} false admits, {len(witness.lost_holds)} lost holds; takeover "
        f"{min(takeovers):.1f} to {max(takeovers):.1f} s (15 s or less is wanted)"
    )
    assert witness.openings > 0 and (witness.false_admits, witness.lost_holds) == ([], [])
    faults = [line for process in processes for line in process.lines() if "fault of muster" in str(line)]
    assert not faults
