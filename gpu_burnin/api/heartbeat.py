"""The heartbeat of a node's agent: a small object of the cluster, named as the node, that the agent alone renews.

Not the Node: each of its writes reaches all who watch Nodes. Nor a Lease: a node may write no other than kubelet's.
Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from gpu_burnin.api.names import HEARTBEAT_KIND, HEARTBEAT_PLURAL, Names
from gpu_burnin.system.codec import to_json
from gpu_burnin.types import JSON_NAME

RENEW_S = 60.0
# Agents that began together do not stay together.
RENEW_JITTER = 0.1


@dataclass(frozen=True)
class Heartbeat:
    """The spec of an AgentHeartbeat: the boot, the start of the agent's process, and when it was renewed, RFC 3339 UTC.

    The times are the node's clock, for people: a reader sees by its own clock that they change.
    """

    boot_id: str = field(metadata={JSON_NAME: "bootID"})
    started_at: str = field(metadata={JSON_NAME: "startedAt"})
    renew_time: str = field(metadata={JSON_NAME: "renewTime"})


def heartbeats_path(names: Names, name: str = "") -> str:
    """Where the AgentHeartbeats are, or one of them."""
    base = f"/apis/{names.api_version}/{HEARTBEAT_PLURAL}"
    return f"{base}/{quote(name, safe='')}" if name else base


def heartbeat_document(name: str, heartbeat: Heartbeat, names: Names) -> dict[str, Any]:
    """The whole object of one node."""
    return {
        "apiVersion": names.api_version,
        "kind": HEARTBEAT_KIND,
        "metadata": {"name": name},
        "spec": to_json(heartbeat),
    }
