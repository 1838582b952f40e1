"""The probe's numbers for node_exporter's textfile collector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_burnin.admission.gate_probe.ask import Gate
from gpu_burnin.admission.gate_probe.jobs import Jobs
from gpu_burnin.admission.gate_probe.state import State
from gpu_burnin.system.exposition import Family, Sample, page

# Fields of a queue.
_QUEUE_NUMBERS = {
    "pending_jobs": "Jobs of a team that wait.",
    "quota_gpus": "GPUs that are a team's own.",
    "used_gpus": "GPUs that a team's jobs have.",
    "borrowed_gpus": "GPUs of others that a team's jobs have.",
}


def text(gate: Gate | None, leases: Mapping[str, float], state: State, jobs: Jobs | None = None) -> str:
    """The page. Without an answer (`gate` None) there is no number that could be taken for one, only an old time."""
    of_jobs = Jobs() if jobs is None else jobs
    renewed = {**leases, **of_jobs.leases}
    return page("muster_", (*_gate(gate, state), *_leases(renewed), *_audit(state), *_jobs(of_jobs)))


def _gate(gate: Gate | None, state: State) -> Iterator[Family]:
    if gate is not None:
        yield _gauge("gate_refused", "1 when a node without the taint was refused by the gate.", ({}, gate.refused))
        yield _gauge(
            "gate_policy_hash",
            "Hash of the policies that the API server has loaded.",
            ({"hash": gate.loaded}, 1 if gate.loaded else None),
        )
        yield _gauge(
            "gate_policy_expected",
            "Hash of the policies that were installed.",
            ({"hash": gate.expected}, 1 if gate.expected else None),
        )
        yield _gauge(
            "gate_webhooks_right",
            "1 when the webhooks that a plugin has loaded are those that were installed.",
            *(({"plugin": plugin}, right) for plugin, right in gate.webhooks.items()),
        )
    yield _gauge(
        "gate_checked_timestamp_seconds", "When the API server last gave an answer.", ({}, round(state.gate_checked_s))
    )


def _leases(leases: Mapping[str, float]) -> Iterator[Family]:
    yield _gauge(
        "lease_renewed_timestamp_seconds",
        "When the leader of a controller last said that it leads.",
        *(({"lease": name}, round(renewed_s)) for name, renewed_s in leases.items()),
    )


def _audit(state: State) -> Iterator[Family]:
    yield _counter(
        "audit_impersonations_total",
        "Requests in the name of somebody whom the gate trusts.",
        *(({"user": user}, count) for user, count in state.impersonations.items()),
    )
    yield _counter(
        "audit_break_glass_total",
        "Requests of the break-glass identity (system:masters).",
        ({}, state.break_glass),
    )
    yield _counter(
        "audit_gaps_total", "Parts of the audit log that were gone or unreadable, uncounted.", ({}, state.gaps)
    )
    yield _gauge(
        "audit_read_timestamp_seconds", "When the audit log was last read to its end.", ({}, round(state.audit_read_s))
    )


def _jobs(jobs: Jobs) -> Iterator[Family]:
    yield _gauge(
        "jobs_service_ready",
        "1 when a service of teams' jobs answers on this host that it is ready.",
        *(({"service": name}, ready) for name, ready in jobs.ready.items()),
    )
    for name, words in _QUEUE_NUMBERS.items():
        samples = (({"queue": queue.name}, float(getattr(queue, name))) for queue in jobs.queues)
        yield _gauge(f"queue_{name}", words, *samples)


def _gauge(name: str, words: str, *samples: Sample) -> Family:
    return Family(name, "gauge", words, samples)


def _counter(name: str, words: str, *samples: Sample) -> Family:
    return Family(name, "counter", words, samples)
