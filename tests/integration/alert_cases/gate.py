"""Alerts of the gate, of who goes round it, and of certificates."""

from __future__ import annotations

from .case import API, E1, Case

A, B = f"sha256:{'a' * 64}", f"sha256:{'b' * 64}"
UP = {'up{job="apiserver",instance="api-1"}': "1x60"}
# promtool's time begins at 0: the time of each sample, and one that stands still.
RUNNING, STOPPED = "0+30x60", "0x60"
OF_API = {**API, "job": "apiserver"}


def _hashes(loaded: str) -> dict[str, str]:
    return {
        f'muster_gate_policy_hash{{instance="api-1",hash="{loaded}"}}': "1x60",
        f'muster_gate_policy_expected{{instance="api-1",hash="{A}"}}': "1x60",
        # Another API server's are no comfort.
        f'muster_gate_policy_hash{{instance="api-2",hash="{A}"}}': "1x60",
    }


FILE = "/etc/etcd/pki/member.crt"
DAY_S = 86400


def _certificate(left_days: float, life_days: int = 365) -> dict[str, str]:
    labels = f'{{instance="etcd-1",file="{FILE}"}}'
    expires_s = left_days * DAY_S
    return {
        f"muster_certificate_expires_timestamp_seconds{labels}": f"{expires_s}x60",
        f"muster_certificate_issued_timestamp_seconds{labels}": f"{expires_s - life_days * DAY_S}x60",
    }


