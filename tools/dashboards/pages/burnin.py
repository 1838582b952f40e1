"""What the burn-ins of the whole fleet say, over time. It reads recorded sums alone."""

from __future__ import annotations

from tools.dashboards.model import Page, Row, areas, counts, lines, stat, wrong

PAGE = Page(
    "muster-burnin",
    "Muster: burn-in history",
    "What the newest burn-in of each node says, over weeks: how many pass, how old they are, why nodes fail.",
    (
        Row(
            "Now",
            (
                wrong(
                    "Nodes that failed",
                    'muster:burnin_nodes{verdict="FAIL"}',
                    "Nodes whose newest burn-in failed.",
                    alert="MusterBurninFailed",
                ),
                stat("Nodes that passed", 'muster:burnin_nodes{verdict="PASS"}', "Nodes whose newest burn-in passed."),
                stat(
                    "Inconclusive",
                    'muster:burnin_nodes{verdict="INCONCLUSIVE"}',
                    "Nodes whose newest burn-in could not say.",
                ),
                stat(
                    "Simulated",
                    "muster:burnin_simulated:total",
                    "Nodes whose newest burn-in ran on simulated hardware, and proves nothing.",
                ),
                counts(
                    "Versions",
                    "muster:burnin_versions",
                    "{{level}}, gpu-burnin {{version}}, driver {{driver}}",
                    "Nodes by level, version of the burn-in and driver of the newest run.",
                ),
            ),
        ),
        Row(
            "History",
            (
                areas(
                    "Nodes by verdict",
                    "muster:burnin_nodes",
                    "{{verdict}}",
                    "Nodes by the verdict of their newest burn-in.",
                    width=12,
                ),
                areas(
                    "GPUs by verdict",
                    "muster:burnin_gpus",
                    "{{verdict}}",
                    "GPUs by the verdict on each alone.",
                    width=12,
                ),
                lines(
                    "Burn-ins that ended",
                    "muster:burnin_ended_in_1h",
                    "{{verdict}}",
                    "Nodes whose newest burn-in ended within the last hour, by verdict.",
                ),
                lines(
                    "Age",
                    "muster:burnin_age_seconds",
                    "quantile {{quantile}}",
                    "Age of the nodes' newest burn-ins: the middle one, the oldest hundredth, the oldest.",
                    "s",
                ),
                lines(
                    "Old ones",
                    "muster:burnin_older",
                    "more than {{days}} days",
                    "Nodes whose newest burn-in is older than that.",
                ),
                lines(
                    "Reasons",
                    "topk(15, muster:burnin_reason_nodes)",
                    "{{code}}",
                    "Nodes whose newest burn-in gives this reason; the fifteen that are on most nodes.",
                ),
                lines(
                    "Taken from work",
                    "muster:taken_from_work:increase1h > 0",
                    "{{code}}",
                    "Nodes that the admitter took from work within the last hour, by reason code.",
                ),
            ),
        ),
    ),
    since="now-30d",
)
