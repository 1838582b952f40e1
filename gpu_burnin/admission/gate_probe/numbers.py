"""The probe's numbers for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_burnin.admission.gate_probe.ask import Gate
from gpu_burnin.admission.gate_probe.state import State


def text(gate: Gate | None, leases: Mapping[str, float], state: State) -> str:
    """The page. Without an answer (`gate` None) there is no number that could be taken for one, only an old time."""
    return "\n".join((*_gate(gate, state), *_leases(leases), *_audit(state), ""))


def _gate(gate: Gate | None, state: State) -> Iterator[str]:
    if gate is not None:
        yield from _head("gate_refused", "gauge", "1 when a node without the taint was refused by the gate.")
        yield f"muster_gate_refused {int(gate.refused)}"
        yield from _head("gate_policy_hash", "gauge", "Hash of the policies that the API server has loaded.")
        if gate.loaded:
            yield f'muster_gate_policy_hash{{hash="{gate.loaded}"}} 1'
        yield from _head("gate_policy_expected", "gauge", "Hash of the policies that were installed.")
        yield f'muster_gate_policy_expected{{hash="{gate.expected}"}} 1'
    yield from _head("gate_checked_timestamp_seconds", "gauge", "When the API server last gave an answer.")
    yield f"muster_gate_checked_timestamp_seconds {state.gate_checked_s:.0f}"


def _leases(leases: Mapping[str, float]) -> Iterator[str]:
    yield from _head(
        "lease_renewed_timestamp_seconds", "gauge", "When the leader of a controller last said that it leads."
    )
    for name, renewed_s in leases.items():
        yield f'muster_lease_renewed_timestamp_seconds{{lease="{name}"}} {renewed_s:.0f}'


def _audit(state: State) -> Iterator[str]:
    yield from _head("audit_impersonations_total", "counter", "Requests in the name of somebody whom the gate trusts.")
    for user, count in state.impersonations.items():
        yield f'muster_audit_impersonations_total{{user="{user}"}} {count}'
    yield from _head("audit_break_glass_total", "counter", "Requests of the break-glass identity (system:masters).")
    yield f"muster_audit_break_glass_total {state.break_glass}"
    yield from _head("audit_gaps_total", "counter", "Parts of the audit log that were gone or unreadable, uncounted.")
    yield f"muster_audit_gaps_total {state.gaps}"
    yield from _head("audit_read_timestamp_seconds", "gauge", "When the audit log was last read to its end.")
    yield f"muster_audit_read_timestamp_seconds {state.audit_read_s:.0f}"


def _head(name: str, kind: str, words: str) -> tuple[str, str]:
    return f"# HELP muster_{name} {words}", f"# TYPE muster_{name} {kind}"
