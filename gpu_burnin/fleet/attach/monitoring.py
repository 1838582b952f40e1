"""Numbers and alerts of an attached cluster, as objects of prometheus-operator. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.attached import ADMITTER_ACCOUNT, PROBE_ACCOUNT
from gpu_burnin.api.names import SYSTEM_NAMESPACE
from gpu_burnin.fleet.attach.workloads import APP

API = "monitoring.coreos.com/v1"
KINDS = frozenset({"PodMonitor", "PrometheusRule"})
ALERTS = Path(__file__).parent / "policies/alerts.yaml"


def objects() -> list[dict[str, Any]]:
    """What is read, and what is told."""
    metadata = {"name": "muster", "namespace": SYSTEM_NAMESPACE}
    pods = {"key": APP, "operator": "In", "values": [ADMITTER_ACCOUNT, PROBE_ACCOUNT]}
    read = {
        "selector": {"matchExpressions": [pods]},
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": "30s"}],
    }
    return [
        {"apiVersion": API, "kind": "PodMonitor", "metadata": metadata, "spec": read},
        {"apiVersion": API, "kind": "PrometheusRule", "metadata": metadata, "spec": rules()},
    ]


def rules() -> dict[str, Any]:
    """The alerts, as a file of rules has them."""
    found: dict[str, Any] = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return found
