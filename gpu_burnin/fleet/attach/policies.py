"""The gate as objects of the API, rendered from the very templates that the static policies are rendered from. Pure."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import jinja2
import yaml

from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    NODE_CLAIM,
    POLICY_SUFFIX,
    PROBE_ACCOUNT,
    PROVISIONER_ACCOUNT,
    WEBHOOK,
    WEBHOOK_PATH,
    account_user,
    preflight_taint,
)
from gpu_burnin.api.names import GATE_PROBE_NODE, NO_SCHEDULE, NODE_USER, READY_LABEL, SYSTEM_NAMESPACE
from gpu_burnin.fleet.attach.settings import POLICY_TAINTS, Settings

TEMPLATES = Path(__file__).parent / "policies"
ADMISSION = "admissionregistration.k8s.io/v1"
# A cluster admin owns the cluster's own definitions.
_NOT_HERE = frozenset({f"muster-ledger-definition{POLICY_SUFFIX}"})


def gate(settings: Settings) -> list[dict[str, Any]]:
    """Policies, each with its binding."""
    agent = account_user(AGENT_ACCOUNT)
    name = "(object != null ? object : oldObject).metadata.name"
    own = (
        f"request.userInfo.username == '{NODE_USER}' + {name} || (request.userInfo.username == '{agent}' && "
        f"has(request.userInfo.extra) && '{NODE_CLAIM}' in request.userInfo.extra && "
        f"request.userInfo.extra['{NODE_CLAIM}'] == [{name}])"
    )
    # Bound is a GPU Node, also one that has lost the label since it was let in.
    old = "(oldObject != null ? oldObject : object)"
    bound = (
        f"({settings.gpu_nodes.expression(old)} || {old}.metadata.name == '{GATE_PROBE_NODE}' || "
        f"(has({old}.metadata.labels) && '{READY_LABEL}' in {old}.metadata.labels))"
    )
    variables = {
        "node_admission_domain": settings.domain,
        "node_admission_system_nodes": [],
        "node_admission_admitter_user": account_user(ADMITTER_ACCOUNT),
        "node_admission_provisioner_user": account_user(PROVISIONER_ACCOUNT),
        "__node_admission_suffix": POLICY_SUFFIX,
        "__node_admission_effects": [NO_SCHEDULE],
        # No test with other nodes: AdmitterConfig says why.
        "__node_admission_notes": ["evidence", "agent"],
        "__node_admission_probe_user": account_user(PROBE_ACCOUNT),
        "__node_admission_own": own,
        # While it observes no Node has to have the taint, so no boot waits for it.
        "__node_admission_exempt": f"!{bound}" if settings.enforcing else "true",
        "agent_user": agent,
    }
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES), undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    found = []
    for template in ("gate.yaml.j2", "admissions.yaml.j2", "attached.yaml.j2"):
        found += list(yaml.safe_load_all(environment.get_template(template).render(**variables)))
    return [one for one in found if one["metadata"]["name"] not in _NOT_HERE]


def taint(settings: Settings, ca_pem: str) -> list[dict[str, Any]]:
    """What adds the preflight taint to each new GPU Node; nothing while it observes.

    `failurePolicy` Ignore: a webhook that is away must not decide whether nodes join. The gate does, which is part of
    the API server: while it enforces, an untainted GPU Node is refused, and its kubelet comes again in seconds.
    """
    if not settings.enforcing:
        return []
    return _taint_policy(settings) if settings.taints_by == POLICY_TAINTS else [_webhook(settings, ca_pem)]


def _conditions(settings: Settings) -> list[dict[str, str]]:
    taint_of_ours = preflight_taint(settings.names)
    has_it = (
        "has(object.spec.taints) && object.spec.taints.exists(t, "
        f"t.key == '{taint_of_ours['key']}' && t.effect == '{NO_SCHEDULE}')"
    )
    return [
        {"name": "gpu-node", "expression": settings.gpu_nodes.expression()},
        {"name": "not-tainted", "expression": f"!({has_it})"},
    ]


def _rule() -> dict[str, Any]:
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["nodes"],
        "scope": "Cluster",
    }


def _webhook(settings: Settings, ca_pem: str) -> dict[str, Any]:
    service = {"namespace": SYSTEM_NAMESPACE, "name": WEBHOOK, "path": WEBHOOK_PATH, "port": 443}
    bundle = base64.b64encode(ca_pem.encode()).decode()
    hook = {
        "name": f"preflight-taint.{settings.domain}",
        "clientConfig": {"service": service, "caBundle": bundle},
        "rules": [_rule()],
        "matchConditions": _conditions(settings),
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "failurePolicy": "Ignore",
        "reinvocationPolicy": "IfNeeded",
        "matchPolicy": "Equivalent",
        "timeoutSeconds": 5,
    }
    return {
        "apiVersion": ADMISSION,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": WEBHOOK},
        "webhooks": [hook],
    }


def _taint_policy(settings: Settings) -> list[dict[str, Any]]:
    of_ours = preflight_taint(settings.names)
    value = f"Object.spec.taints{{key: '{of_ours['key']}', effect: '{of_ours['effect']}'}}"
    expression = (
        f"has(object.spec.taints) ? [JSONPatch{{op: 'add', path: '/spec/taints/-', value: {value}}}] : "
        f"[JSONPatch{{op: 'add', path: '/spec/taints', value: [{value}]}}]"
    )
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": [_rule()]},
        "matchConditions": _conditions(settings),
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    }
    named = {"metadata": {"name": WEBHOOK}}
    return [
        {"apiVersion": ADMISSION, "kind": "MutatingAdmissionPolicy", **named, "spec": policy},
        {"apiVersion": ADMISSION, "kind": "MutatingAdmissionPolicyBinding", **named, "spec": {"policyName": WEBHOOK}},
    ]
