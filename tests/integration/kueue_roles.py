"""Kueue and JobSet as their roles bring them on a real API server: files, rights, webhooks from its disk."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.objects import write_objects
from gpu_burnin.api.names import READY_LABEL
from tests.integration.jobs_stack import GPUS, NAMES, Jobs
from tests.integration.jobs_start import answers, controllers, in_etc, serving
from tests.integration.kube import (
    NO_BINARIES,
    Client,
    Part,
    Reply,
    Server,
    api_server,
    binaries,
    ended,
    free_ports,
    until,
)
from tests.support.role_values import role_values, template

KUEUE, JOBSET = "kueue.x-k8s.io/v1beta2", "jobset.x-k8s.io/v1alpha2"
QUEUE = f"/apis/{KUEUE}/clusterqueues/vision"
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Roles:
    """The stack as the roles bring it; Kueue and JobSet do not run yet. `values` are what the roles render."""

    jobs: Jobs
    values: dict[str, Any]
    ports: Sequence[int]
    folder: Path

    @property
    def server(self) -> Server:
        """The API server."""
        return self.jobs.server

    def start(self) -> None:
        """Kueue and JobSet, until both are ready."""
        for part, port in ((self.jobs.jobset, self.ports[4]), (self.jobs.kueue, self.ports[1])):
            part.start()
            until(f"the readiness of {part.log.stem}", lambda port=port: answers(port), 60)  # type: ignore[misc]

    def admin_api(self) -> KubeApi:
        """As an everyday admin."""
        return KubeApi(self.server.kubeconfig("admin", ["muster:admins"]))

    def objects(self) -> list[Any]:
        """Definitions and rights, as the roles apply them."""
        made = (f"{name}_{part}" for name in ("jobset", "kueue") for part in ("definitions", "objects"))
        return [item for name in made for item in self.values[name]]

    def write(self, objects: Sequence[Any]) -> tuple[str, ...]:
        """Apply objects as the roles do; the names of those that were not as they should be."""
        break_glass = KubeApi(self.server.kubeconfig("break-glass", ["system:masters"]))
        return tuple(write_objects(objects, self.admin_api(), lambda: break_glass, apply=True).names)


@contextmanager
def roles_stack(folder: Path) -> Iterator[Roles]:
    """What the roles bring, until the block ends. Skips without the binaries."""
    place = binaries()
    if place is None:
        pytest.skip(NO_BINARIES)
    ports, values = free_ports(6), {}

    def with_webhooks(words: Sequence[str]) -> Sequence[str]:
        values.update(_values(folder, place, ports))
        (folder / "server/admission/admission.yaml").write_text(values["admission"])
        for file in values["files"]:
            Path(file["dest"]).parent.mkdir(exist_ok=True)
            Path(file["dest"]).write_text(file["content"])
        return words

    (folder / "server").mkdir()
    with api_server(folder / "server", command=with_webhooks) as server:
        manager, scheduler = controllers(server)
        certificates = serving(server)
        programs = {}
        for name in ("kueue", "jobset"):
            config = {**values[name], "webhook": {**values[name]["webhook"], "certDir": str(certificates)}}
            path = server.directory / name / "config.yaml"
            path.parent.mkdir()
            path.write_text(yaml.safe_dump(config))
            command = [str(place / name), f"--config={path}", f"--kubeconfig={server.kubeconfig(f'muster:{name}')}"]
            programs[name] = [*command, "--zap-devel=false"]
        gates = ",".join(f"{gate}={str(on).lower()}" for gate, on in values["gates"].items())
        kueue = in_etc(server.directory / "etc", [*programs["kueue"], f"--feature-gates={gates}"])
        parts = (
            manager,
            scheduler,
            Part(kueue, server.directory / "kueue.log"),
            Part(programs["jobset"], server.directory / "jobset.log"),
        )
        with ended(*parts):
            manager.start()
            scheduler.start()
            yield Roles(Jobs(server, *parts), values, ports, folder)


def _values(folder: Path, place: Path, ports: Sequence[int]) -> dict[str, Any]:
    state = folder / "state"
    (state / "pki/kubernetes").mkdir(parents=True)
    (state / "manifests").mkdir()
    shutil.copy(folder / "server/pki/ca.crt", state / "pki/kubernetes")
    for name in ("kueue", "jobset"):
        shutil.copy(place / f"{name}-manifests.json", state / "manifests")
    shown = {
        "admission": template("node_admission", "admission.yaml.j2"),
        "files": "__node_admission_webhook_files",
        "hashes": "__node_admission_webhook_hashes",
        "gates": "__kueue_feature_gates",
        **{name: f"__{name}_config" for name in ("kueue", "jobset")},
        **{f"{name}_definitions": f"__{name}_definitions" for name in ("kueue", "jobset")},
        **{f"{name}_objects": f"{template(name, 'objects.yaml.j2')} | from_yaml_all" for name in ("kueue", "jobset")},
    }
    variables = {
        "fleet_state_dir": str(state),
        "fleet_teams": {"vision": {"gpus": 8}},
        "node_admission_dir": str(folder / "server/admission"),
        "fleet_kueue_webhook_port": ports[0],
        "kueue_health_port": ports[1],
        "kueue_metrics_port": ports[2],
        "fleet_jobset_webhook_port": ports[3],
        "jobset_health_port": ports[4],
    }
    return role_values(folder, ("node_admission", "kueue", "jobset"), shown, variables)


def define(roles: Roles) -> None:
    """The kinds and rights, and a team's namespace beside one of nobody's."""
    root = roles.jobs.root
    roles.write(roles.objects())
    until("Kueue's kinds", lambda: root.request("GET", f"/apis/{KUEUE}/workloads").status == 200)
    until("JobSet's kind", lambda: root.request("GET", f"/apis/{JOBSET}/jobsets").status == 200)
    for name, labels in (("vision", {NAMES.team: "vision"}), ("other", {})):
        about = {"name": name, "labels": labels}
        roles.jobs.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})


def queue_and_nodes(roles: Roles) -> None:
    """A queue of the team, and four nodes for all of its quota."""
    jobs = roles.jobs
    flavor = {"name": "f", "resources": [{"name": GPU, "nominalQuota": str(4 * GPUS)}]}
    groups = [{"coveredResources": [GPU], "flavors": [flavor]}]
    for kind, about, spec in (
        ("Topology", {"name": "fleet"}, {"levels": [{"nodeLabel": "kubernetes.io/hostname"}]}),
        ("ResourceFlavor", {"name": "f"}, {"topologyName": "fleet", "nodeLabels": {READY_LABEL: "true"}}),
        ("ClusterQueue", {"name": "vision"}, {"namespaceSelector": {}, "resourceGroups": groups}),
        ("LocalQueue", {"name": "default", "namespace": "vision"}, {"clusterQueue": "vision"}),
    ):
        jobs.apply({"apiVersion": KUEUE, "kind": kind, "metadata": about, "spec": spec})
    for number in range(4):
        jobs.add_node(f"gpu-{number}")


def job(name: str) -> dict[str, Any]:
    """A Job of the team's queue, of two nodes."""
    container = {"name": "one", "image": "none", "resources": {"limits": {GPU: str(GPUS)}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec = {"parallelism": 2, "completions": 2, "template": {"spec": pod}}
    about = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "default"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def create(client: Client, namespace: str, item: dict[str, Any]) -> Reply:
    """Make it there."""
    plural = f"{item['kind'].lower()}s"
    return client.request("POST", f"/apis/{item['apiVersion']}/namespaces/{namespace}/{plural}", item)
