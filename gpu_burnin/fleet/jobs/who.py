"""`muster who`: who can do what in a namespace, and who did what."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.jobs import audit_logs
from gpu_burnin.fleet.jobs.deeds import Deed, Deeds
from gpu_burnin.fleet.jobs.members import members
from gpu_burnin.fleet.jobs.rights import Holder, Rbac, holders
from gpu_burnin.fleet.model import Target
from gpu_burnin.system import known_hosts as kh
from gpu_burnin.system.clock import rfc3339_s

# Role kube_apiserver leaves it in the state directory.
API_SERVERS = "api_servers.json"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
# As Kubernetes has it (RFC 1123); it stands in a path, and in a command on the API servers' hosts.
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True)
class Logs:
    """Whose audit logs are read: the API servers' hosts, and copies."""

    hosts: Sequence[Target] = ()
    known_hosts: Path = Path("~/.ssh/known_hosts")
    copies: Sequence[Path] = ()


@dataclass(frozen=True)
class Who:
    """The answer. `read`: the logs that were read; `notes`: what could not be."""

    namespace: str
    since: datetime
    holders: tuple[Holder, ...]
    deeds: tuple[Deed, ...]
    read: tuple[str, ...]
    left_out: int
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return {
            "namespace": self.namespace,
            "since": rfc3339_s(self.since),
            "can": [_holder_json(one) for one in self.holders],
            "did": [_deed_json(one) for one in self.deeds],
            "logs": list(self.read),
            "left_out": self.left_out,
            "notes": list(self.notes),
        }


def who_of(api: KubeApi, namespace: str, logs: Logs, state: Path | None, since: datetime, most: int) -> Who:
    """Read rights and logs; the newest `most` deeds. Raises ApiError, and GpuBurninError for what is no namespace."""
    if not _NAMESPACE.fullmatch(namespace):
        raise GpuBurninError(f"{namespace!r} is no name of a namespace: lower-case letters, digits and - make one")
    api.get(f"/api/v1/namespaces/{namespace}", f"read namespace {namespace}")
    known, notes = members(state / "kubeconfig") if state else ({}, [])
    deeds, read, unread = _deeds(logs, namespace, since)
    newest = deeds.newest_first()
    return Who(
        namespace,
        since,
        tuple(holders(rbac_of(api, namespace), known)),
        tuple(newest[:most]),
        tuple(read),
        deeds.left_out + max(0, len(newest) - most),
        (*notes, *unread),
    )


def rbac_of(api: KubeApi, namespace: str) -> Rbac:
    """RBAC's objects that reach the namespace. Raises ApiError."""

    def items(path: str) -> list[Mapping[str, Any]]:
        return list(api.items(f"{_RBAC}/{path}"))

    inside = f"namespaces/{namespace}"
    return Rbac(
        items(f"{inside}/roles"),
        items(f"{inside}/rolebindings"),
        items("clusterroles"),
        items("clusterrolebindings"),
    )


def _deeds(logs: Logs, namespace: str, since: datetime) -> tuple[Deeds, list[str], list[str]]:
    deeds, read, notes = Deeds(namespace, since), [], []
    for name, lines in _sources(logs, namespace, since):
        try:
            for line in lines():
                deeds.take(line)
        except audit_logs.NotRead as error:
            notes.append(str(error))
        else:
            read.append(name)
    if deeds.unread:
        notes.append(f"{deeds.unread:,} lines of the audit logs are no entries and were passed over")
    return deeds, read, notes


def _sources(logs: Logs, namespace: str, since: datetime) -> Iterator[tuple[str, Callable[[], Iterable[bytes]]]]:
    if logs.hosts:
        known = kh.load(logs.known_hosts.expanduser())
        for host in logs.hosts:
            yield host.name, lambda host=host: audit_logs.of_host(host, known, namespace, since)  # type: ignore[misc]
    for path in logs.copies:
        yield str(path), lambda path=path: audit_logs.of_file(path, namespace)  # type: ignore[misc]


def _holder_json(holder: Holder) -> dict[str, Any]:
    by = [
        {"binding": one.binding, "role": one.role, "can": list(one.can), "everywhere": one.everywhere}
        for one in holder.grants
    ]
    known = None if holder.members is None else list(holder.members)
    about = {"kind": holder.kind, "name": holder.name, "members": known, "part": holder.part}
    return {**about, "can": list(holder.can), "by": by}


def _deed_json(deed: Deed) -> dict[str, Any]:
    times = {"at": rfc3339_s(deed.at), "first": rfc3339_s(deed.first), "count": deed.count}
    return {
        **times,
        "who": deed.who,
        "acted_as": deed.acted_as or None,
        "from": deed.source or None,
        "did": deed.did,
        "refused": deed.refused or None,
    }
