"""All objects of an attached cluster, in the order in which they are written; the reverse is that of their removal."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from gpu_burnin import __version__
from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    ATTACHED_CONFIG,
    GATE_CONFIG,
    GATE_KEY,
    WEBHOOK_CA,
    Attached,
)
from gpu_burnin.api.crd import definitions
from gpu_burnin.api.names import MANAGED_BY, SYSTEM_NAMESPACE
from gpu_burnin.fleet.attach import monitoring, policies
from gpu_burnin.fleet.attach.rights import rights
from gpu_burnin.fleet.attach.settings import WEBHOOK_TAINTS, Settings
from gpu_burnin.fleet.attach.workloads import ADMITTER_PORT, CONFIG, ETC, SSH, STATE, TOKENS, daemon_set, deployments

IN_CLUSTER = "https://kubernetes.default.svc"
PRIVILEGED = {"pod-security.kubernetes.io/enforce": "privileged"}
Object = dict[str, Any]


@dataclass(frozen=True)
class Parts:
    """What is written, by file name of `--render`. The gate stands before what it binds, and what the API server is to
    believe of the webhook before its pods.
    """

    namespace: list[Object]
    definitions: list[Object]
    rights: list[Object]
    config: list[Object]
    gate: list[Object]
    taint: list[Object]
    workloads: list[Object]
    monitoring: list[Object]

    def files(self) -> dict[str, list[Object]]:
        """In the order of their names."""
        return {f"{number}0-{name}.yaml": made for number, (name, made) in enumerate(vars(self).items()) if made}

    def all(self) -> list[Object]:
        """In the order in which they are written."""
        return [one for made in vars(self).values() for one in made]


def parts(settings: Settings, authority: Mapping[str, str]) -> Parts:
    """Everything. `authority` is ca.crt and ca.key of the webhook, PEM; empty where no webhook is to be."""
    webhook = settings.taints_by == WEBHOOK_TAINTS
    gate, data = policies.gate(settings), config(settings)
    secret = {name: base64.b64encode(text.encode()).decode() for name, text in authority.items()}
    attached = Attached(settings.mode, settings.gpu_nodes, __version__, settings.taints_by, settings.cluster)
    seen_by_probe = json.dumps(_looked_at(settings, gate, authority))
    maps = [
        _in_namespace("ConfigMap", CONFIG, {"data": data}),
        _in_namespace("ConfigMap", GATE_CONFIG, {"data": {GATE_KEY: seen_by_probe}}),
        _in_namespace("ConfigMap", ATTACHED_CONFIG, {"data": attached.data()}),
    ]
    if webhook:
        maps.append(_in_namespace("Secret", WEBHOOK_CA, {"type": "Opaque", "data": secret}))
    reads = [*attached.data().values(), authority.get("ca.crt", "")] if webhook and settings.enforcing else None
    work = deployments(settings, data, reads)
    return Parts(
        namespace=[_ours({"apiVersion": "v1", "kind": "Namespace", "metadata": _namespace()})],
        definitions=[_ours(one) for one in definitions(settings.names, enrolments=True)],
        rights=[_ours(one) for one in rights(settings, [*gate, *policies.taint(settings, "")])],
        config=[_ours(one) for one in maps],
        gate=[_ours(one) for one in gate],
        workloads=[_ours(one) for one in (*work, daemon_set(settings, data))],
        taint=[_ours(one) for one in policies.taint(settings, authority.get("ca.crt", ""))],
        monitoring=[_ours(one) for one in monitoring.objects()] if settings.monitoring else [],
    )


def config(settings: Settings) -> dict[str, str]:
    """What admitter and agent read."""
    user = {"tokenFile": f"{TOKENS}/token"}
    return {
        "kubeconfig": kubeconfig(IN_CLUSTER, f"{TOKENS}/ca.crt", user),
        "admitter.yaml": yaml.safe_dump(
            {
                "domain": settings.domain,
                "kubeconfig": f"{ETC}/kubeconfig",
                "listen": f"0.0.0.0:{ADMITTER_PORT}",
                "mode": str(settings.mode),
            }
        ),
        "agent.yaml": yaml.safe_dump(
            {
                "level": settings.level,
                "power_waves": "never",
                "host_key": f"{SSH}/ssh_host_ed25519_key" if settings.ssh_host_keys else f"{STATE}/identity/ed25519",
                "require_evidence": True,
                "publish": {
                    "server": IN_CLUSTER,
                    "ca": f"{TOKENS}/ca.crt",
                    "token": f"{TOKENS}/token",
                    "domain": settings.domain,
                },
            }
        ),
    }


def kubeconfig(server: str, ca: str, user: Mapping[str, str]) -> str:
    """A kubeconfig whose user is named by files."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "muster", "cluster": {"server": server, "certificate-authority": ca}}],
            "users": [{"name": ADMITTER_ACCOUNT, "user": dict(user)}],
            "contexts": [{"name": "muster", "context": {"cluster": "muster", "user": ADMITTER_ACCOUNT}}],
            "current-context": "muster",
        }
    )


def _looked_at(settings: Settings, gate: list[Object], authority: Mapping[str, str]) -> dict[str, Any]:
    """What the probe compares the cluster with."""
    wanted = [*gate, *policies.taint(settings, authority.get("ca.crt", ""))]
    labels = tainted_labels(settings)
    return {"labels": labels, "mode": str(settings.mode), "objects": [_ours(one) for one in wanted]}


def tainted_labels(settings: Settings) -> dict[str, str]:
    """The labels of a GPU Node that the webhook is to taint; none where there is no webhook, or names alone. Pure."""
    of = settings.gpu_nodes
    by_webhook = settings.enforcing and settings.taints_by == WEBHOOK_TAINTS
    return {of.label: of.value} if by_webhook and of.label else {}


def _namespace() -> dict[str, Any]:
    return {"name": SYSTEM_NAMESPACE, "labels": dict(PRIVILEGED)}


def _in_namespace(kind: str, name: str, more: Mapping[str, Any]) -> Object:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE}, **more}


def _ours(one: Object) -> Object:
    metadata = one["metadata"]
    return {**one, "metadata": {**metadata, "labels": {**metadata.get("labels", {}), **MANAGED_BY}}}
