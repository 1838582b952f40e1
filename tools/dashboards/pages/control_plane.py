"""etcd, API servers, gate, admitter, balancer, DNS: few hosts, so that their own numbers may be read."""

from __future__ import annotations

from tools.dashboards.model import Page, Row, lines, names, stat, states

PAGE = Page(
    "muster-control-plane",
    "Muster: control plane",
    "Whether etcd, the API servers, the gate and the admitter work, and how near their limits they are.",
    (
        Row(
            "Now",
            (
                stat(
                    "Admitters that lead",
                    "muster:admitter_leaders:total",
                    "One is right: with none no node is admitted, tested or taken from work.",
                ),
                stat(
                    "Slowest sync of etcd",
                    "max(muster:etcd_fsync_seconds:p99)",
                    "Time that the slowest member's disk needs for a sync (p99).",
                    "s",
                    alert="MusterEtcdSlowFsync",
                ),
                stat(
                    "Fullest etcd",
                    "max(muster:etcd_quota:share)",
                    "Share of its quota that the fullest member has used.",
                    "percentunit",
                    alert="MusterEtcdQuota",
                ),
                names(
                    "API servers whose gate holds",
                    "muster:gate_in_force == 1",
                    "{{instance}}",
                    "API servers that refused a node that nobody tested when they were last asked.",
                    width=12,
                ),
            ),
        ),
        Row(
            "etcd",
            (
                states("Leader known", "muster:etcd_has_leader", "{{instance}}", "Whether each member has a leader."),
                lines(
                    "Sync to disk, p99",
                    "muster:etcd_fsync_seconds:p99",
                    "{{instance}}",
                    "Time that a sync of the log to disk takes.",
                    "s",
                    alert="MusterEtcdSlowFsync",
                ),
                lines(
                    "Commit, p99",
                    "muster:etcd_commit_seconds:p99",
                    "{{instance}}",
                    "Time that a commit to the database takes.",
                    "s",
                    alert="MusterEtcdSlowCommit",
                ),
                lines(
                    "Between members, p99",
                    "muster:etcd_peer_seconds:p99",
                    "{{instance}}",
                    "Time that a message takes to another member and back.",
                    "s",
                ),
                lines(
                    "Leader changes",
                    "max by (group) (increase(etcd_server_leader_changes_seen_total[15m]))",
                    "{{group}}",
                    "Changes of the leader within 15 minutes.",
                    alert="MusterEtcdLeaderChanges",
                ),
                lines(
                    "Quota",
                    "muster:etcd_quota:share",
                    "{{instance}}",
                    "Share of its quota that a member's database has; with all of it nothing can be written.",
                    "percentunit",
                    alert="MusterEtcdQuota",
                ),
                lines(
                    "Database in use",
                    "etcd_mvcc_db_total_size_in_use_in_bytes",
                    "{{instance}}",
                    "What is in the database; the rest of the file is free for more.",
                    "bytes",
                ),
                lines(
                    "Age of the snapshot",
                    "time() - muster_etcd_backup_last_success_timestamp_seconds",
                    "{{cluster}}",
                    "Time since the last snapshot that was made and found good.",
                    "s",
                ),
                lines(
                    "Writes that failed",
                    "rate(etcd_server_proposals_failed_total[5m])",
                    "{{instance}}",
                    "Writes a second that the members did not agree on.",
                    "cps",
                ),
            ),
        ),
        Row(
            "API servers",
            (
                states("Answer", 'up{job="apiserver"}', "{{instance}}", "Whether each API server answers."),
                lines(
                    "Requests",
                    "muster:api_requests_by_code:rate5m",
                    "{{instance}} {{code}}",
                    "Requests a second, by the code of the answer.",
                    "reqps",
                ),
                lines(
                    "Slowest requests, p99",
                    "muster:api_seconds:p99",
                    "{{instance}} {{verb}}",
                    "Time that requests take, long watches left out.",
                    "s",
                    alert="MusterApiSlow",
                ),
                lines(
                    "Errors",
                    "muster:api_errors:share",
                    "{{instance}}",
                    "Share of the requests that an API server answers with an error of its own (5xx).",
                    "percentunit",
                    alert="MusterApiErrors",
                ),
                lines(
                    "Turned away",
                    "muster:api_throttled:rate5m",
                    "{{instance}}",
                    "Requests a second that are turned away with 429.",
                    "reqps",
                    alert="MusterApiThrottled",
                ),
                lines(
                    "At once",
                    "apiserver_current_inflight_requests",
                    "{{instance}} {{request_kind}}",
                    "Requests that are being worked on.",
                ),
                lines(
                    "Objects",
                    "topk(10, max by (resource) (apiserver_storage_objects))",
                    "{{resource}}",
                    "Objects in etcd, of the ten resources with most.",
                ),
                lines(
                    "Memory",
                    'process_resident_memory_bytes{job="apiserver"}',
                    "{{instance}}",
                    "Memory of each API server; it grows with nodes and pods.",
                    "bytes",
                ),
            ),
        ),
        Row(
            "Gate and admitter",
            (
                states("Gate", "muster:gate_in_force", "{{instance}}", "Whether each API server's gate holds."),
                lines(
                    "Impersonation",
                    "increase(muster_audit_impersonations_total[15m])",
                    "{{instance}} {{user}}",
                    "Requests within 15 minutes of somebody who acted as the admitter, which the gate cannot stop.",
                    alert="MusterImpersonation",
                ),
                states("Leads", "muster_admitter_leader", "{{instance}}", "Which admitter leads."),
                lines(
                    "Last heard",
                    "muster_admitter_last_heard_seconds",
                    "{{instance}} {{resource}}",
                    "Time since an API server last said something to the leading admitter.",
                    "s",
                    alert="MusterAdmitterDeaf",
                ),
                lines(
                    "Kept from work",
                    "muster_admitter_unready_nodes",
                    "{{instance}}",
                    "Nodes that the admitter keeps from work by its own judgement; a brake limits them.",
                ),
                lines(
                    "Queue",
                    "muster_admitter_queue_depth",
                    "{{instance}}",
                    "Nodes that wait for the admitter's look.",
                ),
                lines(
                    "Late tests",
                    "muster:tests_overdue:total",
                    "nodes",
                    "Nodes that were not idle since their test was due.",
                    alert="MusterTestsOverdue",
                ),
                lines(
                    "Brakes",
                    "sum by (brake) (increase(muster_admitter_brake_denials_total[10m]))",
                    "{{brake}}",
                    "Decisions within ten minutes that a brake withheld.",
                ),
            ),
        ),
        Row(
            "Balancer and DNS",
            (
                states(
                    "API servers behind the balancer",
                    'haproxy_server_status{proxy="kube-apiserver",state="UP"}',
                    "{{instance}}: {{server}}",
                    "Whether the balancer sends requests to each API server.",
                ),
                lines(
                    "Sessions",
                    "muster:balancer_sessions:share",
                    "{{instance}} {{proxy}}",
                    "Share of the sessions that the balancer may have at once.",
                    "percentunit",
                ),
                lines(
                    "DNS errors",
                    "muster:dns_errors:share",
                    "{{instance}}",
                    "Share of the answers of the cluster's DNS that are SERVFAIL.",
                    "percentunit",
                ),
            ),
        ),
    ),
    since="now-6h",
)
