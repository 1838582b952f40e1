"""Alerts of what runs the jobs of teams."""

from __future__ import annotations

from .case import API, Case

_RUNNING = {'muster_gate_checked_timestamp_seconds{instance="api-1"}': "0+30x120"}
_READY = 'muster_jobs_service_ready{instance="api-1",service="kueue"}'
_RIGHT = 'muster_gate_webhooks_right{instance="api-1",plugin="MutatingAdmissionWebhook"}'


def _queue(pending: int, used: int) -> dict[str, str]:
    # Each API server's host tells the same; one that is behind is no news.
    return {
        'muster_queue_pending_jobs{instance="api-1",queue="vision"}': f"{pending}x120",
        'muster_queue_pending_jobs{instance="api-2",queue="vision"}': "0x120",
        'muster_queue_used_gpus{instance="api-1",queue="vision"}': f"{used}x120",
        'muster_queue_used_gpus{instance="api-1",queue="audio"}': "64x120",
    }


_LEADS = {'muster_scaler_leader{instance="api-1"}': "1x120", 'muster_scaler_leader{instance="api-2"}': "0x120"}
_HELD = 'muster_scaler_machines{instance="api-1",stage="held"}'

CASES = (
    Case(
        "MusterScalerNoLeader",
        {'muster_scaler_leader{instance="api-1"}': "0x120", 'muster_scaler_leader{instance="api-2"}': "0x120"},
        # Another one leads.
        _LEADS,
        "7m",
        "No scaler leads: no machine is switched on for jobs that wait, or off.",
        {},
    ),
    Case(
        "MusterMachineHeld",
        {**_LEADS, _HELD: "2x120"},
        {**_LEADS, _HELD: "0x120"},
        "7m",
        "2 machines are kept from the scaler, by a person or since they failed twice.",
        {},
    ),
    Case(
        "MusterJobsServiceDown",
        {**_RUNNING, _READY: "0x120"},
        # A restart, as of an upgrade.
        {**_RUNNING, _READY: "1x3 0x4 1x110"},
        "7m",
        "kueue on api-1 does not answer: its API server refuses the jobs of teams.",
        {**API, "service": "kueue"},
    ),
    # A probe that stopped says nothing of it.
    Case(
        "MusterJobsServiceDown",
        {**_RUNNING, _READY: "0x120"},
        {'muster_gate_checked_timestamp_seconds{instance="api-1"}': "0x120", _READY: "0x120"},
        "12m",
        "kueue on api-1 does not answer: its API server refuses the jobs of teams.",
        {**API, "service": "kueue"},
    ),
    Case(
        "MusterWebhooksChanged",
        {_RIGHT: "0x120"},
        # A minute of others is an update.
        {_RIGHT: "1x3 0x3 1x114"},
        "4m",
        "The webhooks of Kueue and JobSet that the API server on api-1 has loaded (MutatingAdmissionWebhook) are not "
        "those that were installed.",
        {**API, "plugin": "MutatingAdmissionWebhook"},
    ),
    Case(
        "MusterQueueStuck",
        _queue(3, 0),
        # It waits for its own jobs.
        _queue(3, 8),
        "32m",
        "Team vision has 3 jobs that wait, and uses no GPU.",
        {"queue": "vision"},
    ),
)
