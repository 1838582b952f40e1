"""One host: its burn-in, its GPUs, its system."""

from __future__ import annotations

from tools.dashboards.model import Mark, Page, Panel, Query, Row, Variable, lines, names, stat, states

# Both times are of the newest burn-in; its run's labels stand beside the mark.
_RUN = '* on (instance) group_left (run_id, level) gpu_burnin_info{instance="$node"}'
MARKS = (
    Mark(
        "Burn-ins begin",
        f'1000 * gpu_burnin_started_timestamp_seconds{{instance="$node"}} {_RUN}',
        "{{level}} burn-in {{run_id}} began",
        "blue",
    ),
    Mark(
        "Burn-ins end",
        f'1000 * gpu_burnin_finished_timestamp_seconds{{instance="$node"}} {_RUN}',
        "{{level}} burn-in {{run_id}} ended",
        "purple",
    ),
)

PAGE = Page(
    "muster-node",
    "Muster: one node",
    "One host: what its burn-in said, and what its GPUs and its system do. Begin and end of each burn-in are marked.",
    (
        Row(
            "Burn-in",
            (
                names(
                    "Verdict",
                    'gpu_burnin_verdict{instance="$node"} == 1',
                    "{{verdict}}",
                    "Verdict of the newest burn-in.",
                    width=4,
                ),
                stat(
                    "Age",
                    'time() - gpu_burnin_finished_timestamp_seconds{instance="$node"}',
                    "Time since the newest burn-in ended.",
                    "s",
                ),
                names(
                    "Run",
                    'gpu_burnin_info{instance="$node"}',
                    "{{level}} {{run_id}}, driver {{driver}}",
                    "Level, run and driver of the newest burn-in.",
                ),
                names(
                    "GPUs",
                    'gpu_burnin_gpu_verdict{instance="$node"} == 1',
                    "GPU {{index}}: {{verdict}}",
                    "Verdict on each GPU alone.",
                ),
                names(
                    "Reasons",
                    'gpu_burnin_reasons{instance="$node"}',
                    "{{code}} ({{check}}, GPU {{index}})",
                    "Why the burn-in did not pass; `gpu-burnin explain CODE` says what to do.",
                    width=12,
                ),
                names(
                    "Alerts",
                    'ALERTS{instance="$node",alertstate="firing"}',
                    "{{alertname}}",
                    "Alerts about this host that fire now; docs/operations/alerts.md says what to do.",
                    width=12,
                ),
            ),
        ),
        Row(
            "GPUs, where DCGM's exporter runs",
            (
                lines(
                    "Temperature",
                    'DCGM_FI_DEV_GPU_TEMP{instance="$node"}',
                    "GPU {{gpu}}",
                    "Temperature of each GPU.",
                    "celsius",
                ),
                lines(
                    "Memory temperature",
                    'DCGM_FI_DEV_MEMORY_TEMP{instance="$node"}',
                    "GPU {{gpu}}",
                    "Temperature of each GPU's memory, which is slowed down first.",
                    "celsius",
                ),
                lines(
                    "Power", 'DCGM_FI_DEV_POWER_USAGE{instance="$node"}', "GPU {{gpu}}", "What each GPU draws.", "watt"
                ),
                lines(
                    "SM clock",
                    'DCGM_FI_DEV_SM_CLOCK{instance="$node"} * 1e6',
                    "GPU {{gpu}}",
                    "Clock of each GPU: one that is below the others under the same load is slowed down.",
                    "hertz",
                ),
                lines(
                    "Tensor cores",
                    'DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance="$node"}',
                    "GPU {{gpu}}",
                    "Share of cycles in which tensor cores worked.",
                    "percentunit",
                ),
                lines(
                    "Memory in use",
                    'DCGM_FI_DEV_FB_USED{instance="$node"} * 1048576',
                    "GPU {{gpu}}",
                    "Memory of each GPU that is in use.",
                    "bytes",
                ),
                lines(
                    "Last XID",
                    'DCGM_FI_DEV_XID_ERRORS{instance="$node"}',
                    "GPU {{gpu}}",
                    "Number of the last XID of each GPU; 0 is none.",
                ),
                lines(
                    "Uncorrected memory errors",
                    'DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{instance="$node"}',
                    "GPU {{gpu}}",
                    "Memory errors that ECC could not correct, since the driver was loaded.",
                    alert="MusterEccUncorrected",
                ),
                lines(
                    "Remapped rows",
                    'DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS{instance="$node"}',
                    "GPU {{gpu}}",
                    "Rows of memory that were replaced for good: a GPU where they grow wears out.",
                ),
                states(
                    "Reset needed",
                    'DCGM_FI_DEV_ROW_REMAP_PENDING{instance="$node"} == bool 0',
                    "GPU {{gpu}} needs none",
                    "Whether no row waits for a reset of the GPU to be remapped.",
                ),
                lines(
                    "PCIe retries",
                    'rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{instance="$node"}[5m])',
                    "GPU {{gpu}}",
                    "Retries a second on the PCIe link: a bad slot, riser or cable.",
                    "cps",
                ),
                lines(
                    "NVLinks that went down",
                    'DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS{instance="$node"}',
                    "GPU {{gpu}}",
                    "NVLinks that went down for good, since NVLink 5.",
                ),
            ),
        ),
        Row(
            "GPUs, as the node's agent sees them",
            (
                lines(
                    "XIDs by class",
                    'sum by (class) (gpu_burnin_watch_xids_total{instance="$node"})',
                    "{{class}}",
                    "XIDs of this boot, by what the node's agent does about them: revoke takes the node from work.",
                ),
                states(
                    "Agent can read",
                    'gpu_burnin_watch_source_up{instance="$node"}',
                    "{{source}}",
                    "Whether the agent can read what tells it of faults.",
                ),
            ),
        ),
        Row(
            "Traffic by class, where the inventory has classes",
            (
                *(
                    Panel(
                        title,
                        f"What the host and its pods {verb}, by the class of the other side, and the limits. "
                        "RDMA is not in it.",
                        "bps",
                        (
                            Query(
                                "8 * sum by (class) (rate(muster_node_traffic_bytes_total"
                                f'{{instance="$node",direction="{direction}"}}[5m]))',
                                "{{class}}",
                            ),
                            Query('muster_node_traffic_limit_bits_per_second{instance="$node"}', "limit of {{class}}"),
                        ),
                    )
                    for title, direction, verb in (("Comes in", "in", "receive"), ("Goes out", "out", "send"))
                ),
                lines(
                    "Of pods",
                    "8 * sum by (class, direction) "
                    '(rate(muster_node_traffic_bytes_total{instance="$node",path="pods"}[5m]))',
                    "{{class}} {{direction}}",
                    "The part of both that is of pods with a network of their own.",
                    "bps",
                ),
            ),
        ),
        Row(
            "System",
            (
                states("Answers", 'up{instance="$node"}', "{{job}}", "Whether the host shows its numbers, by what of."),
                lines("Load", 'node_load1{instance="$node"}', "load", "Processes that run or wait, mean of a minute."),
                lines(
                    "Memory left",
                    'node_memory_MemAvailable_bytes{instance="$node"} / node_memory_MemTotal_bytes{instance="$node"}',
                    "left",
                    "Share of the host's memory that is available.",
                    "percentunit",
                    alert="MusterMemoryLow",
                ),
                lines(
                    "Waiting for memory",
                    'rate(node_pressure_memory_stalled_seconds_total{instance="$node"}[5m])',
                    "waiting",
                    "Share of time in which all processes waited for memory.",
                    "percentunit",
                ),
                lines(
                    "Disk left",
                    'node_filesystem_avail_bytes{instance="$node"} / node_filesystem_size_bytes{instance="$node"}',
                    "{{mountpoint}}",
                    "Share of each file system that is left.",
                    "percentunit",
                    alert="MusterDiskFull",
                ),
                lines(
                    "Clock",
                    'abs(node_time_seconds{instance="$node"} - timestamp(node_time_seconds{instance="$node"}))',
                    "offset",
                    "How far the clock is off from the monitoring host's, with the milliseconds of a reading.",
                    "s",
                    alert="MusterClockSkew",
                ),
                states(
                    "Units",
                    'node_systemd_unit_state{instance="$node",state="failed"} == bool 0',
                    "{{name}}",
                    "Whether each unit of Muster has not failed.",
                ),
                lines(
                    "Certificates",
                    'muster_certificate_expires_timestamp_seconds{instance="$node"} - time()',
                    "{{file}}",
                    "How long each certificate is valid yet.",
                    "s",
                ),
                names("Kernel", 'node_uname_info{instance="$node"}', "{{release}}", "Kernel that runs."),
            ),
        ),
    ),
    since="now-24h",
    variables=(Variable("node", "Host", "The host that is shown.", 'label_values(up{job="node"}, instance)'),),
    marks=MARKS,
)
