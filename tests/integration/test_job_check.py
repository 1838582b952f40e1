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

from gpu_burnin.api.names import CHECK, READY_LABEL
from gpu_burnin.types import Verdict
from tests.integration.admitter_fleet import Machine, Process, admitters, make_machines
from tests.integration.gate import numbers
from tests.integration.jobs_stack import GPUS, NAMES, Jobs
from tests.integration.kube import STRATEGIC_PATCH, until

TEAM = "checked"
NODES = 3
_KUEUE = "kueue.x-k8s.io/v1beta2"
_SETTINGS = {"joins_per_s": 1000, "max_unready_share": 1.0, "tests": {"nodes": 0}}


def _objects() -> Iterator[dict[str, Any]]:
    flavor = {"name": TEAM, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(NODES * GPUS)}]}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": {NAMES.team: TEAM}}}
    specs: dict[str, tuple[str, dict[str, Any]]] = {
        "AdmissionCheck": (CHECK, {"controllerName": NAMES.verified_check}),
        "Topology": (TEAM, {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}),
        "ResourceFlavor": (TEAM, {"nodeLabels": {READY_LABEL: "true", "of": TEAM}, "topologyName": TEAM}),
        "ClusterQueue": (
            TEAM,
            {
                "namespaceSelector": {"matchLabels": {NAMES.team: TEAM}},
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [flavor]}],
                "admissionChecksStrategy": {"admissionChecks": [{"name": CHECK}]},
            },
        ),
    }
    for kind, (name, spec) in specs.items():
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    metadata = {"name": "default", "namespace": TEAM}
    yield {"apiVersion": _KUEUE, "kind": "LocalQueue", "metadata": metadata, "spec": {"clusterQueue": TEAM}}


@pytest.fixture(scope="module")
def admitter(jobs: Jobs, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """One admitter, and a queue with its check, which it makes active."""
    settings = {**_SETTINGS, "jobs": {"queues": {TEAM: {"level": "quick"}}}}
    with admitters(jobs.server, tmp_path_factory.mktemp("admitter"), ["api-1"], **settings) as (process,):
        for item in _objects():
            jobs.apply(item)
        jobs.queues_answer(TEAM)
        yield process


@pytest.fixture
def machines(jobs: Jobs, admitter: Process, tmp_path: Path) -> Iterator[list[Machine]]:
    """Three nodes of 8 GPUs that it has let in; the admitter has ended then."""
    made = make_machines(jobs.server, tmp_path, f"checked-{next(numbers)}", NODES)
    amount = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(GPUS)}
    for machine in made:
        labels = {"metadata": {"labels": {"kubernetes.io/hostname": machine.name, "of": TEAM}}}
        _written(machine, labels)
        _written(machine, {"status": {"capacity": amount, "allocatable": amount}}, "/status")
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


def _written(machine: Machine, body: dict[str, Any], subresource: str = "") -> None:
    reply = machine.own.request("PATCH", f"/api/v1/nodes/{machine.name}{subresource}", body, STRATEGIC_PATCH)
    assert reply.status == 200, reply.message


def _job(name: str, nodes: int) -> dict[str, Any]:
    gpus = {"nvidia.com/gpu": str(GPUS)}
    container = {"name": "train", "image": "x", "resources": {"requests": gpus, "limits": gpus}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {
            "parallelism": nodes,
            "completions": nodes,
            "completionMode": "Indexed",
            "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
        },
    }


def _state(jobs: Jobs) -> dict[str, Any]:
    """The check of the one workload, and the nodes that were chosen for it; nothing before Kueue has chosen."""
    for item in jobs.workloads(TEAM):
        status = item.get("status", {})
        found = next((one for one in status.get("admissionChecks", []) if one["name"] == CHECK), None)
        if found is not None and status.get("admission"):
            (part,) = status["admission"]["podSetAssignments"]
            values = [one["valuesPerLevel"][-1] for one in part["topologyAssignment"]["slices"]]
            return {**found, "nodes": [name for value in values for name in _names(value)]}
    return {"state": "", "message": "", "nodes": []}


def _names(value: dict[str, Any]) -> list[str]:
    if "universal" in value:
        return [value["universal"]]
    one = value["individual"]
    return [f"{one.get('prefix', '')}{root}{one.get('suffix', '')}" for root in one["roots"]]


def _end(jobs: Jobs, name: str) -> None:
    path = f"/apis/batch/v1/namespaces/{TEAM}/jobs/{name}?propagationPolicy=Foreground"
    assert jobs.root.request("DELETE", path).status == 200

    def gone() -> bool:
        for pod in jobs.pods(TEAM):
            jobs.gone(TEAM, pod["metadata"]["name"])
        return not jobs.pods(TEAM) and not jobs.workloads(TEAM)

    until("the end of the job", gone, 30)


def test_a_job_waits_for_the_admitter_and_for_a_node_in_doubt(
    jobs: Jobs, admitter: Process, machines: list[Machine]
) -> None:
    jobs.apply(_job("waits", NODES))
    until("the choice of nodes", lambda: len(_state(jobs)["nodes"]) == NODES, 30)
    assert _state(jobs)["state"] == "Pending" and jobs.bound(TEAM) == {}, "nobody has judged"
    doubted = machines[1]
    doubted.publish(Verdict.INCONCLUSIVE)
    admitter.start()
    until("the word", lambda: f"waits for {doubted.name}: suspect" in _state(jobs)["message"], 60)
    assert _state(jobs)["state"] == "Pending" and jobs.bound(TEAM) == {}, "one node is in doubt"
    admitter.kill()
    doubted.publish()
    admitter.start()
    assert _state(jobs)["state"] == "Pending" and jobs.bound(TEAM) == {}, "nobody leads"
    until("the start", lambda: len(set(jobs.bound(TEAM).values())) == NODES, 60)
    assert _state(jobs)["state"] == "Ready"
    _end(jobs, "waits")


def test_other_nodes_are_chosen_when_one_does_not_heal_in_time(
    jobs: Jobs, admitter: Process, machines: list[Machine]
) -> None:
    jobs.apply(_job("moves", NODES - 1))
    until("the choice of nodes", lambda: len(_state(jobs)["nodes"]) == NODES - 1, 30)
    bad = next(machine for machine in machines if machine.name == _state(jobs)["nodes"][0])
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
    assert [one["involvedObject"]["kind"] for one in events if one["reason"] == "MusterRetry"] == ["Workload"]
    _end(jobs, "moves")


def _impatient() -> dict[str, Any]:
    return {"jobs": {"queues": {TEAM: {"level": "quick"}}, "wait_s": 10}}
