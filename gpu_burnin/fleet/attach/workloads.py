"""The pods of an attached cluster: admitter, webhook, probe, and the node's part. Pure."""

from __future__ import annotations

import hashlib
import json
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
WEBHOOK_PORT = 9443
_USER = 65532
STATE, SSH = "/var/lib/gpu-burnin", "/etc/ssh"
# Where work on the node reads that it is asked to leave.
_LEAVE = "/run/muster"
_LIBRARIES = "/run/gpu-burnin/driver"
# kubelet renews the file when 80 % of the time is over.
_TOKEN_S = 3600
_APP = "app.kubernetes.io/name"


def deployments(settings: Settings, config: Mapping[str, str], *, webhook: bool) -> list[dict[str, Any]]:
    """Of the control side: nothing runs as root or may write its root file system."""
    stamp = _hash(config)
    found = [
        _deployment(
            ADMITTER_ACCOUNT,
            2,
            stamp,
            _pod(
                settings,
                ["admitter", "--config", f"{ETC}/admitter.yaml"],
                {"account": ADMITTER_ACCOUNT, "memory": "100Mi", "port": 10270},
            ),
        ),
        _deployment(
            PROBE_ACCOUNT,
            1,
            stamp,
            _pod(
                settings,
                ["gate-probe", "--attached", f"{ETC}/gate", "--every", "60", "--kubeconfig", f"{ETC}/kubeconfig"],
                {"account": PROBE_ACCOUNT, "memory": "100Mi"},
                [("gate", {"configMap": {"name": GATE_CONFIG}}, f"{ETC}/gate")],
            ),
        ),
    ]
    if not webhook:
        return found
    command = ["webhook", "--attached", f"{ETC}/attached", "--ca", f"{ETC}/webhook-ca"]
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
        "spec": {"selector": {_APP: WEBHOOK}, "ports": [{"port": 443, "targetPort": WEBHOOK_PORT, "protocol": "TCP"}]},
    }
    return [*found, _deployment(WEBHOOK, 2, stamp, pod), service]


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
        ("driver", {"hostPath": {"path": settings.driver_root}}, "/driver", True),
        ("run", {"emptyDir": {"medium": "Memory", "sizeLimit": "64Mi"}}, "/run/gpu-burnin", False),
        # A mount of its own: the dynamic linker passes over a folder that was not there when the agent began.
        ("libraries", {"emptyDir": {"sizeLimit": "1Mi"}}, _LIBRARIES, False),
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
            {"name": "LD_LIBRARY_PATH", "value": _LIBRARIES},
        ],
        "securityContext": {"privileged": True, "runAsUser": 0, "readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "50m", "memory": "60Mi"}},
        "volumeMounts": [{"name": n, "mountPath": path, "readOnly": ro} for n, _, path, ro in mounts],
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
    labels = {_APP: AGENT_ACCOUNT}
    annotations = {"checksum/config": _hash(config)}
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
        container["ports"] = [{"containerPort": of["port"], "protocol": "TCP"}]
        scheme = "HTTPS" if of["port"] == WEBHOOK_PORT else "HTTP"
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


def _deployment(name: str, replicas: int, stamp: str, pod: Mapping[str, Any]) -> dict[str, Any]:
    labels = {_APP: name}
    apart = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    # A change of the configuration is another pod: nothing here rereads it.
    annotations = {"checksum/config": stamp}
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


def _hash(config: Mapping[str, str]) -> str:
    return hashlib.sha256(json.dumps(dict(config), sort_keys=True).encode()).hexdigest()[:16]
