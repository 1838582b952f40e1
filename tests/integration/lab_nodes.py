"""The lab's nodes as the fleet has them: ledger, label, taints, and pods with a GPU that show what a node takes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from gpu_burnin.api.names import READY_LABEL
from gpu_burnin.system.clock import rfc3339

from .fleet import Done, Fleet, wait_until
from .prometheus import query

POD = """
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  annotations: {annotations}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  nodeSelector: {{{ready}: "true", kubernetes.io/hostname: {node}}}
  containers:
    - name: job
      image: lab.muster.dev/tool:1
      imagePullPolicy: Never
      args: [serve, ":8080"]
      resources: {{limits: {{nvidia.com/gpu: "{gpus}"}}}}
"""


def admission(fleet: Fleet, node: str) -> dict[str, Any]:
    """The ledger of a node."""
    found: dict[str, Any] = fleet.get("nodeadmission", node)
    return found


def state(fleet: Fleet, node: str) -> str:
    """What its ledger says of it."""
    return str(admission(fleet, node)["status"].get("state", ""))


def transitions(fleet: Fleet, node: str, since: str) -> list[dict[str, str]]:
    """How its state changed since a time."""
    return [change for change in admission(fleet, node)["status"].get("transitions", []) if change["at"] >= since]


def is_in(fleet: Fleet, node: str) -> bool:
    """Whether the node takes work: label, no taint of ours, and its ledger says so."""
    labels = fleet.get("node", node)["metadata"]["labels"]
    return labels.get(READY_LABEL) == "true" and not fleet.node_taints(node) and state(fleet, node) == "ready"


def back(fleet: Fleet, node: str, timeout_s: float = 240) -> None:
    """Wait until it takes work."""
    wait_until(f"{node} to take work by itself", lambda: is_in(fleet, node), timeout_s=timeout_s)


def now() -> str:
    """As the ledger writes times."""
    return rfc3339(datetime.now(UTC))


@contextmanager
def job(fleet: Fleet, name: str, node: str, annotations: Mapping[str, str] | None = None) -> Iterator[None]:
    """A running pod with a GPU on a node."""
    made = create(fleet, name, node, annotations)
    assert made.rc == 0, made.err
    try:
        wait_until(f"pod {name} to run", lambda: phase(fleet, name) == "Running", timeout_s=60)
        yield
    finally:
        fleet.kubectl("delete", "pod", name, "--now", "--ignore-not-found")


def create(fleet: Fleet, name: str, node: str, annotations: Mapping[str, str] | None = None) -> Done:
    """Ask for a pod with a GPU on a node."""
    words = {"name": name, "node": node, "ready": READY_LABEL, "gpus": 1, "annotations": json.dumps(annotations or {})}
    return fleet.kubectl("create", "-f", "-", stdin=POD.format(**words))


def phase(fleet: Fleet, pod: str) -> str:
    """Of a pod; of none `gone`."""
    done = fleet.kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase}")
    return done.out if done.rc == 0 else "gone"


def back_in_this_boot(fleet: Fleet, node: str, since: str) -> None:
    """It was out before it came back: no pod could start on the old boot's word."""
    boot = fleet.must(node, "cat /proc/sys/kernel/random/boot_id").strip()
    wait_until(
        f"{node} to be admitted in its new boot",
        lambda: (admission(fleet, node)["status"].get("accepted") or {}).get("bootID") == boot,
        timeout_s=360,
    )
    back(fleet, node)
    changes = transitions(fleet, node, since)
    assert [change["to"] for change in changes][-1] == "ready" and len(changes) >= 2, changes
    assert fleet.get("node", node)["status"]["nodeInfo"]["bootID"] == boot


def is_open(fleet: Fleet, node: str) -> bool:
    """Whether new pods may be placed on it."""
    labels = fleet.get("node", node)["metadata"]["labels"]
    return labels.get(READY_LABEL) == "true" and "muster.dev/preflight:NoSchedule" not in fleet.node_taints(node)


def held(fleet: Fleet, node: str) -> bool:
    """Whether its new burn-in has found its faults, and everybody who asks is told of them."""
    told = [f'gpu_burnin_reasons{{instance="{node}"}}', "muster:burnin_reason_nodes"]
    return state(fleet, node) != "ready" and all(query(fleet, one) for one in told)
