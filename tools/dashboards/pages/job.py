"""The nodes of one job, side by side: the slow one is the one that differs."""

from __future__ import annotations

from tools.dashboards.model import Page, Row, Variable, lines, names, states

PAGE = Page(
    "muster-job",
    "Muster: nodes of a job",
    "Nodes of one job side by side: they do the same, so that the one that differs is the one to look at. "
    "Choose the nodes, or give them as one text: gpu-1|gpu-2.",
    (
        Row(
            "Are these nodes well?",
            (
                names(
                    "Burn-in",
                    'gpu_burnin_verdict{instance=~"$nodes"} == 1',
                    "{{instance}}: {{verdict}}",
                    "Verdict of each node's newest burn-in.",
                    width=12,
                ),
                names(
                    "Alerts",
                    'ALERTS{instance=~"$nodes",alertstate="firing"}',
                    "{{instance}}: {{alertname}}",
                    "Alerts about these nodes that fire now.",
                    width=12,
                ),
                states("Answer", 'up{job="node",instance=~"$nodes"}', "{{instance}}", "Whether each node answers."),
                lines(
                    "Age of the burn-in",
                    'time() - gpu_burnin_finished_timestamp_seconds{instance=~"$nodes"}',
                    "{{instance}}",
                    "Time since each node's newest burn-in ended.",
                    "s",
                ),
                lines(
                    "Load",
                    'node_load1{instance=~"$nodes"}',
                    "{{instance}}",
                    "Processes that run or wait, mean of a minute.",
                ),
            ),
        ),
        Row(
            "Which one is slow? (nodes where DCGM's exporter runs)",
            (
                lines(
                    "Tensor cores",
                    'avg by (instance) (DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~"$nodes"})',
                    "{{instance}}",
                    "Mean share of cycles in which a node's tensor cores worked.",
                    "percentunit",
                ),
                lines(
                    "Least busy GPU",
                    'min by (instance) (DCGM_FI_DEV_GPU_UTIL{instance=~"$nodes"}) / 100',
                    "{{instance}}",
                    "Share of time in which a kernel ran, on the GPU of each node that did least.",
                    "percentunit",
                ),
                lines(
                    "Slowest clock",
                    'min by (instance) (DCGM_FI_DEV_SM_CLOCK{instance=~"$nodes"}) * 1e6',
                    "{{instance}}",
                    "Clock of the slowest GPU of each node; one slow GPU slows the job.",
                    "hertz",
                ),
                lines(
                    "Power",
                    'sum by (instance) (DCGM_FI_DEV_POWER_USAGE{instance=~"$nodes"})',
                    "{{instance}}",
                    "What the GPUs of each node draw.",
                    "watt",
                ),
                lines(
                    "Hottest GPU",
                    'max by (instance) (DCGM_FI_DEV_GPU_TEMP{instance=~"$nodes"})',
                    "{{instance}}",
                    "Temperature of the hottest GPU of each node.",
                    "celsius",
                ),
                lines(
                    "Slowed down by heat",
                    'sum by (instance) (floor(DCGM_FI_DEV_CLOCKS_EVENT_REASONS{instance=~"$nodes"} / 32) % 2 '
                    '+ floor(DCGM_FI_DEV_CLOCKS_EVENT_REASONS{instance=~"$nodes"} / 64) % 2 > bool 0)',
                    "{{instance}}",
                    "GPUs of each node that run slower because of heat.",
                ),
                lines(
                    "Fullest memory",
                    'max by (instance) (DCGM_FI_DEV_FB_USED{instance=~"$nodes"}) * 1048576',
                    "{{instance}}",
                    "Memory in use on the GPU of each node that uses most.",
                    "bytes",
                ),
                lines(
                    "Last XID",
                    'max by (instance) (DCGM_FI_DEV_XID_ERRORS{instance=~"$nodes"})',
                    "{{instance}}",
                    "Highest number among the last XIDs of each node's GPUs; 0 is none.",
                ),
                lines(
                    "PCIe retries",
                    'sum by (instance) (rate(DCGM_FI_DEV_PCIE_REPLAY_COUNTER{instance=~"$nodes"}[5m]))',
                    "{{instance}}",
                    "Retries a second on the PCIe links of each node.",
                    "cps",
                ),
            ),
        ),
    ),
    since="now-3h",
    variables=(
        Variable(
            "nodes",
            "Nodes",
            "The nodes of the job, such as `squeue` or `kubectl get pods -o wide` names them.",
            'label_values(up{job="node",group="gpu_nodes"}, instance)',
            many=True,
        ),
    ),
)
