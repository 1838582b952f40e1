"""Who may do what where Muster is attached: the person who attaches, and each account that attaching makes.

Only here: what a real API server says to a right, to a token, to the renewal of the webhook's authority, and to hostile
objects. No kubelet runs: the tests make Nodes and pods.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.gate_probe import attached as gate_probe
from gpu_burnin.admission.webhook.certificate import AUTHORITY_LASTS, AUTHORITY_RENEWED
from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    AUTHORITY_ENDS,
    GATE_OPEN,
    PROBE_ACCOUNT,
    PROVISIONER_ACCOUNT,
    WEBHOOK,
    WEBHOOK_CA,
    account_user,
)
from gpu_burnin.api.names import GATE_PROBE_NODE, SYSTEM_NAMESPACE
from gpu_burnin.api.record import NodeAdmission, document
from gpu_burnin.fleet.attach import course, gone
from gpu_burnin.fleet.attach.ability import Need, handed_out, on
from gpu_burnin.fleet.attach.discover import capabilities
from gpu_burnin.fleet.attach.manifests import parts
from tests.integration.attach_cluster import ADMISSIONS, ENROLMENTS, NAMES, SETTINGS, TAINT, Cluster, denied, started
from tests.integration.attach_rights import event, looked_at, rules_of
from tests.integration.gate import NODES
from tests.integration.kube import MERGE_PATCH, until

WORDS = ["attach", "--image", SETTINGS.image, "--gpu-nodes", "example.com/gpu=yes", "--cluster", "test"]
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
OPS = "their-ops"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with started(tmp_path_factory.mktemp("foreign")) as made:
        yield made


def grant(cluster: Cluster, needs: Sequence[Need]) -> None:
    """Have a person with these rights and no others."""
    rules = [
        {"apiGroups": [one.group], "resources": [one.resource], "verbs": [one.verb]}
        | ({"resourceNames": [one.name]} if one.name else {})
        for one in needs
    ]
    base, rbac = "/apis/rbac.authorization.k8s.io/v1", {"apiVersion": "rbac.authorization.k8s.io/v1"}
    role = {**rbac, "kind": "ClusterRole", "metadata": {"name": OPS}, "rules": rules}
    binding = {
        **rbac,
        "kind": "ClusterRoleBinding",
        "metadata": {"name": OPS},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": OPS},
        "subjects": [{"kind": "User", "name": OPS, "apiGroup": "rbac.authorization.k8s.io"}],
    }
    for kind, one in (("clusterroles", role), ("clusterrolebindings", binding)):
        cluster.api().apply(f"{base}/{kind}/{OPS}?fieldManager=test&force=true", one)


def refused_without(cluster: Cluster, lacking: Need, run: Callable[[], Any], needs: Sequence[Need], words: str) -> None:
    """One right less: the command says which, and has written nothing."""
    kept = [one for one in needs if replace(one, name="", namespace="") != replace(lacking, name="", namespace="")]
    assert len(kept) < len(needs), lacking
    grant(cluster, kept)
    before = cluster.objects()

    def refused() -> bool:
        # An API server goes by a role a moment after it was written.
        done = run()
        assert done.returncode == 1, (lacking, done.stdout, done.stderr)
        return words in done.stderr

    until(words, refused)
    assert cluster.objects() == before, lacking


def test_who_attaches_may_do_all_of_it_or_nothing_is_written(cluster: Cluster) -> None:
    """With exactly the rights that it asks for it attaches and detaches; with one less it does neither."""
    user = {"KUBECONFIG": str(cluster.server.kubeconfig(OPS))}
    can = capabilities(cluster.api())
    first = parts(course.choose_taints(replace(SETTINGS, taints_by=course.AUTO), can), {})
    of_all = course.variants(SETTINGS, can)
    given = [need for _, held in handed_out(first.rights) for need in held]
    all_of_it = [*course.needs(first, of_all), *given]

    def attach() -> Any:
        return cluster.muster(*WORDS, "--enforce", "--level", "quick", env=user)

    def detach() -> Any:
        return cluster.muster("detach", "--cluster", "test", env=user)

    grant(cluster, [])
    done = attach()
    assert done.returncode == 1 and "list pods" in done.stderr and f"you ({OPS}) may not" in done.stderr
    for lacking, words in (
        (Need("create", "apps", "daemonsets"), f"create daemonsets.apps in {SYSTEM_NAMESPACE}"),
        (
            Need("update", "admissionregistration.k8s.io", "validatingadmissionpolicies"),
            "update validatingadmissionpolicies.admissionregistration.k8s.io",
        ),
        (Need("list", "", "pods"), "list pods"),
        # What the admitter may, and who attaches may not himself, he cannot give.
        (Need("create", "", "pods/eviction"), "escalate/bind clusterroles.rbac.authorization.k8s.io"),
    ):
        refused_without(cluster, lacking, attach, all_of_it, words)
    grant(cluster, all_of_it)
    until("attached", lambda: attach().returncode == 0)

    of_detach = [*on(of_all, "get", "delete"), Need("list", "", "nodes"), *all_of_it]
    leave = [Need(verb, "coordination.k8s.io", "leases") for verb in ("get", "delete")]
    of_detach += [*leave, *(Need(verb, "", "configmaps") for verb in ("get", "delete"))]
    refused_without(cluster, Need("delete", "", "namespaces"), detach, of_detach, "delete namespaces")
    grant(cluster, of_detach)
    until("detached", lambda: detach().returncode == 0)
    cluster.end_namespace()
    until("the end of its kinds", lambda: NAMES.domain not in cluster.groups())


def test_a_new_authority_keeps_no_node_out(cluster: Cluster) -> None:
    """Nine years later: a webhook that has the old one, and one that has the new one, are both believed."""
    began = datetime.now(UTC) - AUTHORITY_LASTS + AUTHORITY_RENEWED / 2
    course.attach(cluster.api(), SETTINGS, began)
    hook = cluster.api().get(f"{HOOKS}/{WEBHOOK}")["webhooks"][0]
    old = hook["clientConfig"]["caBundle"]
    with cluster.webhook():
        until("the old one is used", lambda: tainted(cluster, "gpu-old-1"))
        course.attach(cluster.api(), SETTINGS, datetime.now(UTC))
        made = cluster.api().get(f"{HOOKS}/{WEBHOOK}")["webhooks"][0]["clientConfig"]["caBundle"]
        assert pem(made).endswith(pem(old)) and pem(made).count("BEGIN CERTIFICATE") == 2
        for n in range(5):
            assert tainted(cluster, f"gpu-between-{n}")
        # The probe wants what there is now, and the next attach leaves it as it is.
        course.attach(cluster.api(), SETTINGS, datetime.now(UTC))
        assert cluster.api().get(f"{HOOKS}/{WEBHOOK}")["webhooks"][0]["clientConfig"]["caBundle"] == made
        # Without the old one it would not be believed: nobody joins until the webhook has started again.
        alone = pem(made)[: -len(pem(old))]
        write_bundle(cluster, alone)
        until("nobody is believed", lambda: not tainted(cluster, f"gpu-{datetime.now(UTC):%H%M%S%f}"))
        write_bundle(cluster, pem(made))
    with cluster.webhook():
        until("the new one is used", lambda: tainted(cluster, "gpu-new-1"))
    # Another year on, the old one has ended and goes with the next.
    later = datetime.now(UTC) + AUTHORITY_LASTS - AUTHORITY_RENEWED / 2
    course.attach(cluster.api(), SETTINGS, later)
    last = pem(cluster.api().get(f"{HOOKS}/{WEBHOOK}")["webhooks"][0]["clientConfig"]["caBundle"])
    assert pem(old) not in last and last.endswith(alone)


def pem(bundle: str) -> str:
    return base64.b64decode(bundle).decode()


def write_bundle(cluster: Cluster, text: str) -> None:
    bundle = base64.b64encode(text.encode()).decode()
    patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    cluster.api().patch(f"{HOOKS}/{WEBHOOK}", patch)


def tainted(cluster: Cluster, name: str) -> bool:
    """Whether a Node that registers gets the taint; the gate refuses one that comes untainted."""
    machine = cluster.machine(name)
    reply = machine.try_to_register()
    assert reply.status in (201, 403), reply.message
    return reply.status == 201 and machine.taints() == [TAINT]


def test_a_later_comparison_stands_in_ledger_and_decision(cluster: Cluster) -> None:
    cluster.attach(SETTINGS.mode)
    machine = cluster.machine("gpu-trust")
    machine.try_to_register(spec={"taints": [TAINT]})
    machine.enrol()
    approve = ["attach", "approve", "--level", "quick"]

    def stated() -> tuple[str, str]:
        [one] = [one for one in json.loads(cluster.muster("attach", "nodes", "--json").stdout) if one["node"] == name]
        assert one["trust"] == cluster.api().get(f"{ADMISSIONS}/{name}")["spec"]["identity"]["trust"]
        return one["trust"], one["why"]

    name = machine.name
    assert cluster.muster(*approve, name).returncode == 0
    assert stated() == ("first-use", "approved by hand: its key was compared with nothing")
    expected = cluster.directory / "later"
    # A machine id says more than nothing, and is no comparison of the key.
    expected.write_text(f"{name} machine-id {machine.machine_id}\n")
    assert cluster.muster(*approve, "--expect", str(expected), name).returncode == 0
    assert stated()[0] == "first-use" and "its machine id is the one in" in stated()[1]
    # Keys that come later are compared with those that were believed on first use, without their names.
    [claim] = [one for one in json.loads(cluster.muster("attach", "nodes", "--json").stdout) if one["node"] == name]
    key = cluster.api().get(f"{ADMISSIONS}/{name}")["spec"]["identity"]["hostKey"]
    expected.write_text(f"{name} ssh-ed25519 {'A' * 66}{'B' * 2}\n")
    other = cluster.muster(*approve, "--expect", str(expected))
    assert other.returncode == 1 and claim["fingerprint"] in other.stderr
    assert stated()[0] == "first-use"
    expected.write_text(f"{name} {key}\n")
    done = cluster.muster(*approve, "--expect", str(expected))
    assert done.returncode == 0 and name in done.stdout, done.stderr
    assert stated() == ("compared", f"approved by hand: its key is the one in {expected}")
    # Again it is nothing to do, and first use takes nothing back.
    assert name not in cluster.muster(*approve, "--expect", str(expected)).stdout
    assert cluster.muster(*approve, name).returncode == 0
    assert stated() == ("compared", f"approved by hand: its key is the one in {expected}")
    by_mark = cluster.muster(*approve, f"{name}={claim['fingerprint']}")
    assert by_mark.returncode == 0
    assert stated() == ("compared", "approved by hand: its fingerprint was compared")
    # The node is gone for good: what is left of it the provisioner alone removes, for an admin who may be it.
    admin, of = cluster.server.client("their-admin", ["system:masters"]), f"/apis/{NAMES.api_version}"
    machine.beat()
    user = {"Impersonate-User": account_user(PROVISIONER_ACCOUNT)}
    for kind in ("nodeadmissions", "agentheartbeats", "nodeenrolments"):
        assert admin.request("DELETE", f"{of}/{kind}/{name}").status == 403, kind
        assert admin.request("DELETE", f"{of}/{kind}/{name}", headers=user).status == 200, kind


def test_each_account_may_do_its_work_and_no_more(cluster: Cluster) -> None:
    cluster.attach(SETTINGS.mode)
    mine = cluster.machine("gpu-mine")
    mine.try_to_register(spec={"taints": [TAINT]})
    mine.enrol()
    other = cluster.machine("gpu-other")
    other.try_to_register(spec={"taints": [TAINT]})
    probe = KubeApi(cluster.bearer(PROBE_ACCOUNT))
    accounts = {
        ADMITTER_ACCOUNT: KubeApi(cluster.bearer(ADMITTER_ACCOUNT)),
        PROBE_ACCOUNT: probe,
        PROVISIONER_ACCOUNT: KubeApi(cluster.bearer(PROVISIONER_ACCOUNT)),
        AGENT_ACCOUNT: cluster.agent(mine.name),
    }
    # The webhook has none: its pod is of the namespace's own account, which a controller makes, without a token.
    own = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
    cluster.api().create(f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts", own)
    accounts["default"] = KubeApi(cluster.bearer("default"))
    system = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}"
    for name, api in accounts.items():
        found = rules_of(api)
        secrets = [f"{system}/secrets", f"{system}/secrets/{WEBHOOK_CA}", "/api/v1/secrets"]
        for path in (*secrets, f"{system}/configmaps/muster-gate", f"{system}/configmaps"):
            assert denied(lambda: api.get(path)), (name, path)  # noqa: B023
        token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        for account in (ADMITTER_ACCOUNT, PROVISIONER_ACCOUNT, AGENT_ACCOUNT):
            assert denied(lambda: api.create(f"{system}/serviceaccounts/{account}/token", token)), name  # noqa: B023
        for hook in (f"{HOOKS}/{WEBHOOK}", f"{HOOKS.replace('mutating', 'validating')}/x"):
            assert denied(lambda: api.merge(hook, {"webhooks": []})), (name, hook)  # noqa: B023
            assert denied(lambda: api.delete(hook)), (name, hook)  # noqa: B023
        for kind in ("pods", "daemonsets", "deployments", "serviceaccounts"):
            group = "/apis/apps/v1" if kind.endswith("s") and kind in ("daemonsets", "deployments") else "/api/v1"
            path = f"{group}/namespaces/{SYSTEM_NAMESPACE}/{kind}"
            assert denied(lambda: api.create(path, {"metadata": {"name": "x"}})), (name, kind)  # noqa: B023
        evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "x", "namespace": "default"}}
        path = "/api/v1/namespaces/default/pods/x/eviction"
        # Of a pod that is not there: what is refused is refused before.
        assert denied(lambda: api.create(path, evict)) is (name != ADMITTER_ACCOUNT), name  # noqa: B023
        assert "*" not in json.dumps(found), name
    assert {
        name: sorted(f"{'/'.join(sorted(one['verbs']))} {','.join(one['resources'])}" for one in rules_of(api))
        for name, api in accounts.items()
    } == {
        ADMITTER_ACCOUNT: [
            "create events",
            "create leases",
            "create pods/eviction",
            "get/list/patch/watch nodes",
            "get/list/watch agentheartbeats,nodeadmissions",
            "get/list/watch configmaps",
            "get/list/watch pods",
            "get/update leases",
            "patch nodeadmissions/status",
            "patch nodes/status",
        ],
        AGENT_ACCOUNT: [
            "create/get/patch nodeenrolments",
            "create/patch agentheartbeats",
            "get/list/patch/watch nodes",
        ],
        PROVISIONER_ACCOUNT: [
            "create/delete/list/patch nodeadmissions",
            "delete agentheartbeats",
            "delete/get/patch nodeenrolments",
            "get nodes",
        ],
        PROBE_ACCOUNT: ["create/patch events", "create/patch nodes", f"get {looked_at()}"],
        "default": [],
    }
    # The probe: one event of one name in one namespace, and one Node that is never there.
    for place in (("default", "muster-gate"), (SYSTEM_NAMESPACE, "other"), ("kube-system", "muster-gate")):
        assert denied(lambda: probe.apply(*event(*place))), place  # noqa: B023
    for reason in (GATE_OPEN, AUTHORITY_ENDS):
        gate_probe._tell(probe, reason, "tried")
        assert cluster.api().get(f"{system}/events/muster-gate")["reason"] == reason
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": GATE_PROBE_NODE}, "spec": {"taints": [TAINT]}}
    assert denied(lambda: probe.apply(f"{NODES}/{GATE_PROBE_NODE}?fieldManager=x", node))
    assert denied(
        lambda: probe.apply(f"{NODES}/gpu-x?fieldManager=x&dryRun=All", {**node, "metadata": {"name": "gpu-x"}})
    )


def test_what_a_stolen_token_leaves_behind_is_harmless(cluster: Cluster) -> None:
    """Hostile texts are refused or shown plainly, and nothing that a node's token writes holds up the end."""
    cluster.attach(SETTINGS.mode)
    machine = cluster.machine("gpu-thief")
    machine.try_to_register(spec={"taints": [TAINT]})
    machine.enrol()
    machine.beat()
    kept = cluster.machine("gpu-kept")
    kept.try_to_register(spec={"taints": [TAINT]})
    kept.enrol()
    stolen, path = cluster.agent(machine.name), f"{ENROLMENTS}/{machine.name}"
    beats = f"/apis/{NAMES.api_version}/agentheartbeats/{machine.name}"
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "0"}
    for of in (path, beats):
        assert denied(lambda: stolen.merge(of, {"metadata": {"finalizers": ["example.com/held"]}}))  # noqa: B023
        assert denied(lambda: stolen.merge(of, {"metadata": {"ownerReferences": [owner]}}))  # noqa: B023
    # Forged: a claim that nobody signed, of another node, and one with a terminal's commands in it.
    good = cluster.api().get(path)["spec"]["claim"]
    hostile = "\x1b[2J\x1b]0;owned\x07\u202egpu"
    for claim in ("", "{}", "x" * 200_000, good.replace(machine.name, "gpu-other"), hostile, f"{good}{hostile}"):
        try:
            stolen.merge(path, {"spec": {"claim": claim}})
        except Exception as error:
            assert "1b" not in str(error) or "\x1b" not in str(error)
            continue
        refused = cluster.muster("attach", "approve", machine.name, "--level", "quick")
        shown = cluster.muster("attach", "nodes")
        assert refused.returncode == 1, claim[:80]
        assert "\x1b" not in refused.stderr + shown.stdout and "\u202e" not in refused.stderr + shown.stdout
    big = {"metadata": {"annotations": {NAMES.evidence: hostile + "x" * 100_000}}}
    stolen.merge(f"{NODES}/{machine.name}", big)
    for command in (("status",), ("attach", "nodes"), ("why", machine.name)):
        done = cluster.muster(*command)
        assert "\x1b" not in done.stdout + done.stderr, command
    # Who may be another one's taints: nobody but the admitter, by whatever way.
    someone = cluster.server.client("their-admin", ["system:masters"])
    for verb, of, body in (
        ("PUT", "", {**machine.node(), "spec": {}}),
        ("PATCH", "/status", {"spec": {"taints": None}, "metadata": {"annotations": {"muster.dev/agent": "x"}}}),
    ):
        someone.request(
            verb, f"{NODES}/{machine.name}{of}", body, MERGE_PATCH if verb == "PATCH" else "application/json"
        )
        assert machine.taints() == [TAINT]
    # A Node whose label is nearly the one that is meant is none of Muster's; one of the name is.
    for name, labels, status in (
        ("gpu-near", {"example.com/gpu": "Yes"}, 201),
        ("gpu-by-name", {}, 403),
        ("gpu-exact", {"example.com/gpu": "yes"}, 403),
    ):
        assert cluster.machine(name).try_to_register(labels=labels or {"a": "b"}).status == status, name
    # Not stopped: one that says only later that it has GPUs came without the taint.
    near = replace(cluster.machine("gpu-late"), name="gpu-near")
    late = {"metadata": {"labels": {"example.com/gpu": "yes"}}}
    assert near.kubelet().request("PATCH", f"{NODES}/gpu-near", late, MERGE_PATCH).status == 200
    assert near.taints() == []
    # An admin's finalizer, that detach names, and does not take off.
    assert cluster.muster("attach", "approve", "gpu-kept", "--level", "quick").returncode == 0
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    cluster.api().merge(f"{ADMISSIONS}/gpu-kept", held)
    left = cluster.muster("detach", "--cluster", "test")
    assert left.returncode == 2 and "gpu-kept (example.com/held)" in left.stderr, left.stderr
    cluster.api().merge(f"{ADMISSIONS}/gpu-kept", {"metadata": {"finalizers": None}})
    assert cluster.muster("detach", "--cluster", "test").returncode == 0
    cluster.end_namespace()
    until("the end of its kinds", lambda: NAMES.domain not in cluster.groups())


