"""What the planned nodes ask of API servers, etcd and the load balancer, and which values of the inventory are less."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from gpu_burnin.fleet.plan import sizing
from gpu_burnin.fleet.plan.given import Fault, Given, number_of
from gpu_burnin.fleet.plan.model import Figure, Section
from gpu_burnin.system.quantities import number, size

# What the objects of one node may take in the main etcd, pods and other work not counted: its Node and its
# NodeAdmission of 16 KiB each, in three versions, and 60 versions of a Lease of 0.5 KiB. The API server compacts every
# 5 minutes, so versions of 10 minutes lie there; a kubelet renews its Lease every 10 s and its status every 5 minutes.
# Measured (docs/verified-scale.md, "A fleet on one control plane"): 110 KiB a node in the minutes after they joined.
ETCD_BYTES_PER_NODE = 2 * 3 * 16 * 1024 + 60 * 512
_ETCD_SOURCE = f"{ETCD_BYTES_PER_NODE // 1024} KiB a node, 110 measured after joins; without pods of work"
# What stands for a whole: etcd refuses writes at its quota, and a database has holes before it is defragmented.
_SHARE_OF_QUOTA = 0.5
_EXTRA_ARGS = "kube_apiserver_extra_args"
_AUDIT_FILES, _AUDIT_SIZE = "kube_apiserver_audit_max_files", "kube_apiserver_audit_max_size_mib"
_FREE = "preflight_min_disk_free_bytes"


def section(given: Given) -> Section:
    """The figures."""
    nodes, alone = given.planned_nodes, given.may_be_single
    wanted = sizing.api_servers(nodes, may_be_single=alone)
    servers = given.hosts("kube_apiserver")
    database = nodes * ETCD_BYTES_PER_NODE
    least = "one" if alone else "two"
    figures = [
        Figure(
            "api_servers",
            "API servers",
            wanted,
            "1",
            f"{wanted:,}",
            f"one for each {sizing.NODES_PER_API_SERVER:,} nodes, at least {least}",
            f"{servers:,}",
        ),
        Figure(
            "heap_bytes",
            "heap of each API server",
            round(sizing.heap_bytes(nodes)),
            "B",
            f"{number(round(sizing.heap_bytes(nodes) / 1e9, 2))} GB",
            "70 GB at 7,500 nodes (OpenAI, 2021), by nodes; what a server takes without nodes comes on top",
        ),
        *_measured(nodes, max(1, servers or wanted)),
        *(_limit(given, limit) for limit in LIMITS),
        Figure(
            "watch_caches",
            "watch caches",
            "off" if watch_cache_off(given) else "automatic",
            "",
            "off" if watch_cache_off(given) else "automatic",
            f"the API server sizes them itself, unless {_EXTRA_ARGS} turns them off",
        ),
        *_audit(given),
        _members(given, "etcd", "main etcd"),
        Figure("etcd_bytes", "main etcd, expected", database, "B", size(database), _ETCD_SOURCE, _quota(given)),
        _members(given, "etcd_events", "events etcd"),
    ]
    return Section("control_plane", "Control plane", tuple(figures))


@dataclass(frozen=True)
class Limit:
    """A variable that follows from the planned nodes; `worse` says on which side of the plan a value contradicts it."""

    name: str
    variable: str
    of: str
    unit: str
    worse: Literal["below", "above", "other"]

    def shown(self, value: float) -> str:
        """A value with its unit, where that is one to show."""
        return f"{number(value)} {self.unit}" if self.unit not in ("1", "1/s") else number(value)

    def planned(self, given: Given) -> float:
        """The value of the plan."""
        count = given.hosts("kube_apiserver") if self.of == "goaway_chance" else given.planned_nodes
        return sizing.SIZES[self.of](count)

    def contradicts(self, value: float, planned: float) -> bool:
        """Whether the inventory's value is on the wrong side."""
        return {"below": value < planned, "above": value > planned, "other": value != planned}[self.worse]


LIMITS = (
    Limit("reads in flight", "kube_apiserver_max_requests_inflight", "reads_in_flight", "1", "below"),
    Limit("writes in flight", "kube_apiserver_max_mutating_requests_inflight", "writes_in_flight", "1", "below"),
    Limit("goaway chance", "kube_apiserver_goaway_chance", "goaway_chance", "1", "other"),
    Limit("controller manager, qps", "kube_controller_manager_api_qps", "client_qps", "1/s", "below"),
    Limit("controller manager, burst", "kube_controller_manager_api_burst", "client_burst", "1", "below"),
    Limit("scheduler, qps", "kube_scheduler_api_qps", "client_qps", "1/s", "below"),
    Limit("scheduler, burst", "kube_scheduler_api_burst", "client_burst", "1", "below"),
    Limit("balancer, connections", "api_loadbalancer_max_connections", "balancer_connections", "1", "below"),
    Limit("disk gate, p99 of fdatasync", "local_ssd_max_p99_ms", "disk_p99_ms", "ms", "above"),
)


