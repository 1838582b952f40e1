"""Which addresses the planned fleet takes, and what its monitoring needs."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from gpu_burnin.fleet.plan.given import Fault, Given
from gpu_burnin.fleet.plan.model import Figure, Section
from gpu_burnin.system.quantities import number, size

# What each node takes in the file of each other one with static routes: its name twice, its range and its address, with
# names such as gpu-0001; a test renders the file.
ROUTE_BYTES = 72
# From here on a new node changes a thousand files, at 0.3 CPU s of the controller each (docs/verified-scale.md).
BGP_FROM_NODES = 1000


def network(given: Given) -> Section:
    """Pod ranges, routes to them, services, and the addresses of each group's hosts."""
    pods, most = given.pods, given.number("kubelet_max_pods")
    figures = []
    if pods is None:
        why = "fleet_pod_cidr or every pod_network_range is missing"
        figures.append(Figure("pod_ranges", "pod ranges", None, "1", "not known", why))
    else:
        figures += [
            Figure(
                "pod_ranges",
                "pod ranges",
                given.planned_nodes,
                "1",
                f"{given.planned_nodes:,}",
                f"one /{pods.prefix} for each planned node, of fleet_pod_cidr {pods.cidr}",
                f"room for {pods.room:,}",
            ),
            Figure(
                "pods_per_node",
                "pods on a node",
                most,
                "1",
                number(most),
                f"kubelet_max_pods; a /{pods.prefix} has as many addresses as beside it",
                f"{2 ** (ipaddress.ip_network(pods.cidr).max_prefixlen - pods.prefix):,}",
            ),
        ]
    figures.append(_routes(given))
    if services := _size(given.service_cidr):
        shown = f"{services:,}"
        figures.append(Figure("services", "Services", services, "1", shown, f"fleet_service_cidr {given.service_cidr}"))
    for group in given.addresses:
        span = group.first if group.hosts == 1 else f"{group.first} to {group.last}"
        figures.append(
            Figure(f"hosts_{group.group}", group.group, group.hosts, "1", f"{group.hosts:,}", f"addresses {span}")
        )
    return Section("network", "Addresses", tuple(figures))


def _routes(given: Given) -> Figure:
    """What routes to the pods of all other nodes cost in files of the nodes."""
    nodes, routing = given.planned_nodes, str(given.usual("pod_network_routing") or "static")
    each, total = ROUTE_BYTES * nodes, ROUTE_BYTES * nodes**2
    static = f"{size(each)} on each node, {size(total)} for all"
    advised = f"pod_network_routing: bgp is advised from {BGP_FROM_NODES:,} nodes on"
    if routing == "bgp":
        return Figure("route_bytes", "files of pod routes", 0, "B", "do not grow", f"by BGP; static: {static}", routing)
    if given.usual("pod_network_manage_routes") is False:
        return Figure(
            "route_bytes", "files of pod routes", 0, "B", "none", "pod_network_manage_routes: false", "routers"
        )
    why = f"{ROUTE_BYTES} bytes a node in the file of each, which every new node changes; {advised}"
    return Figure("route_bytes", "files of pod routes", total, "B", static, why, routing)


def monitoring(given: Given) -> Section:
    """What Prometheus takes, on each monitoring host."""
    need = given.monitoring
    if need is None:
        why = "monitoring has no hosts" if not given.hosts("monitoring") else "fleet_monitoring_* cannot be read"
        return Section("monitoring", "Monitoring", (Figure("series", "series", None, "1", "none", why),))
    figures = (
        Figure("series", "series", need.series, "1", f"{need.series:,}", "files/series.yaml of fleet_monitoring"),
        Figure("samples_per_s", "samples", need.samples_per_s, "1/s", f"{need.samples_per_s:,.0f} a second",
               "series / fleet_monitoring_interval_s"),
        Figure("memory_bytes", "memory of each host", need.memory_bytes, "B", size(need.memory_bytes),
               "8 KiB a series and 0.5 GiB; queries come on top"),
        Figure("disk_bytes", "disk of each host", need.disk_bytes, "B", size(need.disk_bytes),
               f"{number(round(need.days, 1))} days at 2 bytes a sample"),
    )  # fmt: skip
    return Section("monitoring", "Monitoring", figures)


def problems(given: Given) -> Iterator[Fault]:
    """What in the inventory contradicts these figures."""
    need, asked = given.monitoring, given.settings.get("fleet_monitoring_disk_gib", ())
    if need is not None and asked and need.days < min(1, given.number("fleet_monitoring_retention_days") or 0):
        yield Fault(
            f"fleet_monitoring_disk_gib {asked[0].value} keeps {need.days:.1f} days of {need.series:,} series",
            "give room for a day at least, or leave it out",
            asked[0].where,
        )
    for variable, why in given.unknown.items():
        yield Fault(f"{variable} cannot be resolved ({why})", "correct what it is made of")


def _size(cidr: str) -> int:
    try:
        return ipaddress.ip_network(cidr).num_addresses
    except ValueError:
        return 0
