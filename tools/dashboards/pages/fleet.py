"""The whole fleet. It reads recorded sums alone: with 7,500 nodes the series of each are too many for a page."""

from __future__ import annotations

from tools.dashboards.model import Page, Row, areas, counts, lines, names, stat, wrong

PAGE = Page(
    "muster-fleet",
    "Muster: fleet",
    "Whether the fleet can work, and what keeps nodes from it.",
    (
        Row(
            "Now",
            (
                stat(
                    "Out of work",
                    "muster:nodes_out:share",
                    "Share of the GPU nodes that take no work, whatever the reason.",
                    "percentunit",
                    alert="MusterNodesOut",
                ),
                stat("GPU nodes", "muster:nodes:total", "GPU nodes that the leading admitter knows."),
                wrong(
                    "Hosts that do not answer",
                    "muster:hosts_down:total",
                    "Hosts of any kind whose monitoring does not answer.",
                    alert="MusterHostDown",
                ),
                wrong(
                    "Units that failed",
                    "muster:units_failed:total",
                    "Services of Muster that systemd gave up, on all hosts.",
                    alert="MusterUnitFailed",
                ),
                wrong(
                    "Full file systems",
                    "muster:disks_full:total",
                    "File systems with less than a tenth left.",
                    alert="MusterDiskFull",
                ),
                wrong(
                    "Wrong clocks",
                    "muster:clocks_off:total",
                    "Hosts whose clock is off or not synchronised: their evidence will be refused.",
                    alert="MusterClockSkew",
                ),
                names(
                    "Alerts",
                    "muster:alerts_firing",
                    "{{alertname}}",
                    "Alerts that fire now, each once; docs/operations/alerts.md says what to do.",
                    width=24,
                ),
            ),
        ),
        Row(
            "Nodes",
            (
                areas(
                    "Nodes by state",
                    "muster:nodes",
                    "{{state}}",
                    "GPU nodes by the state that the admitter gives them; ready, expiring and testing can work.",
                    width=12,
                ),
                lines(
                    "Out of work, over time",
                    "muster:nodes_out:share",
                    "share",
                    "Share of the GPU nodes that take no work; the line is where somebody is called.",
                    "percentunit",
                    alert="MusterNodesOut",
                ),
                lines(
                    "Taken from work",
                    "muster:taken_from_work:increase1h > 0",
                    "{{code}}",
                    "Nodes that the admitter took from work within the last hour, by reason code.",
                ),
                lines(
                    "Changes of state",
                    "muster:transitions:increase1h > 0",
                    "{{from}} to {{to}}",
                    "Nodes that went from one state to another within the last hour.",
                ),
                lines(
                    "Held, by reason",
                    "muster:held",
                    "{{reason}}",
                    "Nodes that the admitter holds, by what it holds them for.",
                ),
                lines("Let in", "muster:joins:increase1h", "nodes", "Nodes that were let in within the last hour."),
                lines(
                    "Proofs that end",
                    "muster:proofs_end_soon:total",
                    "nodes",
                    "Nodes whose proof has ended or soon will, so that their test is late.",
                ),
                lines(
                    "Places in the dark",
                    "topk(20, muster:place_down:share)",
                    "{{place}} {{name}}",
                    "Share of the hosts of a rack, switch or feed that do not answer; the twenty worst.",
                    "percentunit",
                    alert="MusterPlaceDown",
                ),
                lines(
                    "Sources that do not answer",
                    "muster:targets_down",
                    "{{job}}",
                    "Hosts that show no numbers, by what the numbers are of.",
                ),
                lines(
                    "Traffic by class",
                    "muster:traffic_bits:rate5m",
                    "{{class}} {{direction}}",
                    "What all nodes and their pods send and receive, where the inventory has classes of traffic.",
                    "bps",
                ),
                lines(
                    "Certificates",
                    "muster:certificate_left_seconds:min",
                    "{{group}}",
                    "How long the certificate that ends first is valid yet, by group of hosts.",
                    "s",
                ),
            ),
        ),
        Row(
            "GPUs, of nodes where DCGM's exporter runs",
            (
                counts("GPUs by model", "muster:gpus", "{{modelName}}", "GPUs that DCGM shows."),
                lines(
                    "GPUs with an XID",
                    "muster:gpus_with_xid:total",
                    "GPUs",
                    "GPUs whose last XID since DCGM began is any.",
                ),
                lines(
                    "Which XID",
                    "topk(10, muster:gpus_with_xid)",
                    "XID {{xid}}",
                    "GPUs by the number of their last XID.",
                ),
                lines(
                    "Uncorrected memory errors",
                    "muster:gpus_ecc_uncorrected:total",
                    "GPUs",
                    "GPUs that have met memory errors that ECC could not correct, since their driver was loaded.",
                ),
                lines(
                    "Rows to remap",
                    "muster:gpus_remap",
                    "{{remap}}",
                    "GPUs that need a reset to remap a row (pending), and that have no spare row left (failed).",
                ),
                lines(
                    "Slowed down",
                    "muster:gpus_throttled",
                    "{{reason}}",
                    "GPUs that run slower because of heat, or because of the power brake.",
                ),
                lines(
                    "Temperature",
                    "muster:gpu_celsius",
                    "quantile {{quantile}}",
                    "Temperature of the GPUs: the middle one, the hottest hundredth, the hottest.",
                    "celsius",
                ),
                lines("Power", "muster:gpu_watts:total", "all GPUs", "What all GPUs together draw.", "watt"),
                lines(
                    "In use",
                    "muster:gpu_busy:avg",
                    "busy",
                    "Mean share of time in which a kernel ran on a GPU.",
                    "percentunit",
                ),
                lines(
                    "Tensor cores",
                    "muster:gpu_tensor:avg",
                    "active",
                    "Mean share of cycles in which the tensor cores worked, which being busy hides.",
                    "percentunit",
                ),
            ),
        ),
    ),
    since="now-24h",
)
