"""What makes a cluster an attached one: its mode, which Nodes are GPU Nodes, and the names of what stands in it.

Attached means that others built the control plane: the gate is made of objects that a cluster admin can delete.
Standard library only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gpu_burnin.api.names import NO_SCHEDULE, SYSTEM_NAMESPACE, Names
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json

ADMITTER_ACCOUNT, AGENT_ACCOUNT, PROVISIONER_ACCOUNT, PROBE_ACCOUNT = (
    "muster-admitter",
    "muster-node",
    "muster-provisioner",
    "muster-gate-probe",
)
# What is attached, how and by which version: for people, `muster status` and the probe.
ATTACHED_CONFIG, ATTACHED_KEY, GATE_CONFIG, GATE_KEY = "muster-attached", "attached.json", "muster-gate", "gate.json"
# Objects of the API have no name that ends as those on the API servers' disks do.
POLICY_SUFFIX = ".attached"
GATE = f"muster-node-gate{POLICY_SUFFIX}"
# The event of the probe, which moves as long as the gate is open.
GATE_EVENT_NAME = "muster-gate"
# Its reasons: the gate is open; it holds, and the webhook adds no taint, or its authority ends.
GATE_OPEN, WEBHOOK_AWAY, AUTHORITY_ENDS = "MusterGateOpen", "MusterGateWebhookAway", "MusterGateAuthorityEnds"
WEBHOOK, WEBHOOK_CA, WEBHOOK_PATH = "muster-preflight-taint", "muster-webhook-ca", "/taint"
# In the token of a pod: the node that it was made for (ServiceAccountTokenPodNodeInfo).
NODE_CLAIM = "authentication.kubernetes.io/node-name"
# A NodeEnrolment that no token of a machine image belongs to: the node's own agent made it.
ENROLLED_BY_AGENT = "attach"
LABEL = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
NODE = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class Mode(StrEnum):
    """How Muster stands to its cluster. `BUILT`: the gate is on the API servers' disks."""

    BUILT = "built"
    OBSERVING = "observing"
    ENFORCING = "enforcing"


@dataclass(frozen=True)
class GpuNodes:
    """Which Nodes are GPU Nodes, known when they are created: one label with its value, or names, or both."""

    label: str = ""
    value: str = ""
    names: tuple[str, ...] = ()

    def matches(self, node: Mapping[str, Any]) -> bool:
        """Whether a Node is one."""
        metadata = node.get("metadata") or {}
        labelled = bool(self.label) and (metadata.get("labels") or {}).get(self.label) == self.value
        return labelled or metadata.get("name") in self.names

    def expression(self, node: str = "object") -> str:
        """The same in CEL, of a variable that holds a Node. Nothing in it can end a text: see parse_gpu_nodes."""
        parts = []
        if self.label:
            labels = f"{node}.metadata.labels"
            parts.append(f"(has({labels}) && '{self.label}' in {labels} && {labels}['{self.label}'] == '{self.value}')")
        if self.names:
            parts.append(f"{node}.metadata.name in [{', '.join(repr(name) for name in self.names)}]")
        return f"({' || '.join(parts)})"

    @property
    def words(self) -> str:
        """For people."""
        label = [f"{self.label}={self.value}"] if self.label else []
        return " or ".join([*label, *([", ".join(self.names)] if self.names else [])])


@dataclass(frozen=True)
class Attached:
    """What stands in the ConfigMap. `taints_by` is webhook or policy."""

    mode: Mode
    gpu_nodes: GpuNodes
    version: str
    taints_by: str = "webhook"
    cluster: str = ""

    def data(self) -> dict[str, str]:
        """The data of the ConfigMap."""
        return {ATTACHED_KEY: json.dumps(to_json(self), separators=(",", ":"), sort_keys=True)}


def parse_gpu_nodes(texts: tuple[str, ...]) -> GpuNodes:
    """Out of LABEL=VALUE and names of Nodes. Raises GpuBurninError."""
    labels = [text.partition("=") for text in texts if "=" in text]
    names = tuple(dict.fromkeys(name for text in texts if "=" not in text for name in text.split(",")))
    if len(labels) > 1:
        raise GpuBurninError(
            "--gpu-nodes names two labels; give one label that all GPU Nodes have, and names for others"
        )
    for name in names:
        if not NODE.fullmatch(name):
            raise GpuBurninError(f"--gpu-nodes {name!r} is no name of a Node; give LABEL=VALUE, or a name")
    for label, _, value in labels:
        if not LABEL.fullmatch(label) or not VALUE.fullmatch(value):
            raise GpuBurninError(
                f"--gpu-nodes {label}={value} is no label; give LABEL=VALUE as `kubectl get -l` takes it"
            )
    if not texts:
        raise GpuBurninError("which Nodes have GPUs is for you to say; give --gpu-nodes LABEL=VALUE, or their names")
    return GpuNodes(*((labels[0][0], labels[0][2]) if labels else ("", "")), names)


def parse_attached(document: Mapping[str, Any]) -> Attached:
    """Out of the ConfigMap. Raises GpuBurninError."""
    text = (document.get("data") or {}).get(ATTACHED_KEY, "")
    try:
        return from_json(Attached, parse_json(text), tolerant=True)
    except (ValueError, Misfit) as error:
        raise GpuBurninError(
            f"ConfigMap {SYSTEM_NAMESPACE}/{ATTACHED_CONFIG} cannot be read ({error}); run `muster attach` again"
        ) from error


def attached_path() -> str:
    """Where the ConfigMap is."""
    return f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/configmaps/{ATTACHED_CONFIG}"


def account_user(account: str) -> str:
    """The API user of a ServiceAccount of ours."""
    return f"system:serviceaccount:{SYSTEM_NAMESPACE}:{account}"


def preflight_taint(names: Names) -> dict[str, str]:
    """The one taint that attaching puts on a new GPU Node. NoExecute would end the driver's own pods."""
    return {"key": names.preflight, "effect": NO_SCHEDULE}
