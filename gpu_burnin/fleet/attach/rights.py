"""Who may do what in an attached cluster: an account for each part, with no more than its work takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    GATE_EVENT_NAME,
    PROBE_ACCOUNT,
    PROVISIONER_ACCOUNT,
)
from gpu_burnin.api.names import GATE_PROBE_NODE, LEASE, PAUSE, SYSTEM_NAMESPACE
from gpu_burnin.fleet.attach.settings import Settings

_RBAC = "rbac.authorization.k8s.io"
READ = ("get", "list", "watch")
Rule = Mapping[str, Any]


def rights(settings: Settings, gate: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Accounts, roles and bindings. `gate` are the policies and bindings that the probe looks after."""
    group = settings.domain
    admitter = (
        _rule("", ["nodes"], [*READ, "patch"]),
        _rule("", ["nodes/status"], ["patch"]),
        _rule("", ["pods"], READ),
        _rule("", ["pods/eviction"], ["create"]),
        _rule(group, ["agentheartbeats", "nodeadmissions"], READ),
        _rule(group, ["nodeadmissions/status"], ["patch"]),
        # Of Nodes in default, of pods in theirs.
        _rule("", ["events"], ["create"]),
    )
    # RBAC cannot limit a shared account to the own Node: the policies muster-agents and muster-agent-... do.
    agent = (
        _rule("", ["nodes"], [*READ, "patch"]),
        _rule(group, ["agentheartbeats"], ["create", "patch"]),
        _rule(group, ["nodeenrolments"], ["get", "create", "patch"]),
    )
    provisioner = (
        _rule("", ["nodes"], ["get"]),
        # Nobody else may remove what is left of a node that is gone.
        _rule(group, ["nodeadmissions"], ["list", "create", "patch", "delete"]),
        _rule(group, ["nodeenrolments"], ["get", "patch", "delete"]),
        _rule(group, ["agentheartbeats"], ["delete"]),
    )
    kinds = {one["kind"]: f"{one['kind'].lower()[:-1]}ies" for one in gate if one["kind"].endswith("Policy")}
    kinds |= {one["kind"]: f"{one['kind'].lower()}s" for one in gate if not one["kind"].endswith("Policy")}
    names = sorted({one["metadata"]["name"] for one in gate})
    probe = (
        # By apply, of one name, which the gate lets it do as a dry run alone.
        {**_rule("", ["nodes"], ["create", "patch"]), "resourceNames": [GATE_PROBE_NODE]},
        {
            **_rule("admissionregistration.k8s.io", sorted(set(kinds.values())), ["get"]),
            "resourceNames": names,
        },
    )
    of_event = (
        # A resourceName cannot limit a create; one by apply has a name.
        {**_rule("", ["events"], ["create", "patch"]), "resourceNames": [GATE_EVENT_NAME]},
    )
    of_lease = (
        # A resourceName cannot limit a create.
        _rule("coordination.k8s.io", ["leases"], ["create"]),
        {**_rule("coordination.k8s.io", ["leases"], ["get", "update"]), "resourceNames": [LEASE]},
        {**_rule("", ["configmaps"], READ), "resourceNames": [PAUSE]},
    )
    found: list[dict[str, Any]] = []
    accounts = {
        ADMITTER_ACCOUNT: admitter,
        AGENT_ACCOUNT: agent,
        PROVISIONER_ACCOUNT: provisioner,
        PROBE_ACCOUNT: probe,
    }
    for account, rules in accounts.items():
        found += [_account(account), *_bound(account, rules, "")]
    of_namespace = {ADMITTER_ACCOUNT: of_lease, PROBE_ACCOUNT: of_event}
    return found + [one for of in of_namespace.items() for one in _bound(*of, SYSTEM_NAMESPACE)]


def _account(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "automountServiceAccountToken": False,
    }


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> dict[str, Any]:
    return {"apiGroups": [group], "resources": [*resources], "verbs": [*verbs]}


def _bound(account: str, rules: Sequence[Rule], namespace: str) -> list[dict[str, Any]]:
    kind = "Role" if namespace else "ClusterRole"
    metadata = {"name": account, **({"namespace": namespace} if namespace else {})}
    role = {"apiVersion": f"{_RBAC}/v1", "kind": kind, "metadata": metadata, "rules": [dict(rule) for rule in rules]}
    subject = {"kind": "ServiceAccount", "name": account, "namespace": SYSTEM_NAMESPACE}
    binding = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": account},
        "subjects": [subject],
    }
    return [role, binding]
