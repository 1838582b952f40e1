"""The ledger of a fleet before its etcd was restored, and as the snapshot has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpu_burnin.api.record import Ask, Identity, NodeAdmission, Spec, State, Status

KEY = "ssh-ed25519 AAAA"
ANN = Ask("ann", "smoke", "2026-11-21T11:30:00Z", "2026-11-28T00:00:00Z")
READY = Status(State.READY, code="PASS", host_key=KEY, highest_sequence=5, highest_report_sha256="5" * 64)
FAULT = replace(READY, state=State.QUARANTINED, code="XID_FATAL", highest_sequence=9, highest_report_sha256="9" * 64)


def node(name: str, status: Status = READY, **asks: Any) -> NodeAdmission:
    """Its entry with what people ask of it."""
    return NodeAdmission(name, Spec(Identity(KEY, f"machine of {name}"), **asks), status)


def by_name(*records: NodeAdmission) -> dict[str, NodeAdmission]:
    """As a restore compares them."""
    return {record.name: record for record in records}


THEN = by_name(node("gpu-1"), node("gpu-2"), node("gpu-3"), node("gpu-5", hold=ANN), node("gpu-9"))
BEFORE = by_name(
    node("gpu-1"), node("gpu-2", FAULT), node("gpu-3", quarantine=ANN), node("gpu-4", hold=ANN), node("gpu-5")
)
