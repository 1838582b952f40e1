"""A host that signs evidence, and nodes as kubelet registers them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpu_burnin.api.evidence import Statement, encode_annotation
from gpu_burnin.node.signing import sign
from gpu_burnin.types import Verdict
from tests.support.fake_api import FakeApi
from tests.support.report_helpers import HARDWARE, HARDWARE_SHA256

NOW = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
BOOT = "0b1c2d3e-0000-4000-8000-000000000001"
BOOT2 = "0b1c2d3e-0000-4000-8000-000000000002"
MACHINE = "a" * 32
STATEMENT = Statement(
    node="gpu-1",
    machine_id=MACHINE,
    boot_id=BOOT,
    report_sha256="1" * 64,
    verdict=Verdict.PASS,
    level="quick",
    plan_sha256="2" * 64,
    hardware_sha256=HARDWARE_SHA256,
    simulated=False,
    sequence=5,
    finished_at="2026-11-21T11:00:00Z",
)


def make_node(name: str = "gpu-1", *, boot: str = BOOT, ready: str = "True", **metadata: Any) -> dict[str, Any]:
    """A Node as it is right after registration, with both preflight taints."""
    return {
        "metadata": {"name": name, "resourceVersion": "1", "labels": {"kubernetes.io/hostname": name}, **metadata},
        "spec": {
            "taints": [
                {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
                {"key": "muster.dev/preflight", "effect": "NoSchedule"},
                {"key": "muster.dev/preflight", "effect": "NoExecute"},
            ]
        },
        "status": {
            "nodeInfo": {"bootID": boot, "machineID": MACHINE},
            "conditions": [
                {"type": "MemoryPressure", "status": "False"},
                {"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-21T11:00:00Z"},
            ],
        },
    }


@dataclass
class Signer:
    """A host with its own key, pinned in `known_hosts` under 10.0.0.1."""

    key: Path
    known_hosts: Path

    def annotation(self, **changes: Any) -> str:
        """The annotation of a statement signed by the host."""
        data = replace(STATEMENT, **changes).canonical()
        return encode_annotation(data, sign(data, self.key), HARDWARE)

    def publish(self, api: FakeApi, name: str = "gpu-1", **changes: Any) -> None:
        """What `gpu-burnin publish` does on the node."""
        node = api.nodes[name]
        annotations = node["metadata"].setdefault("annotations", {})
        annotations["muster.dev/evidence"] = self.annotation(**{"node": name, **changes})
        api.put_node(node)


def new_host_key(path: Path) -> str:
    """A host key made by ssh-keygen; its public line."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True)
    return Path(f"{path}.pub").read_text(encoding="utf-8")
