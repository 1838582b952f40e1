"""How long a job says that it runs: an annotation of the Job or JobSet, which Kueue does not copy to the Workload."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote

from gpu_burnin.admission.client import METADATA_ONLY, KubeApi, NotFound
from gpu_burnin.admission.jobs.workload import Owner, Workload

_PLURALS = {"Job": "jobs", "JobSet": "jobsets"}
# A person may change it while the job waits.
_KEPT_S = 60.0
_MOST_DIGITS = 9


def owner_path(namespace: str, owner: Owner) -> str | None:
    """Where a Job or JobSet is, None for who else made it."""
    plural = _PLURALS.get(owner.kind)
    return f"/apis/{owner.api_version}/namespaces/{namespace}/{plural}/{quote(owner.name, safe='')}" if plural else None


def seconds_of(text: str) -> float | None:
    """Whole seconds as people write them, None for what is none."""
    text = text.strip()
    return float(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else None


@dataclass
class Runtimes:
    """Reads the annotation, at most once a minute for each job. `tell` gets one sentence for each that is no number."""

    api: KubeApi
    annotation: str
    tell: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, float | None]] = field(default_factory=dict)
    _told: dict[str, str] = field(default_factory=dict)

    def of(self, workload: Workload) -> float | None:
        """What the job says; None where it says nothing that is a number of seconds. Raises ApiError."""
        path = owner_path(workload.namespace, workload.owner) if workload.owner is not None else None
        if path is None:
            return None
        known, now_s = self._known.get(workload.uid), self.clock()
        if known is not None and now_s < known[0] + _KEPT_S:
            return known[1]
        try:
            found = self.api.get(path, f"read how long {workload.key} runs", answer=METADATA_ONLY)
        except NotFound:
            return None
        text = (found["metadata"].get("annotations") or {}).get(self.annotation)
        seconds = None if text is None else seconds_of(str(text))
        if text is not None and seconds is None and self._told.get(workload.uid) != text:
            self._told[workload.uid] = str(text)
            self.tell(
                f"{workload.key}: its annotation {self.annotation} is {str(text)[:40]!r}, which is no number of "
                "seconds, and is passed over; write whole seconds, such as 7200"
            )
        self._known[workload.uid] = now_s, seconds
        return seconds

    def forget(self, uid: str) -> None:
        """The job has started, or is gone."""
        self._known.pop(uid, None)
        self._told.pop(uid, None)