CASES = (
    Case(
        "MusterGateOpen",
        {'muster_gate_refused{instance="api-1"}': "1 0x10"},
        {'muster_gate_refused{instance="api-1"}': "1x10"},
        "1m",
        "The gate is open on api-1: its API server takes nodes that nobody has tested.",
        API,
    ),
    Case(
        "MusterGatePolicyChanged",
        _hashes(B),
        _hashes(A),
        "4m",
        "The gate's policies that the API server on api-1 has loaded are not those that were installed.",
        {**API, "hash": A},
    ),
    Case(
        "MusterGatePolicyChanged",
        {f'muster_gate_policy_expected{{instance="api-1",hash="{A}"}}': "1x60"},
        # A minute of another hash is an update.
        {**_hashes(A), f'muster_gate_policy_hash{{instance="api-1",hash="{A}"}}': "1x3 _x3 1x54"},
        "4m",
        "The gate's policies that the API server on api-1 has loaded are not those that were installed.",
        {**API, "hash": A},
    ),
    Case(
        "MusterGateNotChecked",
        {**UP, 'muster_gate_checked_timestamp_seconds{instance="api-1"}': STOPPED},
        {**UP, 'muster_gate_checked_timestamp_seconds{instance="api-1"}': RUNNING},
        "12m",
        "Nobody knows whether the gate holds on api-1: its API server was not asked for five minutes.",
        OF_API,
    ),
    # A probe that never ran leaves no number at all.
    Case(
        "MusterGateNotChecked",
        UP,
        {**UP, 'muster_gate_checked_timestamp_seconds{instance="api-1"}': RUNNING},
        "12m",
        "Nobody knows whether the gate holds on api-1: its API server was not asked for five minutes.",
        OF_API,
    ),
    Case(
        "MusterImpersonation",
        {'muster_audit_impersonations_total{instance="api-1",user="muster:admitter"}': "0x20 2x40"},
        {'muster_audit_impersonations_total{instance="api-1",user="muster:admitter"}': "2x60"},
        "20m",
        "Somebody acted as muster:admitter through the API server on api-1 (2 requests). The gate cannot stop that.",
        {**API, "user": "muster:admitter"},
    ),
    Case(
        "MusterForeignChange",
        {'muster_admitter_foreign_changes_total{instance="api-1"}': "0x20 1x40"},
        {'muster_admitter_foreign_changes_total{instance="api-1"}': "1x60"},
        "22m",
        "Taints or labels of the fleet were changed by somebody else than the admitter, on nodes in 15 minutes: 1. "
        "The gate was gone round.",
    ),
    Case(
        "MusterBreakGlass",
        {'muster_audit_break_glass_total{instance="api-1"}': "0x20 5x110"},
        {'muster_audit_break_glass_total{instance="api-1"}': "5x130"},
        "62m",
        "The break-glass certificate was used at api-1: 5 requests in an hour. "
        "A run of site.yml that wrote roles does that too.",
        API,
    ),
    Case(
        "MusterAuditGap",
        {'muster_audit_gaps_total{instance="api-1"}': "0x20 1x110"},
        {'muster_audit_gaps_total{instance="api-1"}': "1x130"},
        "62m",
        "A part of the audit log on api-1 was gone before anybody had looked into it.",
        API,
    ),
    Case(
        "MusterAuditNotRead",
        {**UP, 'muster_audit_read_timestamp_seconds{instance="api-1"}': STOPPED},
        {**UP, 'muster_audit_read_timestamp_seconds{instance="api-1"}': RUNNING},
        "12m",
        "The audit log on api-1 was not read for five minutes: an impersonation would not be seen.",
        OF_API,
    ),
    Case(
        "MusterCertificateExpires",
        _certificate(20),
        _certificate(22),
        "20m",
        f"{FILE} on etcd-1 is valid for another 19d 23h 40m 0s, and nobody renewed it.",
        {**E1, "file": FILE},
    ),
    # Kubelet's own, of 30 days: renewed with three to nine days left.
    Case(
        "MusterCertificateExpires",
        _certificate(2, 30),
        _certificate(2.5, 30),
        "20m",
        f"{FILE} on etcd-1 is valid for another 1d 23h 40m 0s, and nobody renewed it.",
        {**E1, "file": FILE},
    ),
    # One that signs others, of ten years.
    Case(
        "MusterCertificateExpires",
        _certificate(180, 3650),
        _certificate(190, 3650),
        "20m",
        f"{FILE} on etcd-1 is valid for another 179d 23h 40m 0s, and nobody renewed it.",
        {**E1, "file": FILE},
    ),
    Case(
        "MusterCertificateEnds",
        _certificate(1.5),
        _certificate(3),
        "0m",
        f"{FILE} on etcd-1 expires in 1d 12h 0m 0s: what uses it stops.",
        {**E1, "file": FILE},
    ),
    Case(
        "MusterCertificateEnds",
        _certificate(0.001),
        _certificate(1, 30),
        "10m",
        f"{FILE} on etcd-1 has expired: what uses it stops.",
        {**E1, "file": FILE},
    ),
    Case(
        "MusterCertificateUnreadable",
        {f'muster_certificate_unreadable{{instance="etcd-1",file="{FILE}",problem="missing"}}': "1x60"},
        {f'muster_certificate_unreadable{{instance="etcd-1",file="{FILE}",problem="missing"}}': "1x10"},
        "25m",
        f"{FILE} on etcd-1 is gone: its service will not start again.",
        {**E1, "file": FILE, "problem": "missing"},
    ),
    Case(
        "MusterCertificateUnreadable",
        {f'muster_certificate_unreadable{{instance="etcd-1",file="{FILE}",problem="unreadable"}}': "1x60"},
        _certificate(100),
        "25m",
        f"{FILE} on etcd-1 holds no certificate that can be read: its service will not start again.",
        {**E1, "file": FILE, "problem": "unreadable"},
    ),
    Case(
        "MusterCertificatesNotChecked",
        {
            'up{job="node",instance="etcd-1"}': "1x120",
            'muster_certificates_checked_timestamp_seconds{instance="etcd-1"}': "0x120",
        },
        {
            'up{job="node",instance="etcd-1"}': "1x120",
            'muster_certificates_checked_timestamp_seconds{instance="etcd-1"}': "0+30x120",
        },
        "50m",
        "Nobody has looked at the certificates on etcd-1 for half an hour.",
        {**E1, "job": "node"},
    ),
)
