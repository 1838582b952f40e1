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
STAMP = "checksum/config"


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
    return [*found, _deployment(WEBHOOK, 2, stamp([*texts, *webhook_reads]), pod), service]


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
        "args": ["watch", "--config", f"{ETC}/agent.yaml", "--contained", "--node-name", "$(NODE_NAME)"],
        "env": [
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "LD_LIBRARY_PATH", "value": _LINKS},
        ],
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "50m", "memory": "60Mi"}},
        "volumeMounts": [
            {"name": n, "mountPath": path, "readOnly": ro, **_COMES_LATE.get(n, {})} for n, _, path, ro in mounts
        ],
    }
    spec = {
        "serviceAccountName": AGENT_ACCOUNT,
        "automountServiceAccountToken": False,
        "hostPID": True,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 30,
        # It has to be on a node that nobody else may be on yet.
        "tolerations": [{"operator": "Exists"}],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": _terms(settings)}},
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


def _terms(settings: Settings) -> dict[str, Any]:
    gpu_nodes = settings.gpu_nodes
    terms: list[dict[str, Any]] = []
    if gpu_nodes.label:
        wanted = {"key": gpu_nodes.label, "operator": "In", "values": [gpu_nodes.value]}
        terms.append({"matchExpressions": [wanted]})
    for name in gpu_nodes.names:
        terms.append({"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]})
    return {"nodeSelectorTerms": terms}


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
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    # A change of the configuration is another pod: nothing here rereads it.
    annotations = {STAMP: stamped}
    template = {
        "metadata": {"labels": {**labels, **MANAGED_BY}, "annotations": annotations},
        "spec": {**pod, "topologySpreadConstraints": [apart]},
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
