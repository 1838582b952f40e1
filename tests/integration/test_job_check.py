"""The check `verified` on real Kueue, with the admitter as a process: it holds a job, lets it go, sends it back.

Only here: that Kueue waits for the word, takes it, and gives other nodes after a Retry.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.types import Verdict
from tests.integration.admitter_fleet import Machine, Process, admitters, make_machines
from tests.integration.checked_team import TEAM, check_state, job_of, join_team, team_objects
from tests.integration.gate import numbers
from tests.integration.jobs_stack import Jobs
from tests.integration.kube import until

NODES = 3
_SETTINGS = {"joins_per_s": 1000, "max_unready_share": 1.0, "tests": {"nodes": 0}}


@pytest.fixture(scope="module")
def admitter(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One admitter, and a queue with its check, which it makes active."""
    settings = {**_SETTINGS, "jobs": {"queues": {TEAM: {"level": "quick"}}}}
    with admitters(jobs.server, tmp_path_factory.mktemp("admitter"), ["api-1"], **settings) as (process,):
        for item in team_objects(NODES):
            jobs.apply(item)
        jobs.queues_answer(TEAM)
        yield process


@pytest.fixture
def machines(jobs: Jobs, admitter: Process, tmp_path: Path) -> Iterator[list[Machine]]:
    """Three nodes of 8 GPUs that it has let in; the admitter has ended then."""
    made = make_machines(jobs.server, tmp_path, f"checked-{next(numbers)}", NODES)
    for machine in made:
        join_team(machine)
        machine.publish()
    if admitter.running is None or admitter.running.poll() is not None:
        admitter.start()
    until("the admissions", lambda: all((machine.report(), machine.open())[1] for machine in made))
    admitter.signal(signal.SIGTERM)
    assert admitter.running is not None
    admitter.running.wait()
    yield made
    for machine in made:
        jobs.root.request("DELETE", f"/api/v1/nodes/{machine.name}")


def test_a_job_waits_for_the_admitter_and_for_a_node_in_doubt(
    jobs: Jobs, admitter: Process, machines: list[Machine]
) -> None:
    jobs.apply(job_of("waits", NODES))
    until("the choice of nodes", lambda: len(check_state(jobs)["nodes"]) == NODES, 30)
    assert check_state(jobs)["state"] == "Pending" and jobs.bound(TEAM) == {}, "nobody has judged"
    doubted = machines[1]
    doubted.publish(Verdict.INCONCLUSIVE)
    admitter.start()
    until("the word", lambda: f"waits for {doubted.name}: suspect" in check_state(jobs)["message"], 60)
    assert check_state(jobs)["state"] == "Pending" and jobs.bound(TEAM) == {}, "one node is in doubt"
    admitter.kill()
    doubted.publish()
    admitter.start()
    assert check_state(jobs)["state"] == "Pending" and jobs.bound(TEAM) == {}, "nobody leads"
    until("the start", lambda: len(set(jobs.bound(TEAM).values())) == NODES, 60)
    assert check_state(jobs)["state"] == "Ready"
    jobs.end_job(TEAM, "waits")


def test_other_nodes_are_chosen_when_one_does_not_heal_in_time(
    jobs: Jobs, admitter: Process, machines: list[Machine]
) -> None:
    jobs.apply(job_of("moves", NODES - 1))
    until("the choice of nodes", lambda: len(check_state(jobs)["nodes"]) == NODES - 1, 30)
    bad = next(machine for machine in machines if machine.name == check_state(jobs)["nodes"][0])
    bad.publish(Verdict.INCONCLUSIVE)
    admitter.config.write_text(yaml.safe_dump(yaml.safe_load(admitter.config.read_text()) | _impatient()))
    admitter.start()
    until("the start", lambda: len(set(jobs.bound(TEAM).values())) == NODES - 1, 60)
    assert bad.name not in jobs.bound(TEAM).values()
    (workload,) = jobs.workloads(TEAM)
    stats = [one["reason"] for one in workload["status"]["schedulingStats"]["evictions"]]
    assert stats == ["AdmissionCheck"]
    said = [line["message"] for line in admitter.lines() if "Retry" in line["message"]]
    assert len(said) == 1 and f"because of {bad.name}: suspect" in said[0], said
    events = jobs.items(f"/api/v1/namespaces/{TEAM}/events")
    about = [one["involvedObject"] for one in events if one["reason"] == "MusterRetry"]
    name = workload["metadata"]["name"]
    assert [one["kind"] for one in about if one["name"] == name] == ["Workload"]
    jobs.end_job(TEAM, "moves")


def _impatient() -> dict[str, Any]:
    return {"jobs": {"queues": {TEAM: {"level": "quick"}}, "wait_s": 10}}
