"""A gang that waits for machines on real Kueue, with admitter and scaler as processes: on, admitted, run, idle, off.

Only here: both checks in one queue, and in which order Kueue takes them.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.names import CHECK, GPU_LABEL, KUEUE_PROVISIONING, READY_LABEL
from gpu_burnin.scaler.requests import API
from tests.integration.admitter_fleet import admitters
from tests.integration.gate import NODES, numbers
from tests.integration.jobs_stack import GPUS, NAMES, Jobs
from tests.integration.kube import MERGE_PATCH, STRATEGIC_PATCH, until
from tests.integration.scaler_site import MODEL, Cloud, machines_known, scaler
from tests.integration.teams import container

TEAM, DEEP, POWERED = "scaled", "deep", "powered"
_KUEUE = "kueue.x-k8s.io/v1beta2"
_SETTINGS: dict[str, Any] = {"joins_per_s": 1000, "max_unready_share": 1.0, "tests": {"nodes": 0}}


def _objects() -> Iterator[dict[str, Any]]:
    """Two teams whose queues have both checks; DEEP asks for a proof that no node has."""
    config = {"kind": "ProvisioningRequestConfig", "apiGroup": "kueue.x-k8s.io", "name": POWERED}
    shared: list[tuple[str, str, dict[str, Any]]] = [
        (
            "ProvisioningRequestConfig",
            POWERED,
            {"provisioningClassName": "muster.dev", "managedResources": ["nvidia.com/gpu"]},
        ),
        ("AdmissionCheck", CHECK, {"controllerName": NAMES.verified_check}),
        ("AdmissionCheck", POWERED, {"controllerName": KUEUE_PROVISIONING, "parameters": config}),
        ("Topology", TEAM, {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}),
        ("ResourceFlavor", TEAM, {"nodeLabels": {READY_LABEL: "true", GPU_LABEL: MODEL}, "topologyName": TEAM}),
    ]
    for kind, name, spec in shared:
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    for team in (TEAM, DEEP):
        flavor = {"name": TEAM, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(3 * GPUS)}]}
        queue = {
            "namespaceSelector": {"matchLabels": {NAMES.team: team}},
            "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}, {"name": POWERED}]},
        }
        metadata = {"name": "default", "namespace": team}
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": team, "labels": {NAMES.team: team}}}
        yield {"apiVersion": _KUEUE, "kind": "ClusterQueue", "metadata": {"name": team}, "spec": queue}
        yield {"apiVersion": _KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": team}}


class Machines(Cloud):
    """Those whose nodes offer GPUs to a real scheduler."""

    def _boot(self, machine: Any) -> None:
        super()._boot(machine)
        amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
        labels = {"metadata": {"labels": {"kubernetes.io/hostname": machine.name}}}
        machine.own.request("PATCH", f"{NODES}/{machine.name}", labels, MERGE_PATCH)
        body = {"status": {"capacity": amount, "allocatable": amount}}
        machine.own.request("PATCH", f"{NODES}/{machine.name}/status", body, STRATEGIC_PATCH)


@pytest.fixture(scope="module")
def cloud(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    folder = tmp_path_factory.mktemp("cloud")
    made = Machines(jobs.server, folder)
    living = threading.Thread(target=made.live, daemon=True)
    queues = {TEAM: {"level": "quick"}, DEEP: {"level": "extended"}}
    settings = {**_SETTINGS, "jobs": {"queues": queues}}
    with machines_known(jobs.server), admitters(jobs.server, folder, ["api-1"], **settings):
        living.start()
        for item in _objects():
            jobs.apply(item)
        jobs.queues_answer(TEAM, DEEP)
        yield made
        made.close()
        living.join(70)


def gang(jobs: Jobs, name: str, pods: int, team: str = TEAM) -> None:
    """A Job of whole nodes in the queue."""
    spec = {"containers": [container(asks={"nvidia.com/gpu": str(GPUS)})], "restartPolicy": "Never"}
    annotations = {"kueue.x-k8s.io/podset-unconstrained-topology": "true"}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": team, "labels": {"kueue.x-k8s.io/queue-name": "default"}},
        "spec": {
            "suspend": True,
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "template": {"metadata": {"annotations": annotations}, "spec": spec},
        },
    }
    jobs.apply(job)


def test_a_gang_of_two_is_given_machines_which_go_when_it_has_ended(
    jobs: Jobs, cloud: Machines, tmp_path: Path
) -> None:
    names = [f"rack-{next(numbers)}" for _ in range(3)]
    cloud.add(*names)
    process = scaler(cloud, tmp_path, "scaler-1", idle_s=5)
    process.start()
    times = {"asked": time.monotonic()}
    try:
        gang(jobs, "train", 2)
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
        time.sleep(8)
        assert len(cloud.on) == 2
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
        gang(jobs, "deep", 1, DEEP)
        until("the machine", lambda: len(cloud.on) == 1, 60)
        until("the end of its turn", evicted, 90)
        until("its pods' end", lambda: not jobs.bound(DEEP), 30)
        assert len(cloud.on) == 1
    except TimeoutError as error:
        seen = [one["status"] for one in jobs.workloads(DEEP)]
        raise AssertionError(f"{error}: {seen}: {process.log.read_text()[-3000:]}") from error
    finally:
        process.kill()
