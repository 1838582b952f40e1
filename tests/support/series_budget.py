"""What hosts show beside what files/series.yaml of role fleet_monitoring says that they show at most."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROLE = Path(__file__).resolve().parents[2] / "roles" / "fleet_monitoring"
DECLARED: dict[str, list[dict[str, Any]]] = yaml.safe_load((ROLE / "files/series.yaml").read_text())
NODE_SERIES, FLEET_SERIES, FLEET_NODES = 600, 4_500_000, 7_500
# The targets of such a fleet: five members of each etcd, five API servers, two balancers, two that watch. Without
# what is off by default: a scaler for each API server, and with `fleet_node_dns` a target for each node.
LARGE = {
    "node": 7519, "gpu": FLEET_NODES, "etcd": 10, "apiserver": 5, "admitter": 5, "dns": 5, "balancer": 2,
    "prometheus": 2, "alertmanager": 2,
}  # fmt: skip


def of_page(page: bytes) -> Counter[str]:
    """How many series of each name a page of an exporter has."""
    lines = page.decode().splitlines()
    return Counter(re.split(r"[{ ]", line, maxsplit=1)[0] for line in lines if line and not line.startswith("#"))


def of_entries(job: str, shown: Mapping[str, int]) -> dict[str, int]:
    """The series that each entry of a job keeps, by its names."""
    return {
        entry["names"]: sum(count for name, count in shown.items() if re.fullmatch(entry["names"], name))
        for entry in DECLARED[job]
    }


def too_many(job: str, shown: Mapping[str, int]) -> list[str]:
    """A sentence for each entry of a job that is shown more often than it says."""
    kept = of_entries(job, shown)
    return [
        f"{entry['names']}: {kept[entry['names']]} series are shown, {entry['series']} are declared"
        for entry in DECLARED[job]
        if kept[entry["names"]] > entry["series"]
    ]


def kept(job: str, shown: Mapping[str, int]) -> int:
    """How many of these series Prometheus keeps."""
    return sum(of_entries(job, shown).values())


def expanded(names: str) -> list[str]:
    """Each name that an expression of alternatives and optional parts stands for."""
    found = re.search(r"\(([^()]*)\)(\??)", names)
    if not found:
        return [names]
    parts = [*found[1].split("|"), *([""] if found[2] else [])]
    return [name for part in parts for name in expanded(names[: found.start()] + part + names[found.end() :])]