def test_the_record_of_a_node_that_is_gone_is_removed_as_it_was_read(cluster: Cluster) -> None:
    cluster.attach(SETTINGS.mode)
    provisioner, admitter = (KubeApi(cluster.bearer(one)) for one in (PROVISIONER_ACCOUNT, ADMITTER_ACCOUNT))
    missed = {"state": "new", "since": "2026-01-01T00:00:00Z", "code": "NODE_ABSENT", "message": "no Node object"}
    for name in ("gone-1", "gone-2"):
        provisioner.create(ADMISSIONS, document(NodeAdmission(name), NAMES))
        admitter.merge(f"{ADMISSIONS}/{name}/status", {"status": missed})
    held = {"who": account_user(PROVISIONER_ACCOUNT), "why": "x", "since": "2026-01-01T00:00:00Z"}
    found = {one.name: one for one in gone.gone(cluster.api(), NAMES, datetime.now(UTC), 60.0)}
    assert [found[name].stays for name in ("gone-1", "gone-2")] == ["", ""]
    provisioner.merge(f"{ADMISSIONS}/gone-2", {"spec": {"repair": held}})
    assert gone.remove(provisioner, NAMES, found["gone-2"]) == "it has changed meanwhile"
    # The admitter, and a person in his own name, may not.
    for api in (admitter, cluster.api()):
        assert denied(lambda: api.delete(f"{ADMISSIONS}/gone-1"))  # noqa: B023
    done = cluster.muster("attach", "forget", "--gone", "60s")
    assert done.returncode == 0, done.stderr
    assert {"gone-1  removed", "gone-2  stays: somebody asked for a repair"} <= set(done.stdout.splitlines())
    assert cluster.api().find(f"{ADMISSIONS}/gone-1") is None and cluster.api().find(f"{ADMISSIONS}/gone-2")
