"""What roles kueue, jobset and node_admission bring, on a real API server: files, rights, configuration.

Only here: webhooks from the API server's disk, and Kueue and JobSet with no more rights than their roles give.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.gate_probe.probe import Place, once
from gpu_burnin.admission.objects import write_objects
from tests.integration.jobs_stack import GPUS
from tests.integration.kube import (
    JSON_PATCH,
    Client,
    Server,
    until,
)
from tests.integration.kueue_roles import (
    JOBSET,
    QUEUE,
    Roles,
    create,
    define,
    job,
    queue_and_nodes,
    roles_stack,
)

LEASES = "/apis/coordination.k8s.io/v1/namespaces/muster-system/leases"


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Roles]:
    with roles_stack(tmp_path_factory.mktemp("roles")) as found:
        yield found


@pytest.fixture(scope="module")
def root(roles: Roles) -> Client:
    return roles.jobs.root


@pytest.fixture(scope="module")
def defined(roles: Roles) -> Roles:
    """With the kinds and rights, and a team's namespace beside one of nobody's."""
    define(roles)
    return roles


@pytest.fixture(scope="module")
def running(defined: Roles) -> Roles:
    """With both, a queue of the team, and four nodes."""
    defined.start()
    queue_and_nodes(defined)
    return defined


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
    reply = create(root, "vision", job("early"))
    assert reply.status == 500 and 'failed calling webhook "mjob.kb.io"' in reply.message
    # It takes no node from the team.
    idle = {**job("early"), "spec": {**job("early")["spec"], "suspend": True}}
    assert create(root, "other", idle).status == 201


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
    assert defined.write(defined.objects()) == ("CustomResourceDefinition/workloads.kueue.x-k8s.io",)
    found = root.request("GET", path).body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert "more" not in found["properties"]["spec"]["properties"]


class TestRunning:
    def test_one_of_each_leads(self, running: Roles, root: Client) -> None:
        def leaders() -> set[str]:
            return {one["metadata"]["name"] for one in root.request("GET", LEASES).body["items"]}

        until("the Leases", lambda: {"kueue", "jobset"} <= leaders(), 60)

    def test_the_rights_of_the_roles_are_enough_for_a_job_and_a_jobset(self, running: Roles, root: Client) -> None:
        jobs = running.jobs
        assert create(root, "vision", job("plain")).status == 201
        until("the Job's pods", lambda: len(jobs.bound("vision")) == 2, 60)
        template = {"spec": job("")["spec"]}
        workers = {"name": "w", "replicas": 1, "template": template}
        about = {"name": "set", "labels": {"kueue.x-k8s.io/queue-name": "default"}}
        item = {"apiVersion": JOBSET, "kind": "JobSet", "metadata": about, "spec": {"replicatedJobs": [workers]}}
        assert create(root, "vision", item).status == 201
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
