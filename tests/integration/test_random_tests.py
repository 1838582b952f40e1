"""The CronJob that asks for random tests, on a real API server: it is valid, its rights suffice and give no more.

Only here: a real API server takes the manifest strictly, and a token of its account does its work and no more.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Identity, NodeAdmission, Spec, document
from gpu_burnin.cli.muster.main import cli
from tests.integration.gate import NODES, held_node, numbers, refused
from tests.integration.kube import JSON_PATCH, MERGE_PATCH, Client, Server
from tests.integration.ledger import LEDGER
from tests.lab.paths import REPOSITORY

MANIFEST = REPOSITORY / "playbooks/files/random-tests.yaml"
NAMES = Names()
NAMESPACE = "muster-system"
USER = f"system:serviceaccount:{NAMESPACE}:muster-random-tests"
PLURALS = {
    "ServiceAccount": "serviceaccounts",
    "ConfigMap": "configmaps",
    "CronJob": "cronjobs",
    "Role": "roles",
    "RoleBinding": "rolebindings",
    "ClusterRole": "clusterroles",
    "ClusterRoleBinding": "clusterrolebindings",
}
TIME = "2026-11-22T12:00:00Z"


def objects() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFEST.read_text()))


@pytest.fixture(scope="module")
def applied(ledger: Server, admin: Client) -> Server:
    """The manifest, applied by the everyday admin; an unknown or misspelt field is an error."""
    for item in objects():
        group = item["apiVersion"]
        place = f"/namespaces/{item['metadata']['namespace']}" if "namespace" in item["metadata"] else ""
        path = f"/{'apis' if '/' in group else 'api'}/{group}{place}/{PLURALS[item['kind']]}?fieldValidation=Strict"
        reply = admin.request("POST", path, item)
        assert reply.status == 201, f"{item['kind']}: {reply.message}"
    return ledger


@pytest.fixture(scope="module")
def kubeconfig(applied: Server, root: Client, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manifest's kubeconfig with the paths that the test has in the place of a pod's, and a token like its own."""
    folder = tmp_path_factory.mktemp("pod")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/muster-random-tests/token"
    (folder / "token").write_text(root.request("POST", path, body).body["status"]["token"])
    (text,) = [item["data"]["kubeconfig"] for item in objects() if item["kind"] == "ConfigMap"]
    for old, new in (
        ("https://kubernetes.default.svc", f"https://127.0.0.1:{applied.port}"),
        ("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", str(applied.authority.ca)),
        ("/var/run/secrets/kubernetes.io/serviceaccount/token", str(folder / "token")),
    ):
        assert old in text
        text = text.replace(old, new)
    (folder / "kubeconfig").write_text(text)
    return folder / "kubeconfig"


def entry(server: Server, *, busy: bool) -> str:
    """A ready node in the ledger."""
    name = f"rnd-{next(numbers)}"
    made = document(NodeAdmission(name, Spec(Identity("ssh-ed25519 AAAA", "machine"))), NAMES)
    assert server.client("muster:provisioner").request("POST", LEDGER, made).status == 201
    status = {"state": "ready", "use": {"observedSince": TIME, "since": TIME, "busy": busy}}
    done = server.client("muster:admitter").request("PATCH", f"{LEDGER}/{name}/status", {"status": status}, MERGE_PATCH)
    assert done.status == 200, done.message
    return name


def test_the_command_of_the_cron_job_asks_idle_nodes_in_its_own_name(applied: Server, kubeconfig: Path) -> None:
    idle, busy = entry(applied, busy=False), entry(applied, busy=True)
    (job,) = [item["spec"]["jobTemplate"]["spec"] for item in objects() if item["kind"] == "CronJob"]
    program, *words = job["template"]["spec"]["containers"][0]["command"]
    assert program == "muster"
    words[words.index("--random") + 1] = "100%"
    done = CliRunner().invoke(cli, [*words, "--json"], env={"KUBECONFIG": str(kubeconfig)})
    assert done.exit_code == 0, done.output
    asked = json.loads(done.stdout)["asked"]
    assert idle in asked and busy not in asked
    root = applied.client("break-glass", ["system:masters"])
    ask = root.request("GET", f"{LEDGER}/{idle}").body["spec"]["retest"]
    assert (ask["who"], ask["why"], ask["level"]) == (USER, "random test", "quick")


def test_its_rights_give_no_more(applied: Server, provisioner: Client) -> None:
    account = applied.client(USER, ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}"])
    name, node = entry(applied, busy=False), held_node(applied)
    ask = {"since": TIME, "why": "y"}
    for method, path, body in (
        ("PATCH", f"{LEDGER}/{name}/status", {"status": {"state": "ready"}}),
        ("DELETE", f"{LEDGER}/{name}", None),
        ("POST", LEDGER, {"apiVersion": NAMES.api_version, "kind": "NodeAdmission", "metadata": {"name": "x"}}),
        ("PATCH", f"{NODES}/{node}", {"metadata": {"labels": {"a": "b"}}}),
        ("GET", NODES, None),
        ("GET", "/api/v1/pods", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/secrets", None),
        ("GET", f"/api/v1/namespaces/{NAMESPACE}/configmaps", None),
        ("DELETE", f"/api/v1/namespaces/{NAMESPACE}/configmaps/muster-pause", None),
    ):
        refused(account.request(method, path, body, MERGE_PATCH if method == "PATCH" else "application/json"), "cannot")
    # What RBAC cannot tell apart, the gate does.
    for spec, word in (
        ({"retest": {**ask, "who": "admin"}}, "in the own name"),
        ({"identity": {"allowSimulated": True}}, "only the provisioner"),
    ):
        patch = [{"op": "add", "path": f"/spec/{next(iter(spec))}", "value": next(iter(spec.values()))}]
        refused(account.request("PATCH", f"{LEDGER}/{name}", patch, JSON_PATCH), word)
