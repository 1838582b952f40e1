"""Alerts of etcd, the API servers, the balancer and the admitter."""

from __future__ import annotations

from .case import API, E1, Case

_SLOW_SYNC = (
    "The disk of etcd on etcd-1 needs 15.92ms for a sync (p99): more than 10 ms, and than its local_ssd_max_p99_ms."
)
_SLOW_COMMIT = (
    "etcd on etcd-1 needs 31.84ms for a commit (p99): more than 25 ms, and than 2.5 times its local_ssd_max_p99_ms."
)


def _buckets(name: str, labels: str, slow: bool, bounds: tuple[str, str]) -> dict[str, str]:
    """A histogram with two buckets, 10 observations each 30 s: all in the lower one, or all in the upper."""
    low, high = bounds
    return {
        f'{name}{{{labels},le="{low}"}}': "0x60" if slow else "0+10x60",
        f'{name}{{{labels},le="{high}"}}': "0+10x60",
        f'{name}{{{labels},le="+Inf"}}': "0+10x60",
    }


def _fsync(slow: bool) -> dict[str, str]:
    return _buckets(
        "etcd_disk_wal_fsync_duration_seconds_bucket", 'instance="etcd-1",group="etcd"', slow, ("0.008", "0.016")
    )


def _commit(slow: bool) -> dict[str, str]:
    name = "etcd_disk_backend_commit_duration_seconds_bucket"
    return _buckets(name, 'instance="etcd-1",group="etcd"', slow, ("0.016", "0.032"))


def _accepted(seconds: float) -> dict[str, str]:
    """What the inventory accepts of the disk."""
    return {'muster_etcd_fsync_allowed_seconds{instance="etcd-1"}': f"{seconds}x60"}


def _latency(slow: bool) -> dict[str, str]:
    name = "apiserver_request_sli_duration_seconds_bucket"
    return _buckets(name, 'instance="api-1",verb="GET"', slow, ("0.8", "2"))


def _seats(taken: int, level: str = "workload-low", limit: int | None = 60) -> dict[str, str]:
    labels = f'instance="api-1",priority_level="{level}"'
    some = {
        f'apiserver_flowcontrol_current_executing_seats{{{labels},flow_schema="{n}"}}': f"{taken / 2}x20" for n in "ab"
    }
    return some if limit is None else {**some, f"apiserver_flowcontrol_current_limit_seats{{{labels}}}": f"{limit}x20"}


def _leases(lease: str, renewed: str, checked: str = "0+30x20") -> dict[str, str]:
    return {
        f'muster_lease_renewed_timestamp_seconds{{instance="api-1",lease="{lease}"}}': renewed,
        'muster_gate_checked_timestamp_seconds{instance="api-1"}': checked,
        # The probe of the other host has stopped.
        f'muster_lease_renewed_timestamp_seconds{{instance="api-2",lease="{lease}"}}': "0x20",
        'muster_gate_checked_timestamp_seconds{instance="api-2"}': "0x20",
    }


def _snapshots(succeeded: str, member: str = "etcd-1") -> dict[str, str]:
    labels = f'{{instance="{member}",cluster="main"}}'
    last = {f"muster_etcd_backup_last_success_timestamp_seconds{labels}": succeeded} if succeeded else {}
    return {**last, f"muster_etcd_backup_period_seconds{labels}": "3600x400"}


_DENIALS = 'muster_admitter_brake_denials_total{{instance="api-1",brake="{}"}}'

