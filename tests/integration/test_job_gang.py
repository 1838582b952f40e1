"""`gang_test` on real Kueue: nodes of a job are tested with each other before it starts, by agents as processes.

Only here: that Kueue keeps nodes for a job while they are tainted for such a test, and gives others when it fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from gpu_burnin.cli.muster import main as muster
from gpu_burnin.system.clock import rfc3339_s
from tests.integration.admitter_fleet import Machine, Person, Process, admitters
from tests.integration.checked_team import TEAM, check_state, job_of, join_team, team_objects
from tests.integration.fabric_agents import SETTINGS, agent, fabric_machine, proof
from tests.integration.jobs_stack import Jobs
from tests.integration.kube import MERGE_PATCH, until
from tests.integration.ledger import LEDGER

# Beside the stack that it shares it costs as much as all tests of a job's check: 10 to 14 CPU s.
pytestmark = pytest.mark.soak
# An answer is written again after 15 s at the earliest, and a pair takes 10 to 20 s where others need the processor.
WAIT_S = 90
# No places for standing tests: whoever is tested here, a job waits for.
_SETTINGS: dict[str, Any] = {
    **SETTINGS,
    "tests": {"nodes": 0},
    "fabric": {"seconds": 0.5, "size_mib": 1},
    "jobs": {"queues": {TEAM: {"level": "quick", "gang_test": True}}, "wait_s": WAIT_S},
}


@dataclass
class Gang:
    """Two nodes of a team, with agents, and all that there are."""

    jobs: Jobs
    admitter: Process
    folder: Path
    first: Machine
    second: Machine

    def bring(self, machine: Machine) -> None:
        """Have a node be one of the team's."""
        join_team(machine)
        until(f"{machine.name} is let in", machine.open, 60)

    def proof(self, machine: Machine) -> dict[str, Any]:
        """What tests with others have found of it."""
        return proof(Person(self.jobs.root, "break-glass"), machine)

    def passed(self, machine: Machine, ago: timedelta) -> None:
        """Have its passes with others be so old."""
        at = rfc3339_s(datetime.now(UTC) - ago)
        shown = {"bootID": machine.boot, "run": "r", "outcome": "passed", "passes": 2, "testedAt": at}
        path, body = f"{LEDGER}/{machine.name}/status", {"status": {"fabric": shown}}
        reply = self.jobs.admitter.request("PATCH", path, body, MERGE_PATCH)
        assert reply.status == 200, reply.message

    def waits(self, words: str) -> list[str]:
        """The nodes of the one job, once its check is Pending for this."""
        found: dict[str, Any] = {}

        def is_said() -> bool:
            found.update(check_state(self.jobs))
            return words in found["message"]

        until(f"the word {words!r}", is_said, WAIT_S)
        assert found["state"] == "Pending", found
        return list(found["nodes"])

    def starts(self, nodes: int) -> set[str]:
        """The nodes that the one job starts on."""
        until("the start", lambda: len(set(self.jobs.bound(TEAM).values())) == nodes, WAIT_S + 90)
        assert check_state(self.jobs)["state"] == "Ready"
        return set(self.jobs.bound(TEAM).values())

    def why(self, job: str) -> str:
        """What `muster why` says of a job that waits."""
        kubeconfig = self.jobs.server.kubeconfig("break-glass", ["system:masters"])
        done = CliRunner().invoke(muster.cli, ["why", f"{TEAM}/{job}", "--json", "--kubeconfig", str(kubeconfig)])
        assert done.exit_code == 0, f"{done.output} {done.exception}"
        return str(json.loads(done.stdout)["waits"]["sentence"])


@pytest.fixture(scope="module")
def gang(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    """A team with `gang_test`, and its two nodes."""
    folder = tmp_path_factory.mktemp("gang")
    for item in team_objects(4):
        jobs.apply(item)
    with ExitStack() as stack:
        (admitter,) = stack.enter_context(admitters(jobs.server, folder, ["api-1"], **_SETTINGS))
        jobs.queues_answer(TEAM)
        first, second = (stack.enter_context(agent(jobs.server, folder, number)) for number in (1, 2))
        made = Gang(jobs, admitter, folder, first, second)
        made.bring(first)
        made.bring(second)
        yield made


def test_nodes_of_a_job_are_tested_with_each_other_before_it_starts_and_one_node_alone_is_not(gang: Gang) -> None:
    gang.jobs.apply(job_of("one", 1))
    gang.starts(1)
    assert gang.proof(gang.first) == gang.proof(gang.second) == {}
    gang.jobs.end_job(TEAM, "one")
    gang.jobs.apply(job_of("pair", 2))
    gang.waits("it has passed no test with another node in this boot")
    assert gang.starts(2) == {gang.first.name, gang.second.name}
    for one, other in ((gang.first, gang.second), (gang.second, gang.first)):
        assert (gang.proof(one)["outcome"], gang.proof(one)["partners"]) == ("passed", [other.name])
    gang.jobs.end_job(TEAM, "pair")


def test_a_node_with_an_old_pass_is_tested_with_one_of_its_job_that_has_a_fresh_one(gang: Gang) -> None:
    gang.passed(gang.first, timedelta(hours=2))
    gang.passed(gang.second, timedelta(minutes=2))
    gang.jobs.apply(job_of("again", 2))
    gang.waits(f"waits for {gang.first.name}: its last pass with another node is 2 h old, 1 h at most is asked")
    gang.starts(2)
    assert gang.proof(gang.first)["partners"] == [gang.second.name]
    gang.jobs.end_job(TEAM, "again")


def test_nodes_that_fail_together_do_not_get_the_job_and_others_do(gang: Gang) -> None:
    (gang.folder / gang.second.name / "fault").write_text("wrong_byte")
    for machine in (gang.first, gang.second):
        gang.passed(machine, timedelta(hours=2))
    gang.jobs.apply(job_of("bad", 2))
    until("the choice of nodes", lambda: len(check_state(gang.jobs)["nodes"]) == 2, 30)
    # Others come while it waits: they passed lately.
    others = [fabric_machine(gang.jobs.server, gang.folder, number) for number in (3, 4)]
    for machine in others:
        gang.passed(machine, timedelta(minutes=2))
        gang.bring(machine)
    words = (
        "suspect (FABRIC_SUSPECT): a test with another node failed: one of these, not told apart: node pair-1, node "
    )
    assert set(gang.waits(words)) == {gang.first.name, gang.second.name}
    assert gang.jobs.bound(TEAM) == {}
    assert words in gang.why("bad")
    assert gang.starts(2) == {machine.name for machine in others}
    (workload,) = gang.jobs.workloads(TEAM)
    assert [one["reason"] for one in workload["status"]["schedulingStats"]["evictions"]] == ["AdmissionCheck"]
    retries = [line["message"] for line in gang.admitter.lines() if ": Retry: " in line["message"]]
    assert len(retries) == 1 and words in retries[0], retries
    gang.jobs.end_job(TEAM, "bad")
