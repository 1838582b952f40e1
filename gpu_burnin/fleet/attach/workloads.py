"""The pods of an attached cluster: admitter, webhook, probe, and the node's part. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_burnin.api.attached import (
    ADMITTER_ACCOUNT,
    AGENT_ACCOUNT,
    ATTACHED_CONFIG,
    GATE_CONFIG,
    PROBE_ACCOUNT,
    WEBHOOK,
    WEBHOOK_CA,
)
from gpu_burnin.api.names import MANAGED_BY, SYSTEM_NAMESPACE
from gpu_burnin.fleet.attach.settings import Settings
from gpu_burnin.system.own_name import NODE_VARIABLE

CONFIG = "muster-config"
ETC, TOKENS = "/etc/muster", "/var/run/secrets/muster"
ADMITTER_PORT, PROBE_PORT, WEBHOOK_PORT = 10270, 10271, 9443
_USER = 65532
STATE, SSH = "/var/lib/gpu-burnin", "/etc/ssh"
# Where work on the node reads that it is asked to leave.
_LEAVE = "/run/muster"
_LINKS = "/run/gpu-burnin/driver"
# gpu-operator's driver container mounts its root there after this pod has started.
_COMES_LATE = {"driver": {"mountPropagation": "HostToContainer"}}
# kubelet renews the file when 80 % of the time is over.
_TOKEN_S = 3600
APP = "app.kubernetes.io/name"
PRIORITY = "muster"
# The most that a class of users may have. It goes first, and ends no work: a burn-in or an admitter waits for room.
_PRIORITY = 1_000_000_000
STAMP = "checksum/config"
# gpu-operator's driver manager, and its MIG manager, write these while no process may hold the driver; the second label
# is for pods of others, since v26.7.0. They mean nothing where they are not.
_PAUSED: Mapping[str, Sequence[str]] = {
    "nvidia.com/gpu.deploy.operator-validator": ["paused-for-driver-upgrade"],
    "nvidia.com/gpu.deploy.client": ["paused-for-driver-upgrade", "paused-for-mig-change"],
}


def deployments(
    settings: Settings, config: Mapping[str, str], webhook_reads: Sequence[str] | None
) -> list[dict[str, Any]]:
    """Of the control side: nothing runs as root or may write its root file system.

    `webhook_reads` is what the webhook reads at its start besides the configuration; None: there is no webhook.
    """
    texts = config_texts(config)
    probe = ["gate-probe", "--attached", f"{ETC}/gate"]
    found = [
        _deployment(
            ADMITTER_ACCOUNT,
            2,
            stamp(texts),
            _pod(
                settings,
                ["admitter", "--config", f"{ETC}/admitter.yaml"],
                {"account": ADMITTER_ACCOUNT, "memory": "100Mi", "port": ADMITTER_PORT},
            ),
        ),
        _deployment(
            PROBE_ACCOUNT,
            1,
            stamp(texts),
            _pod(
                settings,
                [*probe, "--every", "60", "--listen", f"0.0.0.0:{PROBE_PORT}", "--kubeconfig", f"{ETC}/kubeconfig"],
                {"account": PROBE_ACCOUNT, "memory": "100Mi", "port": PROBE_PORT},
                [("gate", {"configMap": {"name": GATE_CONFIG}}, f"{ETC}/gate")],
            ),
        ),
    ]
    found += [_priority(), _one_at_a_time(ADMITTER_ACCOUNT)]
    if webhook_reads is None:
        return found
    command = ["webhook", "--attached", f"{ETC}/attached", "--ca", f"{ETC}/webhook-ca", "--domain", settings.domain]
    pod = _pod(
        settings,
        [*command, "--listen", f"0.0.0.0:{WEBHOOK_PORT}"],
        {"account": "", "memory": "100Mi", "port": WEBHOOK_PORT},
        [
            ("attached", {"configMap": {"name": ATTACHED_CONFIG}}, f"{ETC}/attached"),
            ("ca", {"secret": {"secretName": WEBHOOK_CA, "defaultMode": 0o440}}, f"{ETC}/webhook-ca"),
        ],
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": WEBHOOK, "namespace": SYSTEM_NAMESPACE},
        "spec": {"selector": {APP: WEBHOOK}, "ports": [{"port": 443, "targetPort": WEBHOOK_PORT, "protocol": "TCP"}]},
    }
    return [*found, _deployment(WEBHOOK, 2, stamp([*texts, *webhook_reads]), pod), service, _one_at_a_time(WEBHOOK)]


def daemon_set(settings: Settings, config: Mapping[str, str]) -> dict[str, Any]:
    """The node's part. It needs the devices of GPUs and the kernel log, so it is privileged; and it sees who uses a
    GPU, so it sees the processes of the host."""
    mounts = [
        ("config", {"configMap": {"name": CONFIG}}, ETC, True),
        ("token", _token(), TOKENS, True),
        ("state", {"hostPath": {"path": STATE, "type": "DirectoryOrCreate"}}, STATE, False),
        ("leave", {"hostPath": {"path": _LEAVE, "type": "DirectoryOrCreate"}}, _LEAVE, False),
        ("machine-id", {"hostPath": {"path": "/etc/machine-id", "type": "File"}}, "/etc/machine-id", True),
        ("dev", {"hostPath": {"path": "/dev"}}, "/dev", False),
        ("driver", {"hostPath": {"path": settings.driver_root, "type": "DirectoryOrCreate"}}, "/driver", True),
        ("run", {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}, "/run/gpu-burnin", False),
        # There when the agent starts, or its linker never looks there: node/contained.py links the driver's libraries.
        ("links", {"emptyDir": {"sizeLimit": "1Mi"}}, _LINKS, False),
        ("tmp", {"emptyDir": {"sizeLimit": "256Mi"}}, "/tmp", False),
    ]
    if settings.ssh_host_keys:
        mounts.append(("ssh", {"hostPath": {"path": SSH, "type": "Directory"}}, SSH, True))
    container = {
        "name": "agent",
        "image": settings.image,
        "command": ["gpu-burnin"],
        "args": ["watch", "--config", f"{ETC}/agent.yaml", "--contained", "--node-name", f"$({NODE_VARIABLE})"],
        "env": [
            {"name": NODE_VARIABLE, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LD_LIBRARY_PATH", "value": _LINKS},
        ],
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "50m", "memory": "60Mi"}},
        "volumeMounts": [
            {"name": n, "mountPath": path, "readOnly": ro, **_COMES_LATE.get(n, {})} for n, _, path, ro in mounts
        ],
    }
    free = [{"key": key, "operator": "NotIn", "values": [*values]} for key, values in _PAUSED.items()]
    terms = _terms(settings, "In")
    # All of a term has to hold: the DaemonSet takes its pod away while the driver is to be left alone.
    there = {
        "nodeSelectorTerms": [{**one, "matchExpressions": [*one.get("matchExpressions", []), *free]} for one in terms]
    }
    spec = {
        "serviceAccountName": AGENT_ACCOUNT,
        "automountServiceAccountToken": False,
        "hostPID": True,
        "enableServiceLinks": False,
        "priorityClassName": PRIORITY,
        "terminationGracePeriodSeconds": 30,
        # It has to be on a node that nobody else may be on yet.
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": there}},
        "containers": [container],
        "volumes": [{"name": n, **source} for n, source, _, _ in mounts],
    }
    labels = {APP: AGENT_ACCOUNT}
    annotations = {STAMP: stamp(config_texts(config))}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": AGENT_ACCOUNT, "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "selector": {"matchLabels": labels},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
            "template": {"metadata": {"labels": {**labels, **MANAGED_BY}, "annotations": annotations}, "spec": spec},
        },
    }


def _terms(settings: Settings, operator: str) -> list[dict[str, Any]]:
    """A term of the label and one of each name; with NotIn each is of the Nodes that are not so."""
    gpu_nodes = settings.gpu_nodes
    terms: list[dict[str, Any]] = []
    if gpu_nodes.label:
        wanted = {"key": gpu_nodes.label, "operator": operator, "values": [gpu_nodes.value]}
        terms.append({"matchExpressions": [wanted]})
    for name in gpu_nodes.names:
        terms.append({"matchFields": [{"key": "metadata.name", "operator": operator, "values": [name]}]})
    return terms


def _elsewhere(settings: Settings) -> list[dict[str, Any]]:
    """Nodes that are no GPU Nodes, where there are any: root on a GPU node has the tokens of the pods on it."""
    return [{"weight": 100, "preference": one} for one in _terms(settings, "NotIn")]


def _priority() -> dict[str, Any]:
    """Of its own: some managed clusters keep those of the system to their own namespaces."""
    return {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": PRIORITY},
        "value": _PRIORITY,
        "globalDefault": False,
        "preemptionPolicy": "Never",
        "description": "Muster's pods: first in the queue, the last that a node in need ends, and no pod is ended for "
        "them.",
    }


def _one_at_a_time(name: str) -> dict[str, Any]:
    """Who drains nodes leaves one of two; a pod that does not work holds nobody up."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": {APP: name}},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _token() -> dict[str, Any]:
    ca = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    token = {"serviceAccountToken": {"path": "token", "expirationSeconds": _TOKEN_S}}
    return {"projected": {"sources": [token, ca], "defaultMode": 0o440}}


