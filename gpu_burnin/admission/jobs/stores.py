"""Workloads and AdmissionChecks as the watches bring them: see service/cache.py."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpu_burnin.admission.client import Object
from gpu_burnin.admission.jobs.workload import Workload, read
from gpu_burnin.admission.service.cache import key_of
from gpu_burnin.admission.service.packed import newer
from gpu_burnin.admission.view import Patch

ACTIVE = "Active"


class Workloads:
    """Workloads with a reservation, and which of those that have not started wait for which node."""

    def __init__(self) -> None:
        self._kept: dict[str, Workload] = {}
        # Of all that there are: a late answer to a write of ours must not bring back what has gone on since.
        self._versions: dict[str, str] = {}
        self._by_node: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store. One that cannot be read is kept as none, and its check stays as it is: Pending."""
        key, version = key_of(item), str(item["metadata"]["resourceVersion"])
        with self._lock:
            known = self._versions.get(key, "")
            if version == known or not (listed or newer(version, known)):
                return ""
            self._versions[key] = version
            found, old = _readable(item), self._kept.get(key)
            self._index(key, old, found)
            return key if found != old else ""

    def wrote(self, item: Object) -> None:
        """The answer to a write of ours."""
        if key_of(item) in self._versions:
            self.put(item)

    def drop(self, name: str) -> str:
        """See cache.Store."""
        with self._lock:
            self._versions.pop(name, None)
            self._index(name, self._kept.get(name), None)
        return name

    def known(self) -> set[str]:
        """See cache.Store."""
        with self._lock:
            return set(self._versions)

    def get(self, key: str) -> Workload | None:
        """One with a reservation."""
        return self._kept.get(key)

    def waiting_for(self, node: str) -> list[str]:
        """Those that have not started and of which this is a node."""
        # Most nodes have none.
        if node not in self._by_node:
            return []
        with self._lock:
            return list(self._by_node.get(node, ()))

    def not_started(self) -> list[Workload]:
        """All that have a reservation and have not started."""
        with self._lock:
            return [one for one in self._kept.values() if not one.admitted]

    def _index(self, key: str, old: Workload | None, new: Workload | None) -> None:
        for node in old.nodes if old is not None and not old.admitted else ():
            keys = self._by_node.get(node, set())
            keys.discard(key)
            if not keys:
                self._by_node.pop(node, None)
        for node in new.nodes if new is not None and not new.admitted else ():
            self._by_node.setdefault(node, set()).add(key)
        if new is None:
            self._kept.pop(key, None)
        else:
            self._kept[key] = new


def _readable(item: Object) -> Workload | None:
    try:
        return read(item)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


@dataclass(frozen=True)
class AdmissionCheck:
    """An AdmissionCheck of ours. `conditions` are those of its status, None where it has no status."""

    name: str
    version: str
    generation: int
    conditions: tuple[dict[str, Any], ...] | None

    def active_patch(self, reason: str, message: str, since: str) -> Patch | None:
        """What makes it Active, without which Kueue stops its queues; None where it is so."""
        wanted = {"type": ACTIVE, "status": "True", "reason": reason, "message": message}
        wanted_all: dict[str, Any] = {**wanted, "observedGeneration": self.generation}
        present = list(self.conditions or ())
        place = next((place for place, one in enumerate(present) if one.get("type") == ACTIVE), None)
        old = present[place] if place is not None else {}
        if all(old.get(key) == value for key, value in wanted_all.items()):
            return None
        same = old.get("status") == "True" and old.get("lastTransitionTime")
        new = {**wanted_all, "lastTransitionTime": old["lastTransitionTime"] if same else since}
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": self.version}
        if self.conditions is None:
            return [test, {"op": "add", "path": "/status", "value": {"conditions": [new]}}]
        kept = [one for one in present if one.get("type") != ACTIVE]
        return [test, {"op": "add", "path": "/status/conditions", "value": [*kept, new]}]


class Checks:
    """The AdmissionChecks whose controllerName is ours."""

    def __init__(self, controller: str, changed: Callable[[], None] = lambda: None) -> None:
        self._controller, self._changed = controller, changed
        self._kept: dict[str, AdmissionCheck] = {}
        self._names: frozenset[str] = frozenset()

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        metadata, status = item["metadata"], item.get("status")
        name = str(metadata["name"])
        if (item.get("spec") or {}).get("controllerName") != self._controller:
            return self.drop(name)
        conditions = None if status is None else tuple(dict(one) for one in status.get("conditions") or ())
        version, generation = str(metadata["resourceVersion"]), int(metadata.get("generation") or 0)
        known = self._kept.get(name)
        if known is not None and not (listed or newer(version, known.version)):
            return ""
        self._keep({**self._kept, name: AdmissionCheck(name, version, generation, conditions)})
        return name

    def drop(self, name: str) -> str:
        """See cache.Store."""
        self._keep({key: one for key, one in self._kept.items() if key != name})
        return ""

    def known(self) -> set[str]:
        """See cache.Store."""
        return set(self._kept)

    def get(self, name: str) -> AdmissionCheck | None:
        """One of ours."""
        return self._kept.get(name)

    @property
    def names(self) -> frozenset[str]:
        """Their names, by which Workloads name them."""
        return self._names

    def _keep(self, kept: dict[str, AdmissionCheck]) -> None:
        self._kept, names = kept, frozenset(kept)
        if names != self._names:
            self._names = names
            self._changed()
