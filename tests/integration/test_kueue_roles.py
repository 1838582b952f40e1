"""What roles kueue, jobset and node_admission bring, on a real API server: files, rights, configuration.

Only here: webhooks from the API server's disk, and Kueue and JobSet with no more rights than their roles give.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.gate_probe.probe import Place, once
from gpu_burnin.admission.objects import write_objects
from gpu_burnin.api.names import READY_LABEL
from tests.integration.jobs_stack import GPUS, NAMES, Jobs
from tests.integration.jobs_start import answers, controllers, in_etc, serving
from tests.integration.kube import (
    JSON_PATCH,
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
LEASES = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases"
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
        return self.jobs.server

    def start(self) -> None:
        """Kueue and JobSet, until both are ready."""
        for part, port in ((self.jobs.jobset, self.ports[4]), (self.jobs.kueue, self.ports[1])):
            part.start()
            until(f"the readiness of {part.log.stem}", lambda port=port: answers(port), 60)  # type: ignore[misc]

    def admin_api(self) -> KubeApi:
        return KubeApi(self.server.kubeconfig("admin", ["muster:admins"]))

    def objects(self) -> list[Any]:
        made = (f"{name}_{part}" for name in ("jobset", "kueue") for part in ("definitions", "objects"))
        return [item for name in made for item in self.values[name]]


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    place = binaries()
    if place is None:
        pytest.skip(NO_BINARIES)
    folder = tmp_path_factory.mktemp("roles")
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


@pytest.fixture(scope="module")
def root(roles: Roles) -> Client:
    return roles.jobs.root


@pytest.fixture(scope="module")
def defined(roles: Roles, root: Client) -> Roles:
    """With the kinds and rights, and a team's namespace beside one of nobody's."""
    break_glass = KubeApi(roles.server.kubeconfig("break-glass", ["system:masters"]))
    write_objects(roles.objects(), roles.admin_api(), lambda: break_glass, apply=True)
    until("Kueue's kinds", lambda: root.request("GET", f"/apis/{KUEUE}/workloads").status == 200)
    until("JobSet's kind", lambda: root.request("GET", f"/apis/{JOBSET}/jobsets").status == 200)
    for name, labels in (("vision", {NAMES.team: "vision"}), ("other", {})):
        about = {"name": name, "labels": labels}
        roles.jobs.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": about})
    return roles


def _job(name: str) -> dict[str, Any]:
    container = {"name": "one", "image": "none", "resources": {"limits": {GPU: str(GPUS)}}}
    pod = {"restartPolicy": "Never", "containers": [container]}
    spec = {"parallelism": 2, "completions": 2, "template": {"spec": pod}}
    about = {"name": name, "labels": {"kueue.x-k8s.io/queue-name": "default"}}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": about, "spec": spec}


def _create(client: Client, namespace: str, item: dict[str, Any]) -> Reply:
    plural = f"{item['kind'].lower()}s"
    return client.request("POST", f"/apis/{item['apiVersion']}/namespaces/{namespace}/{plural}", item)


def test_the_server_starts_without_them_and_has_loaded_what_the_role_counts_on(roles: Roles, root: Client) -> None:
    text = root.request("GET", "/metrics").message
    for plugin, value in roles.values["hashes"].items():
        assert f'hash="{value}",plugin="{plugin}"' in text


@pytest.mark.parametrize("kind", ["mutating", "validating"])
def test_nobody_sees_or_deletes_or_takes_the_place_of_the_webhooks(root: Client, kind: str) -> None:
    path = f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations"
    assert root.request("GET", path).body["items"] == []
    assert root.request("DELETE", f"{path}/muster-kueue.static.k8s.io").status == 404
    own = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": f"{kind.title()}WebhookConfiguration"}
    reply = root.request("POST", path, {**own, "metadata": {"name": "muster-kueue.static.k8s.io"}, "webhooks": []})
    assert reply.status == 422 and "reserved for static" in reply.message


def test_without_them_the_jobs_of_teams_wait_and_others_do_not(defined: Roles, root: Client) -> None:
    reply = _create(root, "vision", _job("early"))
    assert reply.status == 500 and 'failed calling webhook "mjob.kb.io"' in reply.message
    # It takes no node from the team.
    idle = {**_job("early"), "spec": {**_job("early")["spec"], "suspend": True}}
    assert _create(root, "other", idle).status == 201


def test_what_is_as_it_should_be_is_only_read(defined: Roles) -> None:
    def never() -> KubeApi:
        raise AssertionError("the identity that may write was used")

    assert write_objects(defined.objects(), defined.admin_api(), never, apply=True).names == ()


def test_a_definition_that_somebody_changed_is_told_and_put_back(defined: Roles, root: Client) -> None:
    """One field more, as a newer version has it: so much for the way back."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/workloads.kueue.x-k8s.io"
    place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/more"
    patch = [{"op": "add", "path": place, "value": {"type": "string"}}]
    assert root.request("PATCH", path, patch, JSON_PATCH).status == 200
    break_glass = KubeApi(defined.server.kubeconfig("break-glass", ["system:masters"]))
    told = write_objects(defined.objects(), defined.admin_api(), lambda: break_glass, apply=True)
    assert told.names == ("CustomResourceDefinition/workloads.kueue.x-k8s.io",)
    found = root.request("GET", path).body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "more" not in found["properties"]["spec"]["properties"]


