"""Objects of jobs as Kueue 0.19.2, JobSet 0.12.0 and Kubernetes 1.36.3 wrote them on loopback, with a kubelet played.

Eight nodes of eight GPUs in two racks (gpu-8 is dedicated to audio), and the teams vision (32 GPUs), audio (16 and 16
dedicated) and speech (8, with the check `verified`, whose judge was played too). Kept are the fields that are read.
"""

from __future__ import annotations

import copy
import functools
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.support.fake_api import FakeApi

FOLDER = Path(__file__).parent
RESOURCES = ("workloads", "jobs", "jobsets", "pods", "events")


@functools.cache
def _read(name: str) -> str:
    return (FOLDER / f"{name}.json").read_text()


def recorded(name: str) -> dict[str, list[dict[str, Any]]]:
    """A recording by resource; each call has objects of its own."""
    found: dict[str, list[dict[str, Any]]] = json.loads(_read(name))
    return found


def served(*names: str) -> FakeApi:
    """An API server that has these recordings, with the queues, flavors and nodes of their fleet."""
    api = FakeApi()
    for name in ("fleet", *names):
        for resource, items in recorded(name).items():
            for item in items:
                if name != "fleet" or resource != "workloads":
                    api.put(resource, copy.deepcopy(item))
    return api


def now_of(name: str) -> datetime:
    """The second of the last event of a recording."""
    times = [str(one.get("eventTime") or one.get("lastTimestamp"))[:19] for one in recorded(name)["events"]]
    return datetime.fromisoformat(max(times)).replace(tzinfo=UTC)
