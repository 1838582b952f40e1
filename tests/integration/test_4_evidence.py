"""Evidence that must not admit a node: replayed, of another node or boot, changed, signed by another key.

Only here: forged evidence comes by a kubelet's own credential, against the admitter as it runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from .fleet import XID_79, Fleet, wait_until

TAINT = "muster.dev/preflight"
VERDICT = "muster.node-restriction.kubernetes.io/verdict"


@dataclass(frozen=True)
class Victim:
    """A node whose admission is attacked, and the evidence it had."""

    name: str
    annotation: str


def annotation(fleet: Fleet, node: str) -> str:
    return str(fleet.get("node", node)["metadata"]["annotations"]["muster.dev/evidence"])


def publish(fleet: Fleet, node: str, value: str) -> None:
    """Write an annotation the way the node would: with its kubelet's credential."""
    patch = json.dumps({"metadata": {"annotations": {"muster.dev/evidence": value}}})
    done = fleet.kubelet_kubectl(node, "patch", "node", node, "-p", patch, server="api-1")
    assert done.rc == 0, done.err


def gated(fleet: Fleet, node: str) -> bool:
    return f"{TAINT}:NoSchedule" in fleet.node_taints(node)


@contextmanager
def without_its_agent(fleet: Fleet, node: str) -> Iterator[None]:
    """The node as its attacker has it: nobody there puts its own word in the place of a forged one."""
    fleet.must(node, "systemctl stop gpu-burnin-watch")
    try:
        yield
    finally:
        fleet.must(node, "systemctl start gpu-burnin-watch")


@pytest.fixture
def victim(fleet: Fleet) -> Iterator[Victim]:
    """gpu-2, admitted; back by itself afterwards, since its agent puts its own evidence back."""
    wait_until("gpu-2 to take work", lambda: not gated(fleet, "gpu-2"), timeout_s=120)
    own = annotation(fleet, "gpu-2")
    with without_its_agent(fleet, "gpu-2"):
        yield Victim("gpu-2", own)
    wait_until("gpu-2 to be let in again", lambda: not gated(fleet, "gpu-2"), timeout_s=120)


def refused(fleet: Fleet, node: str, *reasons: str) -> None:
    """The admitter has seen it, keeps the node from work, and says why."""
    told = f"{node} to be held for {' or '.join(reasons)}"
    wait_until(told, lambda: gated(fleet, node) and reason(fleet, node) in reasons, timeout_s=60)


def reason(fleet: Fleet, node: str) -> str:
    conditions = {c["type"]: c for c in fleet.get("node", node)["status"]["conditions"]}
    return str(conditions["GPUVerified"]["reason"])


def test_a_changed_byte_is_refused(fleet: Fleet, victim: Victim) -> None:
    assert '\\"verdict\\":\\"PASS\\"' in victim.annotation or "PASS" in victim.annotation
    publish(fleet, victim.name, victim.annotation.replace("quick", "quicK", 1))
    refused(fleet, victim.name, "EVIDENCE_SIGNATURE", "EVIDENCE_MALFORMED")


def test_evidence_of_another_node_is_refused(fleet: Fleet, victim: Victim) -> None:
    publish(fleet, victim.name, annotation(fleet, "gpu-1"))
    refused(fleet, victim.name, "EVIDENCE_SIGNATURE", "EVIDENCE_NODE")


def _signed_on(fleet: Fleet, node: str, key: str, **changes: object) -> str:
    """The node's latest statement with changes, signed by a key that lies on it."""
    program = f"""
import json, pathlib, subprocess
from gpu_burnin.api import evidence
from gpu_burnin.system.canonical import canonical_json
directory = pathlib.Path("/var/lib/gpu-burnin/latest").resolve()
statement = json.loads((directory / "evidence.json").read_text())
statement.update(json.loads({json.dumps(json.dumps(changes))}))
path = pathlib.Path("/run/forged.json")
path.write_bytes(canonical_json(statement))
path.with_suffix(".json.sig").unlink(missing_ok=True)
sign = ["ssh-keygen", "-q", "-Y", "sign", "-n", "gpu-burnin", "-f", {key!r}, str(path)]
subprocess.run(sign, check=True, capture_output=True)
hardware = json.loads((directory / "hardware.json").read_text())
print(evidence.encode_annotation(path.read_bytes(), path.with_suffix(".json.sig").read_text(), hardware))
"""
    done = fleet.ssh(node, "/opt/gpu-burnin/current/bin/python -", stdin=program)
    assert done.rc == 0, done.err
    return done.out.strip()


def test_a_key_that_is_not_the_hosts_is_refused(fleet: Fleet, victim: Victim) -> None:
    fleet.must(victim.name, "rm -f /run/other; ssh-keygen -q -t ed25519 -N '' -f /run/other")
    publish(fleet, victim.name, _signed_on(fleet, victim.name, "/run/other"))
    refused(fleet, victim.name, "EVIDENCE_SIGNATURE")


def test_evidence_of_another_boot_is_refused(fleet: Fleet, victim: Victim) -> None:
    other = "00000000-0000-4000-8000-000000000000"
    publish(fleet, victim.name, _signed_on(fleet, victim.name, "/etc/ssh/ssh_host_ed25519_key", boot_id=other))
    refused(fleet, victim.name, "EVIDENCE_BOOT", "REBOOTED")


def test_an_old_pass_cannot_replace_a_newer_fail(fleet: Fleet, victim: Victim) -> None:
    fleet.must("gpu-2", XID_79)
    assert fleet.ssh("gpu-2", "gpu-burnin run").rc == 1
    fleet.must("gpu-2", "gpu-burnin publish")
    refused(fleet, "gpu-2", "XID_FATAL")
    sequence = fleet.get("nodeadmission", "gpu-2")["status"]["highestSequence"]
    publish(fleet, "gpu-2", victim.annotation)
    refused(fleet, "gpu-2", "EVIDENCE_REPLAYED")
    assert fleet.get("nodeadmission", "gpu-2")["status"]["highestSequence"] == sequence
    # Nobody is let in without an agent.
    fleet.must("gpu-2", "sed -i '/ Xid /d' /run/lab/kmsg; systemctl start gpu-burnin-watch")
    fleet.must("gpu-2", "gpu-burnin run && gpu-burnin publish")
    wait_until("gpu-2 to be let in again", lambda: not gated(fleet, "gpu-2"), timeout_s=60)
    assert fleet.get("node", "gpu-2")["metadata"]["labels"][VERDICT] == "pass"
