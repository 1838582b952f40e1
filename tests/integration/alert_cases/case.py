"""What one alert is tested with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """What Prometheus reads each 30 s when something is wrong and when nothing is; the alert's labels and its words."""

    alert: str
    wrong: Mapping[str, str]
    fine: Mapping[str, str]
    after: str
    says: str
    labels: Mapping[str, str] = field(default_factory=dict)
    # Why promtool alone is asked, and no Prometheus that reads pages.
    not_replayed: str = ""


E1 = {"instance": "etcd-1"}
API = {"instance": "api-1"}
GPU = {"instance": "gpu-1"}