def _pod(
    settings: Settings,
    arguments: Sequence[str],
    of: Mapping[str, Any],
    more: Sequence[tuple[str, Mapping[str, Any], str]] = (),
) -> dict[str, Any]:
    """One container, `of` an account (none: it talks to no API), with these volumes besides its configuration."""
    volumes = [*more]
    if of["account"]:
        volumes += [("config", {"configMap": {"name": CONFIG}}, ETC), ("token", _token(), TOKENS)]
    container: dict[str, Any] = {
        "name": "muster",
        "image": settings.image,
        # The image starts nothing by itself.
        "command": ["muster"],
        "args": [*arguments],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"requests": {"cpu": "50m", "memory": of["memory"]}, "limits": {"memory": "256Mi"}},
        "volumeMounts": [{"name": n, "mountPath": path, "readOnly": True} for n, _, path in volumes],
    }
    if "port" in of:
        scheme = "HTTPS" if of["port"] == WEBHOOK_PORT else "HTTP"
        container["ports"] = [{"name": scheme.lower(), "containerPort": of["port"], "protocol": "TCP"}]
        check = {"httpGet": {"path": "/healthz", "port": of["port"], "scheme": scheme}}
        container["livenessProbe"] = {**check, "periodSeconds": 30, "failureThreshold": 4}
        if of["port"] == WEBHOOK_PORT:
            container["readinessProbe"] = {**check, "periodSeconds": 5}
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **({"serviceAccountName": of["account"]} if of["account"] else {}),
        "priorityClassName": PRIORITY,
        "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": _elsewhere(settings)}},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        # Where all nodes are GPU Nodes it has to start on one that waits for it.
        "tolerations": [{"key": settings.names.preflight, "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
        "volumes": [{"name": n, **source} for n, source, _ in volumes],
    }


def _deployment(name: str, replicas: int, stamped: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    labels = {APP: name}
    apart = {
        "weight": 100,
        "podAffinityTerm": {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}},
    }
    # Preferred: in a cluster with one node the second one starts all the same.
    others = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [apart]}}
    affinity = {**pod["affinity"], **(others if replicas > 1 else {})}
    # A change of the configuration is another pod: nothing here rereads it.
    annotations = {STAMP: stamped}
    template = {
        "metadata": {"labels": {**labels, **MANAGED_BY}, "annotations": annotations},
        "spec": {**pod, "affinity": affinity},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": SYSTEM_NAMESPACE},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template},
    }


def config_texts(config: Mapping[str, str]) -> list[str]:
    """Its texts in the order of their keys."""
    return [config[key] for key in sorted(config)]


def stamp(texts: Sequence[str]) -> str:
    """Of what a pod reads at its start: other texts are another pod, since nothing is read again."""
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
