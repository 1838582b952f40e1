"""Certificate requests of kubelets, as they come: those that match the inventory are approved, the others stay pending.

The inventory are the NodeAdmissions' identities, which the provisioner alone writes, and the configured system nodes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_burnin.admission.approve import InventoryNode, approval_of, judge_csr, relevant
from gpu_burnin.admission.client import Conflict, KubeApi, Object
from gpu_burnin.admission.service.cache import Records
from gpu_burnin.admission.service.journal import Journal
from gpu_burnin.admission.service.metrics import Metrics
from gpu_burnin.api.enrolment import EnrolmentError, enrolments_path, parse_enrolment
from gpu_burnin.api.names import ENROLMENT_KIND, Names
from gpu_burnin.errors import GpuBurninError


@dataclass
class Requests:
    """Undecided requests by name; see cache.Store. Others are not kept."""

    _kept: dict[str, bytes] = field(default_factory=dict)

    def put(self, item: Object, *, listed: bool = False) -> str:
        """See cache.Store."""
        name = str(item["metadata"]["name"])
        if not relevant(item):
            return self.drop(name)
        kept = {key: item[key] for key in ("apiVersion", "kind", "spec", "status") if key in item}
        metadata = {key: item["metadata"].get(key) for key in ("name", "uid", "resourceVersion", "creationTimestamp")}
        self._kept[name] = zlib.compress(json.dumps({**kept, "metadata": metadata}).encode(), 1)
        return name

    def drop(self, name: str) -> str:
        """See cache.Store. It is looked at once more, so that what was said of it is forgotten."""
        return name if self._kept.pop(name, None) is not None else ""

    def known(self) -> set[str]:
        """See cache.Store."""
        return set(self._kept)

    def get(self, name: str) -> Object | None:
        """One request."""
        kept = self._kept.get(name)
        found: Object | None = None if kept is None else json.loads(zlib.decompress(kept))
        return found


@dataclass
class Approver:
    """Approves requests; what differs from the inventory is said once for each request and reason."""

    api: KubeApi
    names: Names
    requests: Requests
    records: Records
    system_nodes: Mapping[str, InventoryNode]
    journal: Journal
    metrics: Metrics
    _said: dict[str, str] = field(default_factory=dict)

    def reconcile(self, name: str) -> None:
        """Judge one request and approve it where it matches. Raises ApiError."""
        csr = self.requests.get(name)
        if csr is None:
            self._said.pop(name, None)
            return
        judgement = judge_csr(csr, _Inventory(self.records, self.system_nodes), self._approved)
        if judgement.refusals:
            why = "; ".join(judgement.refusals)
            if self._said.get(name) != why:
                self._said[name] = why
                self.metrics.add("csrs", {"result": "refused"})
                whose = f" of {judgement.node}" if judgement.node else ""
                self.journal.say(f"certificate request {name}{whose} is left pending: {why}", csr=name)
            return
        try:
            self.api.put_csr_approval(approval_of(csr))
        except Conflict:
            # The watch brings the newer one.
            return
        self.requests.drop(name)
        self._said.pop(name, None)
        self.metrics.add("csrs", {"result": "approved"})
        self.journal.say(f"certificate request {name} of {judgement.node} is approved ({judgement.signer})", csr=name)

    def _approved(self, node: str, token: str) -> str:
        """See approve.Approved. Raises ApiError."""
        found = (
            self.api.find(enrolments_path(self.names, node), f"read the {ENROLMENT_KIND} of {node}") if node else None
        )
        try:
            spec = parse_enrolment(found).spec if found is not None else None
        except EnrolmentError:
            return ""
        if spec is None or spec.token != token or spec.decision is None or not spec.decision.approved:
            return ""
        return spec.decision.request_sha256


class _Inventory(Mapping[str, InventoryNode]):
    """Who may ask for what, looked up when it is asked."""

    def __init__(self, records: Records, system_nodes: Mapping[str, InventoryNode]) -> None:
        self._records, self._system_nodes = records, system_nodes

    def __getitem__(self, name: str) -> InventoryNode:
        if name in self._system_nodes:
            return self._system_nodes[name]
        addresses, dns_names = self._records.addresses[name]
        try:
            return InventoryNode.of(name, addresses, dns_names)
        except GpuBurninError as error:
            raise KeyError(name) from error

    def __iter__(self) -> Iterator[str]:
        return iter({*self._system_nodes, *self._records.addresses})

    def __len__(self) -> int:
        return len({*self._system_nodes, *self._records.addresses})
