"""What is made of Kueue's and JobSet's manifests: webhooks for the API servers' disks, and rights."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.module_rights import module_rights
from ansible_collections.muster.fleet.plugins.filter.static_webhooks import static_webhooks

CA = "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n"
URL = "https://127.0.0.1:10272"
OF_TEAM = {"matchExpressions": [{"key": "muster.dev/team", "operator": "Exists"}]}


def webhook(name: str, group: str, *resources: str) -> dict[str, Any]:
    return {
        "name": f"{name}.kb.io",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "webhook-service", "namespace": "system", "path": f"/{name}"}},
        "failurePolicy": "Fail",
        "rules": [
            {"apiGroups": [group], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": list(resources)}
        ],
        "sideEffects": "None",
    }


def configuration(kind: str, *webhooks: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "configuration"},
        "webhooks": list(webhooks),
    }


MANIFESTS = [
    {"kind": "CustomResourceDefinition"},
    configuration(
        "MutatingWebhookConfiguration",
        webhook("mjob", "batch", "jobs"),
        webhook("mpod", "", "pods"),
        webhook("mrayjob", "ray.io", "rayjobs"),
    ),
    configuration(
        "ValidatingWebhookConfiguration", webhook("vworkload", "kueue.x-k8s.io", "workloads", "workloads/status")
    ),
]
KUEUE = {"team_label": "muster.dev/team", "of_teams": ["batch/jobs"], "groups": ["kueue.x-k8s.io"]}


def files(objects: list[Any] = MANIFESTS, **options: Any) -> dict[str, Any]:
    texts = static_webhooks(objects, "kueue", URL, CA, **{**KUEUE, **options})
    return {plugin: json.loads(text) for plugin, text in texts.items()}


def test_jobs_are_asked_about_in_namespaces_of_teams_and_own_kinds_everywhere() -> None:
    made = files()
    (job,) = made["MutatingAdmissionWebhook"]["webhooks"]
    (workload,) = made["ValidatingAdmissionWebhook"]["webhooks"]
    assert (job["name"], job["namespaceSelector"], job["failurePolicy"]) == ("mjob.kb.io", OF_TEAM, "Fail")
    assert workload["name"] == "vworkload.kb.io" and "namespaceSelector" not in workload


def test_the_program_is_called_beside_the_api_server_and_must_show_a_certificate_of_the_ca() -> None:
    (job,) = files()["MutatingAdmissionWebhook"]["webhooks"]
    assert job["clientConfig"] == {"url": f"{URL}/mjob", "caBundle": base64.b64encode(CA.encode()).decode()}


def test_no_client_can_write_them() -> None:
    assert {one["metadata"]["name"] for one in files().values()} == {"muster-kueue.static.k8s.io"}


def test_pods_are_asked_about_by_the_label_of_those_that_are_its_own() -> None:
    made = files(pod_label="jobset.sigs.k8s.io/jobset-name")["MutatingAdmissionWebhook"]["webhooks"]
    assert [one["name"] for one in made] == ["mjob.kb.io", "mpod.kb.io"]
    selector = {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]}
    assert made[1]["objectSelector"] == selector and "namespaceSelector" not in made[1]


def test_the_same_manifests_give_the_same_bytes() -> None:
    assert static_webhooks(MANIFESTS, "kueue", URL, CA, **KUEUE) == static_webhooks(
        MANIFESTS, "kueue", URL, CA, **KUEUE
    )


@pytest.mark.parametrize(
    ("options", "lacking"),
    [
        ({"of_teams": ["batch/jobs", "jobset.x-k8s.io/jobsets"]}, "jobset.x-k8s.io/jobsets"),
        ({"groups": ["kueue.x-k8s.io", "new.x-k8s.io"]}, "new.x-k8s.io"),
    ],
)
def test_a_version_without_a_webhook_that_is_counted_on_is_refused(options: dict[str, Any], lacking: str) -> None:
    with pytest.raises(AnsibleFilterError, match=rf"manifests of kueue have no webhook of {lacking}; choose a version"):
        files(**options)


def role(*rules: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"kind": "ClusterRole", "rules": list(rules)}]


def rule(groups: list[str], resources: list[str], *verbs: str) -> dict[str, Any]:
    return {"apiGroups": groups, "resources": resources, "verbs": list(verbs or ("get",))}


def test_rights_are_those_of_the_groups_that_are_on() -> None:
    rules = role(rule(["", "ray.io"], ["pods", "podtemplates"], "get", "list"), rule(["ray.io"], ["rayjobs"]))
    assert module_rights(rules, [""], ["/podtemplates"]) == [rule([""], ["pods"], "get", "list")]


@pytest.mark.parametrize(
    ("asked", "word"),
    [
        (rule([""], ["users"], "impersonate"), "impersonate"),
        (rule([""], ["*"]), r"\*"),
        (rule([""], ["pods"], "*"), r"\*"),
    ],
)
def test_rights_that_reach_everything_are_refused(asked: dict[str, Any], word: str) -> None:
    with pytest.raises(AnsibleFilterError, match=f"ask for {word} on"):
        module_rights(role(asked), [""])


def test_manifests_without_a_role_are_refused() -> None:
    with pytest.raises(AnsibleFilterError, match="no ClusterRole"):
        module_rights([], [""])
