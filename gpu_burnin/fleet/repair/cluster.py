"""The node in the cluster: what is read of it, and the asks that are written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import Conflict, KubeApi, admissions_path, node_path
from gpu_burnin.admission.decide.nodes import trim_node
from gpu_burnin.admission.decide.words import active
from gpu_burnin.admission.service.cache import pod_of
from gpu_burnin.admission.view import Node, Pod
from gpu_burnin.admission.waiting import Standing, standing
from gpu_burnin.api.names import Names
from gpu_burnin.api.record import Ask, NodeAdmission, PowerCycle, State, parse
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.cluster.admissions import PAUSE_PATH
from gpu_burnin.fleet.cluster.asks import user
from gpu_burnin.fleet.repair.permit import RepairRefused, Scene, in_repair
from gpu_burnin.system.clock import rfc3339
from gpu_burnin.system.codec import to_json

# The admitter writes the same object at any moment.
_MOST_TRIES = 8
_POLL_S = 0.5


class Cluster:
    """The cluster as the user of a kubeconfig sees it. All methods raise GpuBurninError."""

    def __init__(
        self, api: KubeApi, names: Names, *, now_s: Callable[[], float] = time.monotonic, sleep: Any = time.sleep
    ) -> None:
        self._api, self._names = api, names
        self._now_s, self._sleep = now_s, sleep
        self.me = user(api)

    @classmethod
    def of(cls, kubeconfig: Path, domain: str) -> Cluster:
        """The cluster of a kubeconfig, whose names are of `domain`."""
        return cls(KubeApi(kubeconfig), Names(domain))

    def scene(self, name: str) -> Scene:
        """All that permit.py wants to know of a node."""
        records = self.records()
        return Scene(
            name=name,
            names=self._names,
            me=self.me,
            record=records.get(name),
            node=self._api.find(node_path(name), f"read node {name}"),
            pods=self.pods(name),
            others=tuple(sorted(other.name for other in records.values() if other.name != name and in_repair(other))),
            paused=self.paused(),
        )

    def records(self) -> dict[str, NodeAdmission]:
        """The whole ledger, by node."""
        items = self._api.items(admissions_path(self._names), "list the NodeAdmissions")
        return {record.name: record for record in map(parse, items)}

    def pods(self, name: str) -> tuple[Pod, ...]:
        """The pods that are on the node."""
        asked = {"fieldSelector": f"spec.nodeName={name}"}
        found = self._api.items("/api/v1/pods", f"list the pods of {name}", **asked)
        return tuple(pod_of(item, self._names.hold_until) for item in found)

    def nodes(self) -> dict[str, Node]:
        """All Nodes by name."""
        return self._api.nodes()

    def pods_by_node(self) -> dict[str, list[Pod]]:
        """All pods that are on a node, by it."""
        found: dict[str, list[Pod]] = {}
        for item in self._api.items("/api/v1/pods", "list the pods"):
            if name := (item.get("spec") or {}).get("nodeName"):
                found.setdefault(str(name), []).append(pod_of(item, self._names.hold_until))
        return found

    def standing(self, name: str) -> tuple[NodeAdmission, Standing]:
        """What the ledger says of the node, and how it stands by that and its Node."""
        record, node = self._record(name), self._api.find(node_path(name), f"read node {name}")
        return record, standing(name, record, trim_node(node) if node is not None else None, self._names)

    def ask(self, name: str, why: str, now: datetime) -> None:
        """Ask for the node, unless this user has it already."""

        def with_ask(record: NodeAdmission) -> Mapping[str, Any] | None:
            if record.spec.repair is None:
                return {"repair": Ask(self.me, why, rfc3339(now))}
            if record.spec.repair.who != self.me:
                raise RepairRefused(f"{name}: {record.spec.repair.who} has it in repair; let them go on with it")
            return None

        self.change(name, with_ask)

    def release(self, name: str) -> bool:
        """Take the own ask away; whether there was one."""
        return self.change(
            name, lambda record: {"repair": None} if record.spec.repair and record.spec.repair.who == self.me else None
        )

    def power_cycled(self, name: str, at: str) -> bool:
        """Say in the own ask that the machine's power was off at `at`; whether that was new.

        The ask counts as of then, since it also confirms what a fault asked for while the node was in repair.
        """

        def confirmed(record: NodeAdmission) -> Mapping[str, Any] | None:
            ask = record.spec.repair
            if ask is None or ask.who != self.me:
                return None
            return {"repair": replace(ask, power_cycled=True, since=max(ask.since, at))}

        return self.change(name, confirmed)

    def owed_power_cycle(self, name: str) -> PowerCycle | None:
        """The power cycle that the ledger waits for, None where the repair has told it of one already."""
        found = self._api.find(admissions_path(self._names, name), f"read the NodeAdmission of {name}")
        record = parse(found) if found is not None else None
        told = record is not None and record.spec.repair is not None and record.spec.repair.power_cycled
        return record.status.power_cycle if record is not None and not told else None

    def hold(self, name: str, why: str, now: datetime) -> None:
        """Hold the node until a person releases it. Somebody's hold that is there already stays as it is."""
        ask = {"hold": Ask(self.me, why, rfc3339(now))}
        self.change(name, lambda record: None if active(record.spec.hold, now) else ask)

    def await_out(self, name: str, timeout_s: float, *, repairing: bool) -> None:
        """Wait until the admitter keeps new work off the node; there is nothing to wait for without a Node.

        `repairing`: for a repair, which nothing else does; else a quarantine does too. Raises RepairRefused.
        """
        deadline_s = self._now_s() + timeout_s
        asked, states = (
            ("repair", {State.REPAIRING}) if repairing else ("quarantine", {State.REPAIRING, State.QUARANTINED})
        )
        while True:
            record = self._record(name)
            if record.status.state in states or self._api.find(node_path(name)) is None:
                return
            if self._now_s() >= deadline_s:
                next_ = record.status.next
                said = f" ({next_.what}: {next_.why})" if next_ else ""
                raise RepairRefused(
                    f"{name}: it is still {record.status.state} {timeout_s:.0f} s after the ask for its {asked}{said}; "
                    "look at `journalctl -u muster-admitter` on the API servers"
                )
            self._sleep(_POLL_S)

    def _record(self, name: str) -> NodeAdmission:
        return parse(self._api.get(admissions_path(self._names, name), f"read the NodeAdmission of {name}"))

    def change(self, name: str, asks: Callable[[NodeAdmission], Mapping[str, Any] | None]) -> bool:
        """Write, or remove (None), asks of spec, which `asks` gives for what is there; whether there was need to."""
        path = admissions_path(self._names, name)
        for _ in range(_MOST_TRIES):
            record = self._record(name)
            wanted = asks(record)
            if wanted is None:
                return False
            patch: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": record.version}]
            patch += [
                {"op": "add", "path": f"/spec/{key}", "value": to_json(ask)}
                if ask
                else {"op": "remove", "path": f"/spec/{key}"}
                for key, ask in wanted.items()
            ]
            try:
                self._api.patch(path, patch, f"write {', '.join(wanted)} of {name}")
            except Conflict as error:
                conflict = error
                continue
            return True
        raise GpuBurninError(f"{name}: its NodeAdmission changes all the time ({conflict}); run this again")

    def paused(self) -> str:
        """Who has paused the fleet, and why; "" where it is not paused."""
        found = self._api.find(PAUSE_PATH, "read whether the fleet is paused")
        if found is None:
            return ""
        data = found.get("data") or {}
        return f"{data.get('who', '') or 'somebody'}: {data.get('why', '') or 'no reason is given'}"
