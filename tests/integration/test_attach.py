"""Muster in a cluster that others built: a real etcd and kube-apiserver without static policies, the webhook, and its
services and agents as processes with the tokens of their ServiceAccounts.

Only here: what a real API server does with the gate as objects, and with a token of a pod on another node; and an agent
with the arguments, environment and mounts of the DaemonSet. No kubelet runs: the tests make Nodes and pods.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.gate_probe import attached as gate_probe
from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    GATE_CONFIG,
    GATE_KEY,
    GATE_OPEN,
    PROBE_ACCOUNT,
    WEBHOOK,
    WEBHOOK_AWAY,
    Mode,
)
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.fleet.attach import course
from gpu_burnin.fleet.attach.discover import capabilities
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS, WEBHOOK_TAINTS
from gpu_burnin.types import Verdict
from tests.integration.attach_agents import agents, at_work, first_of_all
from tests.integration.attach_cluster import (
    ADMISSIONS,
    ENROLMENTS,
    NAMES,
    SETTINGS,
    TAINT,
    Cluster,
    Machine,
    annotations_of,
    denied,
    rss_mib,
    started,
)
from tests.integration.attach_pod import AgentPod
from tests.integration.gate import NODES
from tests.integration.kube import (
    MERGE_PATCH,
    STRATEGIC_PATCH,
    until,
)

_NODES = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"], "resources": ["nodes"], "scope": "*"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("foreign")) as made:
        yield made


def test_all_of_it(cluster: Cluster) -> None:
    """The way of a cluster: observed, enforced, attacked, left."""
    old = cluster.machine("gpu-old")
    old.register()
    before = cluster.objects()

    # It looks, and writes nothing; nor into another cluster than is meant.
    words = ["attach", "--image", SETTINGS.image, "--gpu-nodes", "example.com/gpu=yes", "--gpu-nodes", "gpu-by-name"]
    assert cluster.muster(*words).returncode == 2
    assert cluster.muster(*words, "--cluster", "other").returncode == 2
    looked = cluster.muster(*words, "--cluster", "test", "--dry-run", "--json")
    assert looked.returncode == 0, looked.stderr
    found = json.loads(looked.stdout)
    # An API server of before 1.36 has no such policy, and all the rest is so there too.
    by = POLICY_TAINTS if capabilities(cluster.api()).taint_policy else WEBHOOK_TAINTS
    assert (found["gpu_nodes"], found["without_gpus"], found["taints_by"]) == (["gpu-old"], ["gpu-old"], by)
    assert cluster.objects() == before
    rendered = cluster.muster(*words, "--enforce", "--render", str(cluster.directory / "manifests"))
    assert rendered.returncode == 0, rendered.stderr
    nobody = cluster.server.kubeconfig("somebody")
    cannot = cluster.muster(*words, "--cluster", "test", env={"KUBECONFIG": str(nobody)})
    assert cannot.returncode == 1 and "you (somebody) may not" in cannot.stderr
    with agents() as pods:
        healthy, sick = observe(cluster, words, pods, old)
        enforce(cluster, words, pods, healthy, sick)
    if by == POLICY_TAINTS:
        by_policy(cluster)
    attack(cluster, sick, healthy)
    watch_the_gate(cluster)
    leave(cluster, before, sick)


def observe(cluster: Cluster, words: list[str], pods: dict[str, AgentPod], old: Machine) -> tuple[Machine, Machine]:
    """What is there is said, and nothing is tainted; a healthy machine and a sick one that came."""
    api, began_s = cluster.api(), time.monotonic()
    done = cluster.muster(*words, "--cluster", "test", "--level", "quick", "--taint-by", "webhook")
    assert done.returncode == 0, done.stderr
    assert cluster.muster("attach", "nodes").returncode == 0
    healthy, sick = cluster.machine("gpu-1"), cluster.machine("gpu-2")
    for machine in (old, healthy, sick):
        if machine is not old:
            machine.register()
        machine.enrol()
    with cluster.admitter(Mode.OBSERVING) as running:
        first_of_all(cluster, pods, began_s)
        for machine in (old, healthy, sick):
            approved = cluster.muster("attach", "approve", machine.name, "--level", "quick")
            assert approved.returncode == 0, approved.stderr
            machine.beat()
        entry = api.get(f"{ADMISSIONS}/gpu-old")["spec"]["identity"]
        assert (entry["trust"], entry["nodeUID"], entry["machineID"]) == (
            "first-use",
            old.node()["metadata"]["uid"],
            old.machine_id,
        )
        healthy.publish()
        sick.publish(Verdict.FAIL, "GEMM_MISMATCH")
        until("the sick node is named", lambda: sick.state()[1] == "GEMM_MISMATCH")
        until("the healthy node passes", lambda: healthy.state() == ("ready", "PASS"))
        # The ledger first, then the Node.
        ready = "muster.node-restriction.kubernetes.io/ready"
        until("its label", lambda: labels_of(healthy).get(ready) == "true")
        assert sick.taints() == healthy.taints() == []
        assert labels_of(sick).get(ready) is None
        assert api.get(f"{ADMISSIONS}/gpu-2")["status"]["next"]["why"].startswith("Muster only observes")
        print("admitter MiB", rss_mib(running))

    told = cluster.muster("status")
    assert "observing" in told.stdout and "gpu-2, gpu-old would be kept from work" in " ".join(told.stdout.split()), (
        told.stdout
    )
    return healthy, sick


def enforce(cluster: Cluster, words: list[str], pods: dict[str, AgentPod], healthy: Machine, sick: Machine) -> None:
    """The webhook taints what is new, and what is in doubt is kept from work."""
    api = cluster.api()
    refused = cluster.daemon_set("driver", lambda: cluster.muster(*words, "--cluster", "test", "--enforce"))
    assert refused.returncode == 1 and "default/driver" in refused.stderr
    enforcing = [*words, "--cluster", "test", "--enforce", "--level", "quick", "--taint-by", "webhook"]
    assert cluster.muster(*enforcing).returncode == 0
    fresh, other = cluster.machine("gpu-3"), cluster.machine("cpu-1")
    with cluster.webhook() as webhook:
        until("the webhook is used", lambda: tainted(fresh))
        probe = KubeApi(cluster.bearer(PROBE_ACCOUNT))
        assert gate_probe.taints(probe, {"example.com/gpu": "yes"})
        other.register(role="web")
        assert other.taints() == []
        print("webhook MiB", rss_mib(webhook))
    # The webhook is away: an untainted GPU Node does not join, one that its node group taints does, and others too.
    late = cluster.machine("gpu-4")
    assert not gate_probe.taints(probe, {"example.com/gpu": "yes"})
    refused = late.try_to_register()
    assert refused.status == 403 and "muster-node-gate.attached" in refused.message
    assert late.try_to_register(spec={"taints": [TAINT]}).status == 201
    assert cluster.machine("cpu-2").try_to_register(labels={"role": "web"}).status == 201
    with cluster.admitter(Mode.ENFORCING) as running:
        fresh.enrol()
        assert cluster.muster("attach", "approve", "--all", "--level", "quick").returncode == 0
        until("the sick node is tainted", lambda: TAINT in sick.taints())
        assert {one["effect"] for one in sick.taints()} == {"NoSchedule"}
        assert healthy.taints() == []
        fresh.beat()
        fresh.annotate({})
        until("it is asked for its first test", lambda: NAMES.request in annotations_of(fresh))
        fresh.beat()
        fresh.publish()
        until("the fresh node is let in", lambda: fresh.state() == ("ready", "PASS") and not fresh.taints())
        # A boot is not reported before the admitter has closed the node; NoExecute never comes.
        healthy.boot = str(uuid.uuid4())
        assert healthy.report() == 403
        healthy.annotate({})
        until("the rebooted node is tainted", lambda: healthy.taints() == [TAINT])
        assert healthy.report() == 200
        healthy.beat()
        healthy.publish()
        until("it is let in again", lambda: healthy.state() == ("ready", "PASS") and not healthy.taints())
        # A Node that was made anew is not the one that was approved.
        assert api.delete(f"{NODES}/gpu-3")
        fresh.try_to_register(spec={"taints": [TAINT]})
        fresh.beat()
        fresh.publish()
        until("a Node made anew is named", lambda: fresh.state()[1] == "EVIDENCE_NODE")
        assert cluster.muster("attach", "approve", "gpu-3").returncode == 1
        assert cluster.muster("attach", "approve", "gpu-3", "--again", "--level", "quick").returncode == 0
        until("it is let in", lambda: fresh.state() == ("ready", "PASS") and not fresh.taints())
        at_work(cluster, pods)
        print("admitter MiB", rss_mib(running))


def by_policy(cluster: Cluster) -> None:
    """Where the API server can add the taint itself, nothing is needed that could be away."""
    changed = course.attach(cluster.api(), replace(SETTINGS, taints_by=POLICY_TAINTS), datetime.now(UTC))
    assert f"MutatingWebhookConfiguration/{WEBHOOK}" in changed.removed
    fresh, kept = cluster.machine("gpu-by-name"), {"key": "example.com/kept", "effect": "NoSchedule"}
    until("the policy is used", lambda: fresh.try_to_register(labels={"a": "b"}).status == 201)
    assert fresh.taints() == [TAINT]
    other = cluster.machine("gpu-6")
    assert other.try_to_register(spec={"taints": [kept]}).status == 201
    assert other.taints() == [TAINT]
    assert "example.com/kept" in json.dumps(other.node()["spec"]["taints"])
    cluster.attach(Mode.ENFORCING)


def attack(cluster: Cluster, sick: Machine, healthy: Machine) -> None:
    """What attach mode claims to stop; the page names what it does not."""
    admin = cluster.server.client("their-admin", ["system:masters"])
    ready = {"metadata": {"labels": {"muster.node-restriction.kubernetes.io/ready": "true"}}}
    verified = {"status": {"conditions": [{"type": "GPUVerified", "status": "True"}]}}
    forged: list[dict[str, Any]] = [{"spec": {"taints": []}}, {"spec": {"taints": None}}, ready]
    for who in (admin, sick.kubelet()):
        for body in forged:
            reply = who.request("PATCH", f"{NODES}/{sick.name}", body, MERGE_PATCH)
            assert reply.status == 403, (body, reply.message)
        reply = who.request("PATCH", f"{NODES}/{sick.name}/status", verified, STRATEGIC_PATCH)
        assert reply.status == 403, reply.message
    # A stolen token of the pod on the sick node: its own Node's notes, and nothing else of any Node.
    stolen = cluster.agent(sick.name)
    note = {"metadata": {"annotations": {NAMES.evidence: "x"}}}
    assert denied(lambda: stolen.merge(f"{NODES}/{healthy.name}", note))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}", {"spec": {"taints": []}}))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}", {"spec": {"unschedulable": True}}))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}", {"metadata": {"labels": {"example.com/gpu": None}}}))
    assert denied(lambda: stolen.merge(f"{NODES}/{sick.name}/status", verified))
    assert denied(lambda: stolen.delete(f"{NODES}/{healthy.name}"))
    beat = {"spec": {"renewTime": "2030-01-01T00:00:00Z"}}
    assert denied(lambda: stolen.merge(f"/apis/{NAMES.api_version}/agentheartbeats/{healthy.name}", beat))
    assert denied(lambda: stolen.merge(f"{ENROLMENTS}/{healthy.name}", {"spec": {"ends": "x"}}))
    # Its own enrolment was decided on: another key would be another machine.
    assert denied(lambda: stolen.merge(f"{ENROLMENTS}/{sick.name}", {"spec": {"ends": "x"}}))
    assert denied(lambda: stolen.merge(f"{ADMISSIONS}/{sick.name}", {"spec": {"hold": None}}))
    # A token of the account that no pod has is of no node.
    loose = KubeApi(cluster.bearer(AGENT_ACCOUNT))
    assert denied(lambda: loose.merge(f"{NODES}/{sick.name}", note))
    # The admin may ask for holds in his own name, and says not who a machine is, nor what its state is.
    identity = {"spec": {"identity": {"hostKey": "ssh-ed25519 AAAA"}}}
    state = {"status": {"state": "ready"}}
    for who in (admin, sick.kubelet()):
        assert who.request("PATCH", f"{ADMISSIONS}/{sick.name}", identity, MERGE_PATCH).status == 403
        assert who.request("PATCH", f"{ADMISSIONS}/{sick.name}/status", state, MERGE_PATCH).status == 403
    # The webhook has no credential, and the admitter none that could point it elsewhere.
    admitter = KubeApi(cluster.bearer(ADMITTER_ACCOUNT))
    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
    assert denied(lambda: admitter.merge(f"{hooks}/{WEBHOOK}", {"webhooks": []}))
    assert denied(lambda: admitter.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets/muster-webhook-ca"))
    # What it does not stop: a kubelet that does not say that it has GPUs is none of Muster's.
    hidden = cluster.machine("gpu-hidden")
    assert hidden.try_to_register(labels={"role": "web"}).status == 201
    assert hidden.taints() == []
    # And who takes the gate away, which the probe tells.


def watch_the_gate(cluster: Cluster) -> None:
    api, folder = cluster.api(), cluster.directory / "gate"
    folder.mkdir()
    data = api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{GATE_CONFIG}")["data"]
    (folder / GATE_KEY).write_text(data[GATE_KEY])
    probe, said = KubeApi(cluster.bearer(PROBE_ACCOUNT)), list[str]()

    def keeps_out() -> bool:
        said.clear()
        assert gate_probe.once(probe, folder, said.append).exit_code == 0, said
        return any("adds no taint" in sentence for sentence in said)

    # The gate holds, and nobody joins: no webhook runs now, and the policy that added the taint is gone.
    until("the webhook is seen away", keeps_out)
    said.clear()
    assert api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events/muster-gate")["reason"] == WEBHOOK_AWAY
    assert "NO NODE JOINS" in cluster.muster("status").stdout
    policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/muster-node-gate.attached"
    bindings = policies.replace("policies/", "policybindings/")
    kept = {"annotations": {"example.com/kept": "yes"}}
    api.merge(policies, {"metadata": kept, "spec": {"matchConstraints": {"excludeResourceRules": [_NODES]}}})
    assert gate_probe.once(probe, folder, said.append).exit_code == 1
    assert "was changed at spec.matchConstraints.excludeResourceRules" in said[0]
    # Who attaches again takes an exception away, too, and nothing that says nothing of the gate.
    cluster.attach(Mode.ENFORCING)
    assert api.get(policies)["metadata"]["annotations"] == kept["annotations"]
    until("the gate is in force", lambda: gate_probe.once(probe, folder, said.append).exit_code == 0)
    said.clear()
    api.delete(bindings)
    until(
        "the gate is seen open",
        lambda: len(gate_probe.look(probe, gate_probe.read_wanted(folder)).wrong) == 2,
    )
    assert gate_probe.once(probe, folder, said.append).exit_code == 1
    assert "ValidatingAdmissionPolicyBinding/muster-node-gate.attached is gone" in said[0]
    event = api.get(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/events/muster-gate")
    assert "GATE OPEN" in cluster.muster("status").stdout
    assert event["reason"] == GATE_OPEN and "is gone" in event["message"]
    # The numbers are those of a fleet's probe, so its alert is.
    watch = gate_probe.Watch(probe, folder, 60.0)
    watch.look(said.append)
    assert b"muster_gate_refused 0\n" in watch.numbers() and b"muster_gate_objects_changed 1\n" in watch.numbers()
    # Whoever attaches again has it back.
    cluster.attach(Mode.ENFORCING)
    until("the gate is in force again", lambda: gate_probe.once(probe, folder, said.append).exit_code == 0)


def leave(cluster: Cluster, before: dict[str, Any], sick: Machine) -> None:
    """Nothing of Muster is left, and what was there is as it was."""
    done = cluster.muster("detach", "--cluster", "somewhere-else")
    assert done.returncode == 2, done.stderr
    assert sick.taints() != []
    done = cluster.muster("detach", "--cluster", "test")
    assert done.returncode == 0, done.stderr
    again = cluster.muster("detach", "--cluster", "test", "--json")
    assert again.returncode == 0, again.stderr
    # Their cluster, not ours: the machines that came meanwhile, their pods, what controllers would have removed.
    cluster.end_namespace()
    # A group is listed a moment longer than it is served.
    until("the end of its kinds", lambda: NAMES.domain not in cluster.groups())
    after = cluster.objects()
    added = {name for name in after.keys() - before.keys() if not name.startswith(("nodes/", "pods/"))}
    assert added == set()
    assert before.keys() - after.keys() == set()
    changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
    assert changed == {}
    for item in cluster.api().items(NODES):
        text = json.dumps({**item, "metadata": {**item["metadata"], "managedFields": None}})
        assert "muster" not in text, item["metadata"]["name"]


def labels_of(machine: Machine) -> dict[str, str]:
    return dict(machine.node()["metadata"].get("labels") or {})


def tainted(machine: Machine) -> bool:
    """Whether a Node that registers now gets the taint; while the webhook is not known yet the gate refuses it."""
    reply = machine.try_to_register()
    return reply.status == 201 and TAINT in machine.taints()