@pytest.fixture(scope="module")
def running(defined: Roles) -> Roles:
    """With both, a queue of the team, and four nodes."""
    defined.start()
    jobs = defined.jobs
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
    return defined


class TestRunning:
    def test_one_of_each_leads(self, running: Roles, root: Client) -> None:
        def leaders() -> set[str]:
            return {one["metadata"]["name"] for one in root.request("GET", LEASES).body["items"]}

        until("the Leases", lambda: {"kueue", "jobset"} <= leaders(), 60)

    def test_the_rights_of_the_roles_are_enough_for_a_job_and_a_jobset(self, running: Roles, root: Client) -> None:
        jobs = running.jobs
        assert _create(root, "vision", _job("plain")).status == 201
        until("the Job's pods", lambda: len(jobs.bound("vision")) == 2, 60)
        template = {"spec": _job("")["spec"]}
        workers = {"name": "w", "replicas": 1, "template": template}
        about = {"name": "set", "labels": {"kueue.x-k8s.io/queue-name": "default"}}
        item = {"apiVersion": JOBSET, "kind": "JobSet", "metadata": about, "spec": {"replicatedJobs": [workers]}}
        assert _create(root, "vision", item).status == 201
        until("the JobSet's pods", lambda: len(jobs.bound("vision")) == 4, 60)
        jobs.running("vision")
        for name in [one for one in jobs.bound("vision") if one.startswith("set-")]:
            jobs.ended("vision", name)
        path = f"/apis/{JOBSET}/namespaces/vision/jobsets/set"
        until("the JobSet's end", lambda: jobs.get(path).get("status", {}).get("terminalState") == "Completed", 60)
        for part in (jobs.kueue, jobs.jobset):
            assert [line for line in part.log.read_text().splitlines() if "is forbidden" in line] == []

    def test_the_probe_tells_queues_and_services_and_a_webhook_that_is_gone(
        self, running: Roles, tmp_path: Path
    ) -> None:
        server, said = running.server, list[str]()
        admission = server.directory / "admission"
        (admission / "policy.hash").write_text(f"{_loaded(server)}\n")
        lines = [f"{plugin} {value}\n" for plugin, value in running.values["hashes"].items()]
        (admission / "webhooks.hash").write_text("".join(lines))
        kubeconfig, numbers = server.kubeconfig("muster:gate-probe"), tmp_path / "numbers.prom"
        place = Place(kubeconfig, admission, server.directory / "audit.log", tmp_path, numbers, etc=server.directory)
        until("the queue's figures", lambda: running.jobs.get(QUEUE)["status"].get("admittedWorkloads") == 1, 60)
        assert once(place, said.append, 1000.0) == 0, said
        for series in (
            'muster_jobs_service_ready{service="kueue"} 1',
            'muster_jobs_service_ready{service="jobset"} 1',
            f'muster_queue_used_gpus{{queue="vision"}} {2 * GPUS}',
            f'muster_queue_quota_gpus{{queue="vision"}} {4 * GPUS}',
        ):
            assert f"\n{series}\n" in numbers.read_text()
        file = Path(running.values["files"][3]["dest"])
        text = file.read_text()
        file.unlink()
        until("the loss of the webhooks", lambda: once(place, said.append, 1060.0) == 1, 60)
        assert "ValidatingAdmissionWebhook of the API server do not have the webhooks" in said[-1]
        assert '\nmuster_gate_webhooks_right{plugin="ValidatingAdmissionWebhook"} 0\n' in numbers.read_text()
        file.write_text(text)
        until("their return", lambda: once(place, said.append, 1120.0) == 0, 60)


def _loaded(server: Server) -> str:
    text = server.client("root", ["system:masters"]).request("GET", "/metrics").message
    (line,) = [
        one for one in text.splitlines() if 'plugin="ValidatingAdmissionPolicy"' in one and "last_config_info{" in one
    ]
    return line.split('hash="')[2].split('"')[0]
