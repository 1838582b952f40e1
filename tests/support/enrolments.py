"""An enrolment as a machine makes it, and the ledger's entry of its node."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_burnin.api.attached import ENROLLED_BY_AGENT
from gpu_burnin.api.enrolment import SIGNED_FOR, Claim, Enrolment, EnrolmentSpec
from gpu_burnin.api.record import Identity, NodeAdmission, Spec
from gpu_burnin.node.signing import own_public_key, sign

ENDS = "2099-11-28T09:00:00Z"
BOOT = "0b1c2d3e-0000-4000-8000-000000000000"
KEY, MACHINE = "ssh-ed25519 AAAA", "a" * 32
# What an agent claims that nobody has enrolled before.
CLAIM = Claim("gpu-1", ENROLLED_BY_AGENT, KEY, MACHINE, "b", "", "0" * 64)


def entry(name: str, **identity: object) -> NodeAdmission:
    """Of a node whose machine nobody has met."""
    made = Identity(addresses=("127.0.0.1",), pod_range="198.19.9.0/24")
    return NodeAdmission(name, Spec(replace(made, **identity)))  # type: ignore[arg-type]


def enrolled(key: Path, node: str = "gpu-1", machine_id: str = "1" * 32) -> Enrolment:
    """By the machine that has this host key."""
    claim = Claim(node, "abcdef", own_public_key(key), machine_id, BOOT, "", "0" * 64)
    signature = sign(claim.canonical(), key, SIGNED_FOR)
    return Enrolment(node, EnrolmentSpec("abcdef", ENDS, claim.canonical().decode(), signature))