def problems(given: Given) -> Iterator[Fault]:
    """What in the inventory contradicts the figures."""
    for limit in LIMITS:
        yield from _beyond(given, limit)
    nodes = given.planned_nodes
    for setting in given.settings.get("kube_apiserver_planned_nodes", ()):
        if (value := number_of(setting.value)) is not None and value < nodes:
            yield Fault(
                f"kube_apiserver_planned_nodes is {number(value)} on {setting.first}, but {nodes:,} nodes are planned",
                "leave it out, so that it follows fleet_planned_nodes",
                setting.where,
            )
    yield from _audit_beyond(given)
    database = nodes * ETCD_BYTES_PER_NODE
    for setting in given.settings.get("etcd_quota_bytes", ()):
        if (quota := number_of(setting.value)) is not None and database > quota * _SHARE_OF_QUOTA:
            yield Fault(
                f"etcd_quota_bytes is {size(quota)} on {setting.first}, and {nodes:,} nodes are expected to take "
                f"{size(database)} of it before any pod",
                f"give at least {size(database / _SHARE_OF_QUOTA)}",
                setting.where,
            )
    for setting in given.settings.get(_EXTRA_ARGS, ()):
        if _turns_off(setting.value):
            yield Fault(
                f"{_EXTRA_ARGS} turns watch caches off on {setting.first}: each read then goes to etcd",
                "take watch-cache and sizes of 0 out of it",
                setting.where,
            )


def watch_cache_off(given: Given) -> bool:
    """Whether some API server has no watch cache of something."""
    return any(_turns_off(setting.value) for setting in given.settings.get(_EXTRA_ARGS, ()))


def _turns_off(arguments: object) -> bool:
    if not isinstance(arguments, Mapping):
        return False
    sizes = str(arguments.get("watch-cache-sizes", ""))
    return str(arguments.get("watch-cache", "true")).lower() == "false" or any(
        entry.strip().endswith("#0") for entry in sizes.split(",")
    )


def _measured(nodes: int, servers: int) -> Iterator[Figure]:
    memory = round(sizing.least_memory_bytes(nodes, servers))
    yield Figure(
        "least_memory_bytes",
        "memory of each API server, at least",
        memory,
        "B",
        f"{number(round(memory / 1e9, 2))} GB",
        f"measured: objects of {nodes:,} nodes in each of {servers:,}, their watches spread over all; without work",
    )
    cores = sizing.lease_cores(nodes)
    yield Figure(
        "lease_cores",
        "cores for kubelets' Leases",
        cores,
        "1",
        number(round(cores, 2)),
        f"measured: {sizing.LEASE_CPU_S * 1000:g} ms each, every {sizing.LEASE_EVERY_S} s; all API servers and etcd",
    )


def _limit(given: Given, limit: Limit) -> Figure:
    planned = limit.planned(given)
    values = [number_of(setting.value) for setting in given.settings.get(limit.variable, ())]
    return Figure(
        limit.variable,
        limit.name,
        planned,
        limit.unit,
        limit.shown(planned),
        limit.variable,
        " and ".join(limit.shown(value) for value in values if value is not None),
    )


def _beyond(given: Given, limit: Limit) -> Iterable[Fault]:
    planned = limit.planned(given)
    because = f"{given.planned_nodes:,} planned nodes want"
    if limit.of == "goaway_chance":
        because = f"{given.hosts('kube_apiserver'):,} API servers want"
    side = {"below": "at least ", "above": "at most ", "other": ""}[limit.worse]
    for setting in given.settings.get(limit.variable, ()):
        value = number_of(setting.value)
        if value is None:
            yield Fault(
                f"{limit.variable} is {setting.value!r} on {setting.first}, which is no number",
                "leave it out, so that it follows the plan",
                setting.where,
            )
        elif limit.contradicts(value, planned):
            yield Fault(
                f"{limit.variable} is {limit.shown(value)} on {setting.first}, but {because} {side}"
                f"{limit.shown(planned)}",
                "leave it out, so that it follows the plan",
                setting.where,
            )


def _audit(given: Given) -> Iterator[Figure]:
    files, size_mib = given.number(_AUDIT_FILES), given.number(_AUDIT_SIZE)
    if not files or size_mib is None:
        return
    most = sizing.audit_bytes(files, size_mib)
    free = given.number(_FREE)
    yield Figure(
        "audit_bytes",
        "audit log of each API server, at most",
        round(most),
        "B",
        size(most),
        f"{number(files)} files of {number(size_mib)} MiB that are kept, the present one, and one that is about to go",
        "" if free is None else f"{size(free)} free on /",
    )


def _audit_beyond(given: Given) -> Iterator[Fault]:
    files, sizes_mib, free = (
        [(value, one) for one in given.settings.get(name, ()) if (value := number_of(one.value)) is not None]
        for name in (_AUDIT_FILES, _AUDIT_SIZE, _FREE)
    )
    for value, setting in files:
        if value < 1:
            yield Fault(
                f"{_AUDIT_FILES} is {number(value)} on {setting.first}: kube-apiserver then removes no file",
                "give at least 1",
                setting.where,
            )
            return
    if not (files and sizes_mib and free):
        return
    largest, least = max(sizes_mib, key=lambda one: one[0]), min(free, key=lambda one: one[0])
    most = sizing.audit_bytes(max(value for value, _ in files), largest[0])
    if most > least[0]:
        yield Fault(
            f"the audit log of {largest[1].first} may take {size(most)} by {_AUDIT_FILES} and {_AUDIT_SIZE}, but "
            f"{_FREE} asks for {size(least[0])} alone",
            f"give {_FREE} at least {round(most)}, or keep less",
            largest[1].where,
        )


def _members(given: Given, group: str, name: str) -> Figure:
    wanted = 1 if given.may_be_single or group == "etcd_events" else 3
    return Figure(
        group,
        f"{name}, members",
        wanted,
        "1",
        f"{wanted:,} or more" if wanted == 1 else f"{wanted:,}, 5 or 7",
        "an odd number; three bear the loss of one" if wanted > 1 else "an odd number; one bears no loss",
        f"{given.hosts(group):,}",
    )


def _quota(given: Given) -> str:
    quotas = [number_of(setting.value) for setting in given.settings.get("etcd_quota_bytes", ())]
    return ", ".join(f"quota {size(quota)}" for quota in quotas if quota is not None)
