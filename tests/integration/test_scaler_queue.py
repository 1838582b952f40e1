"""A gang that waits for machines on real Kueue, with admitter and scaler as processes: on, admitted, run, idle, off.

Only here: both checks in one queue, and in which order Kueue takes them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.names import CHECK
from gpu_burnin.scaler.requests import API
from tests.integration.gate import numbers
from tests.integration.jobs_stack import Jobs
from tests.integration.kube import MERGE_PATCH, until
from tests.integration.scaler_queue import POWERED, Machines, gang, queues_open
from tests.integration.scaler_site import MODEL, scaler
from tests.support.admitter_helpers import settled

# DEEP asks for a proof that no node has, OLD had no machines that are switched.
TEAM, DEEP, OLD = "scaled", "deep", "old"


@pytest.fixture(scope="module")
def cloud(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    made = Machines(jobs.server, tmp_path_factory.mktemp("cloud"))
    with queues_open(jobs, made, {TEAM: "quick", DEEP: "extended", OLD: "quick"}, nodes=3):
        yield made


def test_a_gang_of_two_is_given_machines_which_go_when_it_has_ended(
    jobs: Jobs, cloud: Machines, tmp_path: Path
) -> None:
    names = [f"rack-{next(numbers)}" for _ in range(3)]
    cloud.add(*names)
    process = scaler(cloud, tmp_path, "scaler-1", idle_s=5)
    process.start()
    times = {"asked": time.monotonic()}
    try:
        gang(jobs, TEAM, "train", 2)
        until("the request", lambda: bool(jobs.items(f"{API}/namespaces/{TEAM}/provisioningrequests")), 60)
        times["requested"] = time.monotonic()
        until("the power", lambda: len(cloud.on) == 2, 60)
        times["on"] = time.monotonic()
        (workload,) = jobs.workloads(TEAM)
        # No pod, and no node is chosen, while the machines boot.
        assert not jobs.pods(TEAM)
        assignment = workload["status"]["admission"]["podSetAssignments"][0]
        assert assignment.get("delayedTopologyRequest") == "Pending" and "topologyAssignment" not in assignment
        until("the pods", lambda: len(jobs.bound(TEAM)) == 2, 90)
        times["bound"] = time.monotonic()
        assert set(jobs.bound(TEAM).values()) == cloud.on
        jobs.running(TEAM)
        # Longer than a node is idle: nothing may happen in it.
        assert settled(lambda: len(cloud.on) == 2, 8)
        for pod in jobs.bound(TEAM):
            jobs.ended(TEAM, pod)
        until("the end of the machines", lambda: not cloud.on, 120)
        times["off"] = time.monotonic()
        done = [change.what for change in cloud.power(sorted(cloud.machines)[0]).status.changes]
        assert done[:1] in ([], ["wanted on"])
    except TimeoutError as error:
        checks = [one["status"].get("admissionChecks") for one in jobs.workloads(TEAM)]
        raise AssertionError(f"{error}: {checks}: {process.log.read_text()[-3000:]}") from error
    finally:
        process.kill()
    steps = list(times)
    print({f"{a} to {b}": round(times[b] - times[a], 1) for a, b in itertools.pairwise(steps)})


def test_a_job_that_runs_when_its_queue_gets_the_check_runs_on(jobs: Jobs, cloud: Machines, tmp_path: Path) -> None:
    """As when fleet_scale is set on a fleet at work. There is no machine beside those that it has."""
    name = f"rack-{next(numbers)}"
    cloud.add(name)
    path = f"/apis/kueue.x-k8s.io/v1beta2/clusterqueues/{OLD}"

    def have_checks(*names: str) -> None:
        checks = {"admissionChecksStrategy": {"admissionChecks": [{"name": one} for one in names]}}
        reply = jobs.root.request("PATCH", path, {"spec": checks}, MERGE_PATCH)
        assert reply.status == 200, reply.message

    def requests() -> list[dict[str, Any]]:
        return list(jobs.items(f"{API}/namespaces/{OLD}/provisioningrequests"))

    have_checks(CHECK)
    process = scaler(cloud, tmp_path, "scaler-0", idle_s=3600, spare={MODEL: 1})
    process.start()
    try:
        until("the machine", lambda: len(cloud.on) == 1, 60)
        gang(jobs, OLD, "old", 1)
        until("its pod", lambda: len(jobs.bound(OLD)) == 1, 90)
        jobs.running(OLD)
        before = jobs.bound(OLD)
        assert requests() == []
        have_checks(CHECK, POWERED)
        until("the request", lambda: bool(requests()), 60)

        def provided() -> bool:
            conditions = [one for request in requests() for one in request.get("status", {}).get("conditions", [])]
            return any(one["type"] == "Provisioned" and one["status"] == "True" for one in conditions)

        until("its answer", provided, 30)
        (workload,) = jobs.workloads(OLD)
        conditions = {one["type"]: one["status"] for one in workload["status"]["conditions"]}
        assert conditions["Admitted"] == "True" and conditions.get("Evicted") != "True", conditions
        assert jobs.bound(OLD) == before
        for pod in before:
            jobs.ended(OLD, pod)
    except TimeoutError as error:
        seen = [one["status"] for one in jobs.workloads(OLD)]
        raise AssertionError(f"{error}: {seen}: {process.log.read_text()[-3000:]}") from error
    finally:
        process.kill()
    last = scaler(cloud, tmp_path, "scaler-off", idle_s=1)
    last.start()
    try:
        until("the end of the machine", lambda: not cloud.on, 120)
    finally:
        last.kill()


def test_a_node_that_is_not_as_the_queue_asks_sends_the_job_back_as_soon_as_it_is_chosen(
    jobs: Jobs, cloud: Machines, tmp_path: Path
) -> None:
    """`verified` lets the job go before there are nodes, and judges them once when there are."""
    cloud.add(f"rack-{next(numbers)}")
    process = scaler(cloud, tmp_path, "scaler-2", idle_s=3600)
    process.start()

    def evicted() -> bool:
        conditions = [one for work in jobs.workloads(DEEP) for one in work["status"].get("conditions", [])]
        return any(one["type"] == "Evicted" and "no proof of level extended" in one["message"] for one in conditions)

    try:
        gang(jobs, DEEP, "deep", 1)
        until("the machine", lambda: len(cloud.on) == 1, 60)
        until("the end of its turn", evicted, 90)
        until("its pods' end", lambda: not jobs.bound(DEEP), 30)
        assert len(cloud.on) == 1
    except TimeoutError as error:
        seen = [one["status"] for one in jobs.workloads(DEEP)]
        raise AssertionError(f"{error}: {seen}: {process.log.read_text()[-3000:]}") from error
    finally:
        process.kill()
