"""Tests between nodes without a controller, on a real API server: agents and an admitter as processes, on loopback.

Only here: offer, views and requests go through Nodes and the gate's policies, with each writer's own credential.
"""

from __future__ import annotations

import os
import resource
from pathlib import Path

from tests.integration.admitter_fleet import NAMES, Machine, Person, Process, admitters
from tests.integration.fabric_agents import SETTINGS, agent, marks, proof
from tests.integration.kube import Server, until


def killed_in_a_test(admitter: Process, machine: Machine) -> bool:
    """Kill it where a test of this node is under way; whether it still was when nobody could end it any more."""

    def under_way() -> bool:
        return NAMES.fabric_test in machine.node()["metadata"]["annotations"]

    if not under_way():
        return False
    admitter.kill()
    if under_way():
        return True
    admitter.start()
    return False


def test_pairs_pass_and_a_wrong_byte_is_named_by_proven_partners(own_of_test: Server, tmp_path: Path) -> None:
    person = Person(own_of_test.client("admin", ["muster:admins"]), "admin")
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    with (
        admitters(own_of_test, tmp_path, ["api-1"], **SETTINGS) as (admitter,),
        agent(own_of_test, tmp_path, 1) as first,
        agent(own_of_test, tmp_path, 2) as second,
    ):
        for machine in (first, second):
            until(f"{machine.name} is proven", lambda: proof(person, machine).get("passes", 0) >= 2)  # noqa: B023
            assert proof(person, machine)["outcome"] == "passed"
        with agent(own_of_test, tmp_path, 3, "wrong_byte") as third:
            # Whoever leads next goes on with it.
            until("it is killed in a test", lambda: killed_in_a_test(admitter, third))
            admitter.start()
            until("it is named", lambda: proof(person, third).get("outcome") == "named")
            until("it is out", lambda: person.record(third)["status"]["code"] == "FABRIC_NODE" and not third.open())
            found = person.record(third)["status"]
            assert found["state"] == "quarantined", found
            assert (found["fabric"]["failures"], set(found["fabric"]["partners"])) == (3, {first.name, second.name})
            assert "node pair-3: wrong data; or " in found["fabric"]["claim"], found["fabric"]
            for machine in (first, second):
                assert proof(person, machine)["outcome"] == "passed"
                assert "failures" not in proof(person, machine) or proof(person, machine)["failures"] == 0
            machines = (first, second, third)
            until("nothing of the tests is left", lambda: [marks(one) for one in machines] == [[], [], []])
            assert first.open() and second.open()
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime:.1f} CPU s, {os.cpu_count()} cores")


def test_a_node_is_let_in_after_a_pass_with_another_one(own_of_test: Server, tmp_path: Path) -> None:
    """Closed nodes are tested by the same way: nothing but the gate's taint is on them before."""
    person = Person(own_of_test.client("admin", ["muster:admins"]), "admin")
    rules = {**SETTINGS["fabric"], "every_s": 0, "admission": "required", "wait_s": 5, "alone": "hold"}

    def code(machine: Machine) -> str:
        return str((person.record(machine).get("status") or {}).get("code"))

    with (
        admitters(own_of_test, tmp_path, ["api-1"], **{**SETTINGS, "fabric": rules}) as (admitter,),
        agent(own_of_test, tmp_path, 5) as first,
    ):
        until("it waits", lambda: code(first) == "FABRIC_WAITS")
        # The time runs from the moment in the ledger.
        admitter.kill()
        admitter.start()
        until("its time is over", lambda: code(first) == "FABRIC_ALONE")
        assert not first.open() and "it is let in after such a test" in person.record(first)["status"]["message"]
        with agent(own_of_test, tmp_path, 6) as second:
            for machine in (first, second):
                until(f"{machine.name} is let in", machine.open)
                assert proof(person, machine)["outcome"] == "passed" and code(machine) == "PASS"
