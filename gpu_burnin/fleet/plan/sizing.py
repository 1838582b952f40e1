"""What follows from the size of a fleet, each formula once: the roles' defaults and `muster plan` both read it here.

Pure, standard library only. A number of nodes is that of `fleet_planned_nodes`, system nodes included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

# The plan for standalone API servers: one per 1,500 nodes, at least two. OpenAI ran five for 7,500 nodes
# ("Scaling Kubernetes to 7,500 nodes").
NODES_PER_API_SERVER = 1500
# The same source: up to 70 GB of heap in each API server at 7,500 nodes, in proportion to the nodes.
HEAP_BYTES_PER_NODE = 70e9 / 7500
# Measured on one API server and etcd of Kubernetes 1.36.3, without any job (docs/verified-scale.md, "A fleet on one
# control plane"): live heap of the server alone; for each node its objects and the pod of its device plugin, which
# every server caches; the connections and watches of its programs, which one server holds.
HEAP_OF_SERVER_BYTES = 98 * 2**20
HEAP_OF_OBJECTS_BYTES = 0.2 * 2**20
HEAP_OF_CLIENTS_BYTES = 0.46 * 2**20
# Go collects garbage when the heap has doubled (GOGC 100); the rest are stacks and pages that it has not given back.
MEMORY_TO_HEAP = 2.3
# From the same runs: processor time of API server and etcd for a kubelet's Lease where 150 come in a second, as to each
# of five API servers of 7,500 nodes. Where one server gets 750 it is 0.9 ms.
LEASE_CPU_S = 0.0017
LEASE_EVERY_S = 10
# From here on a fleet is large: its clients ask more, and its disks have to answer sooner.
LARGE, VERY_LARGE = 1000, 3000


def api_servers(nodes: int, *, may_be_single: bool = False) -> int:
    """API servers that so many nodes need."""
    return max(1 if may_be_single else 2, -(-nodes // NODES_PER_API_SERVER))


def heap_bytes(nodes: int) -> float:
    """Heap of each API server, in bytes, beside what it takes without nodes: every server caches every node."""
    return nodes * HEAP_BYTES_PER_NODE


def least_memory_bytes(nodes: int, servers: int) -> float:
    """Memory of each of so many API servers, in bytes, for the nodes alone: work and its clients come on top."""
    clients = nodes * HEAP_OF_CLIENTS_BYTES / servers
    return MEMORY_TO_HEAP * (HEAP_OF_SERVER_BYTES + nodes * HEAP_OF_OBJECTS_BYTES + clients)


def lease_cores(nodes: int) -> float:
    """Cores that the Leases of the kubelets take, of all API servers and etcd together."""
    return nodes / LEASE_EVERY_S * LEASE_CPU_S


def reads_in_flight(nodes: int) -> int:
    """--max-requests-inflight of each API server."""
    return 3000 if nodes >= VERY_LARGE else 1500 if nodes >= LARGE else 400


def writes_in_flight(nodes: int) -> int:
    """--max-mutating-requests-inflight of each API server."""
    return 1000 if nodes >= VERY_LARGE else 500 if nodes >= LARGE else 200


def goaway_chance(servers: int) -> float:
    """--goaway-chance with so many API servers: the share of requests that ends its connection. One has no other."""
    return 0.001 if servers > 1 else 0


def audit_bytes(max_files: float, max_size_mib: float) -> float:
    """Most bytes of an API server's audit log: the files it keeps, the one it writes, and one that is about to go.

    It makes a new file before it removes the oldest (gopkg.in/natefinch/lumberjack.v2).
    """
    return (max_files + 2) * max_size_mib * 2**20


def disk_p99_ms(nodes: int) -> int:
    """Slowest 99th percentile of fdatasync that etcd's disk may have, in milliseconds.

    10 ms is etcd's own advice ("Hardware recommendations"); 2 ms is the project's limit above 1,000 nodes.
    """
    return 2 if nodes > LARGE else 10


def balancer_connections(nodes: int) -> int:
    """Connections at once that the load balancer takes."""
    return max(2000, nodes * 16)


def client_qps(nodes: int) -> int:
    """Requests a second that controller manager and scheduler may each make."""
    return 200 if nodes >= LARGE else 50


def client_burst(nodes: int) -> int:
    """Requests at once that controller manager and scheduler may each make."""
    return 400 if nodes >= LARGE else 100


# What roles ask for by name.
SIZES: Mapping[str, Callable[[int], float]] = {
    function.__name__: function
    for function in (
        reads_in_flight,
        writes_in_flight,
        goaway_chance,
        disk_p99_ms,
        balancer_connections,
        client_qps,
        client_burst,
    )
}
