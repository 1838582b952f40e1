"""Alerts of the monitoring itself."""

from __future__ import annotations

from .case import Case

MON = {"instance": "mon-1"}
DELIVERED = {
    # One of two Alertmanagers is away, and the other one takes them all.
    'prometheus_notifications_errors_total{instance="mon-1",alertmanager="a"}': "0+1x60",
    'prometheus_notifications_errors_total{instance="mon-1",alertmanager="b"}': "0x60",
    'prometheus_notifications_dropped_total{instance="mon-1"}': "1x60",
    'prometheus_notifications_alertmanagers_discovered{instance="mon-1"}': "2x60",
    'alertmanager_notifications_failed_total{instance="mon-1",integration="webhook"}': "2x60",
}
KEPT = {
    'prometheus_tsdb_wal_corruptions_total{instance="mon-1"}': "0x200",
    'prometheus_tsdb_wal_writes_failed_total{instance="mon-1"}': "0x200",
    'prometheus_tsdb_compactions_failed_total{instance="mon-1"}': "1x200",
}


def _undelivered(series: str, values: str) -> Case:
    assert series in DELIVERED
    return Case(
        "MusterAlertsNotDelivered",
        {**DELIVERED, series: values},
        DELIVERED,
        "12m",
        "Alerts of mon-1 do not reach whom they should.",
        MON,
    )


def _lost(series: str) -> Case:
    assert series in KEPT
    return Case(
        "MusterMonitoringStorage",
        {**KEPT, series: "1x20 2x180"},
        KEPT,
        "65m",
        "Prometheus on mon-1 cannot keep what it reads: its disk is full or damaged.",
        MON,
    )


def _over(limit: str, **shown: int) -> Case:
    """What Prometheus tells of a refused scrape; the fine one is a target that does not answer."""
    target = '{instance="gpu-1",job="node"}'
    silent = {
        "scrape_samples_scraped": 0,
        "scrape_samples_post_metric_relabeling": 0,
        "scrape_sample_limit": 1000,
        "scrape_body_size_bytes": 0,
    }
    return Case(
        "MusterTargetOverLimit",
        {f"up{target}": "0x20", **{f"{name}{target}": f"{value}x20" for name, value in {**silent, **shown}.items()}},
        {f"up{target}": "0x20", **{f"{name}{target}": f"{value}x20" for name, value in silent.items()}},
        "1m",
        f"Prometheus takes no numbers of node on gpu-1: its page fails by {limit}.",
        {"instance": "gpu-1", "job": "node", "limit": limit},
    )


CASES = (
    _over("sample_limit", scrape_samples_scraped=1001, scrape_samples_post_metric_relabeling=1001),
    _over("body_size_limit", scrape_body_size_bytes=-1),
    _over("label limits or format", scrape_samples_scraped=7, scrape_samples_post_metric_relabeling=6),
    Case(
        "MusterMonitoringDown",
        {'up{job="prometheus",instance="mon-2"}': "0x60"},
        {'up{job="prometheus",instance="mon-2"}': "1x60"},
        "3m",
        "prometheus on mon-2 does not answer: what it watches is watched by the other hosts alone.",
        {"instance": "mon-2", "job": "prometheus"},
    ),
    *(
        _undelivered(series, values)
        for series, values in zip(list(DELIVERED)[2:], ("0+5x60", "0x60", "0+1x60"), strict=True)
    ),
    Case(
        "MusterRulesFail",
        {'prometheus_rule_evaluation_failures_total{instance="mon-1",rule_group="/r/gate.yml;muster-gate"}': "0+1x60"},
        {'prometheus_rule_evaluation_failures_total{instance="mon-1",rule_group="/r/gate.yml;muster-gate"}': "5x60"},
        "12m",
        "Rules of /r/gate.yml;muster-gate cannot be evaluated on mon-1: their alerts are silent.",
        {**MON, "rule_group": "/r/gate.yml;muster-gate"},
    ),
    Case(
        "MusterMonitoringConfig",
        {'prometheus_config_last_reload_successful{instance="mon-1"}': "0x60"},
        {'prometheus_config_last_reload_successful{instance="mon-1"}': "1x60"},
        "3m",
        "Prometheus on mon-1 refuses its configuration, and runs with the one before.",
        MON,
    ),
    *(_lost(series) for series in KEPT),
)
