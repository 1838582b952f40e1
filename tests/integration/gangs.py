"""A team of four nodes on real Kueue, and gangs of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gpu_burnin.api.names import GPU_LABEL, LEAF_LABEL, RACK_LABEL, READY_LABEL
from tests.integration.jobs_stack import GPUS, MODEL, NAMES, Jobs
from tests.integration.kube import APPLY, until

TEAM = "gangs"
_KUEUE = "kueue.x-k8s.io/v1beta2"


def team_objects() -> Iterator[dict[str, Any]]:
    """Its namespace and Kueue's objects for it."""
    levels = [{"nodeLabel": label} for label in (LEAF_LABEL, RACK_LABEL, "kubernetes.io/hostname")]
    flavor = {"name": MODEL, "resources": [{"name": "nvidia.com/gpu", "nominalQuota": str(4 * GPUS)}]}
    yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM, "labels": {NAMES.team: TEAM}}}
    specs: dict[str, tuple[str, dict[str, Any]]] = {
        "Topology": ("gangs", {"levels": levels}),
        "ResourceFlavor": (
            "gangs",
            {"nodeLabels": {READY_LABEL: "true", GPU_LABEL: MODEL, "of": TEAM}, "topologyName": "gangs"},
        ),
        "ClusterQueue": (
            TEAM,
            {
                "namespaceSelector": {"matchLabels": {NAMES.team: TEAM}},
                "resourceGroups": [{"coveredResources": ["nvidia.com/gpu"], "flavors": [{**flavor, "name": "gangs"}]}],
            },
        ),
    }
    for kind, (name, spec) in specs.items():
        yield {"apiVersion": _KUEUE, "kind": kind, "metadata": {"name": name}, "spec": spec}
    yield {
        "apiVersion": _KUEUE,
        "kind": "LocalQueue",
        "metadata": {"name": "default", "namespace": TEAM},
        "spec": {"clusterQueue": TEAM},
    }


def with_team(jobs: Jobs) -> Jobs:
    """The stack with a team of four nodes in two racks."""
    for item in team_objects():
        jobs.apply(item)
    jobs.queues_answer(TEAM)
    for number in range(4):
        jobs.add_node(f"gang-{number}", rack=f"gangs-{number // 2}", leaf="gangs", labels={"of": TEAM})
    return jobs


def gang(name: str, nodes: int, level: str = LEAF_LABEL) -> dict[str, Any]:
    """A Job of so many nodes in one place."""
    gpus = {"nvidia.com/gpu": str(GPUS)}
    container = {"name": "train", "image": "x", "resources": {"requests": {"cpu": "1", **gpus}, "limits": gpus}}
    template = {
        "metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": level}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"parallelism": nodes, "completions": nodes, "completionMode": "Indexed", "template": template},
    }


@contextmanager
def stale_choice(jobs: Jobs, item: dict[str, Any]) -> Iterator[None]:
    """Inside, a gang of all four nodes, of which one was shut when Kueue had chosen them and no pod was bound yet.

    Kueue is dead meanwhile: it sees such a node itself within seconds. Then the node is open again, and Kueue there.
    """
    jobs.scheduler.kill()
    jobs.apply(item)

    def chosen() -> bool:
        pods = [pod["spec"] for pod in jobs.pods(TEAM)]
        return len(pods) == 4 and not any(pod.get("schedulingGates") for pod in pods)

    until("Kueue's choice", chosen, 60)
    jobs.kueue.kill()
    jobs.shut("gang-3", NAMES.quarantine, value="GEMM_MISMATCH")
    jobs.scheduler.start()
    try:
        yield
    finally:
        jobs.let_in("gang-3")
        jobs.kueue.start()
        dry_run = f"/apis/batch/v1/namespaces/{TEAM}/jobs/other?fieldManager=test&dryRun=All"
        until("Kueue's webhooks", lambda: jobs.root.request("PATCH", dry_run, gang("other", 1), APPLY).status == 201)