CASES = (
    Case(
        "MusterEtcdMemberDown",
        {'up{job="etcd",instance="etcd-1",group="etcd"}': "0x60"},
        {'up{job="etcd",instance="etcd-1",group="etcd"}': "1x60"},
        "2m",
        "etcd on etcd-1 does not answer. A second lost member of etcd stops the cluster.",
        {**E1, "job": "etcd", "group": "etcd"},
    ),
    Case(
        "MusterEtcdNoLeader",
        {'etcd_server_has_leader{instance="etcd-1"}': "0x60"},
        {'etcd_server_has_leader{instance="etcd-1"}': "1x60"},
        "1m",
        "etcd on etcd-1 has no leader: nothing can be written.",
        E1,
    ),
    Case(
        "MusterEtcdSlowFsync",
        _fsync(slow=True),
        _fsync(slow=False),
        "20m",
        _SLOW_SYNC,
        {**E1, "group": "etcd"},
    ),
    # Slower than what the inventory accepts there, and not slower.
    Case(
        "MusterEtcdSlowFsync",
        _fsync(slow=True) | _accepted(0.012),
        _fsync(slow=True) | _accepted(0.2),
        "20m",
        _SLOW_SYNC,
        {**E1, "group": "etcd"},
    ),
    Case(
        "MusterEtcdSlowCommit",
        _commit(slow=True) | _accepted(0.012),
        _commit(slow=True) | _accepted(0.2),
        "20m",
        _SLOW_COMMIT,
        {**E1, "group": "etcd"},
    ),
    Case(
        "MusterEtcdSlowCommit",
        _commit(slow=True),
        _commit(slow=False),
        "20m",
        _SLOW_COMMIT,
        {**E1, "group": "etcd"},
    ),
    Case(
        "MusterEtcdLeaderChanges",
        {'etcd_server_leader_changes_seen_total{instance="etcd-1",group="etcd"}': "1x20 2x5 3x5 5x30"},
        {'etcd_server_leader_changes_seen_total{instance="etcd-1",group="etcd"}': "1x20 2x40"},
        "20m",
        "The leader of etcd changed 4 times in 15 minutes.",
        {"group": "etcd"},
    ),
    Case(
        "MusterEtcdQuota",
        {
            'etcd_mvcc_db_total_size_in_bytes{instance="etcd-1"}': "7e9x60",
            'etcd_server_quota_backend_bytes{instance="etcd-1"}': "8e9x60",
        },
        {
            'etcd_mvcc_db_total_size_in_bytes{instance="etcd-1"}': "1e9x60",
            'etcd_server_quota_backend_bytes{instance="etcd-1"}': "8e9x60",
        },
        "10m",
        "The database of etcd on etcd-1 has 87.5% of its quota. At 100 % it takes no more writes.",
        E1,
    ),
    Case(
        "MusterApiServerDown",
        {'up{job="apiserver",instance="api-1"}': "0x60"},
        {'up{job="apiserver",instance="api-1"}': "1x60"},
        "2m",
        "The API server on api-1 does not answer.",
        {**API, "job": "apiserver"},
    ),
    Case(
        "MusterApiErrors",
        {
            'apiserver_request_total{instance="api-1",code="200"}': "0+240x60",
            'apiserver_request_total{instance="api-1",code="500"}': "0+60x60",
        },
        {'apiserver_request_total{instance="api-1",code="200"}': "0+300x60"},
        "15m",
        "The API server on api-1 answers 20% of the requests with an error of its own (5xx).",
        API,
    ),
    Case(
        "MusterApiThrottled",
        {'apiserver_request_total{instance="api-1",code="429"}': "0+300x60"},
        {'apiserver_request_total{instance="api-1",code="429"}': "0+3x60"},
        "15m",
        "The API server on api-1 turns 10 requests a second away (429).",
        API,
    ),
    Case(
        "MusterApiSlow",
        _latency(slow=True),
        _latency(slow=False),
        "20m",
        "GET requests to the API server on api-1 take 1.988s (p99).",
        {**API, "verb": "GET"},
    ),
    Case(
        "MusterApiServerOut",
        {'haproxy_server_status{instance="lb-1",proxy="kube-apiserver",server="api-1",state="DOWN"}': "1x60"},
        {'haproxy_server_status{instance="lb-1",proxy="kube-apiserver",server="api-1",state="DOWN"}': "0x60"},
        "2m",
        "The balancer on lb-1 sends nothing to the API server api-1.",
        {"instance": "lb-1", "proxy": "kube-apiserver", "server": "api-1", "state": "DOWN"},
    ),
    Case(
        "MusterAdmitterDown",
        {'up{job="admitter",instance="api-1"}': "0x60"},
        {'up{job="admitter",instance="api-1"}': "1x60"},
        "3m",
        "The admitter on api-1 does not answer.",
        {**API, "job": "admitter"},
    ),
    Case(
        "MusterAdmitterNoLeader",
        {'muster_admitter_leader{instance="api-1"}': "0x60", 'muster_admitter_leader{instance="api-2"}': "0x60"},
        {'muster_admitter_leader{instance="api-1"}': "0x60", 'muster_admitter_leader{instance="api-2"}': "1x60"},
        "2m",
        "No admitter leads: no node is admitted, tested or taken from work.",
    ),
    Case(
        "MusterAdmitterDeaf",
        {
            'muster_admitter_leader{instance="api-1"}': "1x60",
            'muster_admitter_last_heard_seconds{instance="api-1"}': "240x60",
        },
        {
            'muster_admitter_leader{instance="api-1"}': "1x60",
            'muster_admitter_last_heard_seconds{instance="api-1"}': "20x60",
        },
        "2m",
        "The leading admitter on api-1 has heard nothing from the API server for 4m 0s.",
        API,
    ),
    Case(
        "MusterPaused",
        {'muster_admitter_leader{instance="api-1"}': "1x600", 'muster_admitter_paused{instance="api-1"}': "1x600"},
        {
            'muster_admitter_leader{instance="api-1"}': "1x600",
            'muster_admitter_paused{instance="api-1"}': "1x240 0x360",
        },
        "4h5m",
        "The fleet is paused: no node is let in or tested.",
    ),
    Case(
        "MusterBrake",
        # The first one since the admitter was started.
        {_DENIALS.format("gate"): "0x20 1x40"},
        # Nodes that wait for their turn, and what was long ago.
        {_DENIALS.format("gate"): "1x60", **{_DENIALS.format(one): "0+1x60" for one in ("join", "test", "expire")}},
        "12m",
        "So many nodes are in doubt that the admitter lets further ones work on: look for the common cause.",
    ),
    Case(
        "MusterApiBusy",
        _seats(60),
        # Of another level, and the exempt ones, nobody runs out.
        {**_seats(10), **_seats(500, "exempt", limit=None)},
        "6m",
        "The API server on api-1 has 100% of its places for requests of workload-low taken: above 100 % they wait, "
        "then they are turned away.",
        {**API, "priority_level": "workload-low"},
    ),
    Case(
        "MusterControllerNoLeader",
        _leases("kube-scheduler", "0x20"),
        _leases("kube-scheduler", "0+30x20"),
        "5m",
        "No kube-scheduler has led for three minutes: no pod starts.",
        {"lease": "kube-scheduler"},
    ),
    Case(
        "MusterControllerNoLeader",
        _leases("kube-controller-manager", "0x20"),
        # A probe that stopped: what it last saw is no news of a leader.
        _leases("kube-controller-manager", "0x20", checked="0x20"),
        "5m",
        "No kube-controller-manager has led for three minutes: nobody evicts, replaces or cleans up.",
        {"lease": "kube-controller-manager"},
    ),
    Case(
        "MusterControllerNoLeader",
        _leases("kueue", "0x20"),
        _leases("kueue", "0+30x20"),
        "5m",
        "No kueue has led for three minutes: no job of a team starts.",
        {"lease": "kueue"},
    ),
    Case(
        "MusterSnapshotOld",
        _snapshots("0x400"),
        # The other member has made one meanwhile.
        {**_snapshots("0x400"), **_snapshots("0+30x400", "etcd-2")},
        "150m",
        "The last verified snapshot of the etcd main is 2h 30m 0s old.",
        {"cluster": "main"},
    ),
    Case(
        "MusterSnapshotOld",
        _snapshots(""),
        # A fleet that has not asked for snapshots. (promtool's time begins at 0, where no snapshot is one of then.)
        {},
        "150m",
        "The last verified snapshot of the etcd main is 2h 30m 0s old.",
        {"cluster": "main"},
    ),
)
