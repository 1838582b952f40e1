"""Whether the lab's control plane is whole: asked of each member, each server, the balancer and the nodes."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.fleet import API_SERVERS, Fleet, wait_until

MEMBERS = ("etcd-1", "etcd-2", "etcd-3")
EVENTS = "etcd-events-1"
BALANCER = "lb-1"
NODES = ("gpu-1", "gpu-2", "system-1")
HEALTHY_S = 300
_FILES = "--cacert /etc/etcd/pki/ca.crt --cert /etc/etcd/pki/health.crt --key /etc/etcd/pki/health.key"
_STATISTICS = (
    'python3 -c \'import socket; s = socket.socket(socket.AF_UNIX); s.connect("/run/haproxy/admin.sock"); '
    's.sendall(b"show stat\\n"); print(s.makefile().read())\''
)


def faults(fleet: Fleet) -> list[str]:
    """What is not as it should be, in sentences; empty when all is well."""
    found = [
        f"{host}: etcd is not healthy" for host in (*MEMBERS, EVENTS) if etcdctl(fleet, host, "endpoint health") is None
    ]
    if found:
        return found
    voters = [one for one in etcdctl(fleet, MEMBERS[0], "member list")["members"] if not one.get("isLearner")]
    if len(voters) != len(MEMBERS):
        found.append(f"etcd has {len(voters)} voters")
    for server in API_SERVERS:
        if fleet.kubectl("get", "--raw", "/readyz", server=server).rc != 0:
            found.append(f"{server}: kube-apiserver is not ready")
    up = balanced(fleet)
    found += [f"{BALANCER} does not use {server}" for server in API_SERVERS if server not in up]
    if not found:
        ready = ready_nodes(fleet)
        found += [f"{node} is not Ready" for node in NODES if node not in ready]
    return found


def wait_for_health(fleet: Fleet) -> None:
    """Wait until nothing is wrong; fails with what still is."""
    last: list[str] = []

    def healthy() -> bool:
        try:
            last[:] = faults(fleet)
        except AssertionError as error:  # who was asked did not answer
            last[:] = [str(error)]
        return not last

    try:
        wait_until("the fleet to be healthy", healthy, timeout_s=HEALTHY_S)
    except AssertionError as error:
        raise AssertionError(f"{error}: {'; '.join(last)}") from error


def etcdctl(fleet: Fleet, host: str, words: str) -> Any:
    """What a member answers, as data; None when it does not."""
    endpoint = f"https://{fleet.addresses[host]}:2379"
    done = fleet.ssh(host, f"etcdctl --endpoints {endpoint} {_FILES} --write-out json {words}")
    return json.loads(done.out) if done.rc == 0 else None


def leader(fleet: Fleet) -> str:
    """The member that leads the main cluster."""
    for host in MEMBERS:
        (answer,) = etcdctl(fleet, host, "endpoint status")
        if answer["Status"]["leader"] == answer["Status"]["header"]["member_id"]:
            return host
    raise AssertionError("no member leads etcd")


def follower(fleet: Fleet) -> str:
    """The first member that does not lead."""
    led = leader(fleet)
    return next(host for host in MEMBERS if host != led)


def balanced(fleet: Fleet) -> set[str]:
    """The API servers that the balancer sends clients to."""
    lines = fleet.must(BALANCER, _STATISTICS).splitlines()
    columns = lines[0].removeprefix("# ").split(",")
    rows = [dict(zip(columns, line.split(","), strict=False)) for line in lines[1:] if line]
    return {row["svname"] for row in rows if row["pxname"] == "kube-apiserver" and row["status"] == "UP"} - {"BACKEND"}


def ready_nodes(fleet: Fleet) -> set[str]:
    """Nodes that the cluster says are Ready."""
    nodes = fleet.get("nodes")["items"]
    said = {node["metadata"]["name"]: node["status"].get("conditions", []) for node in nodes}
    return {
        name
        for name, all_of_it in said.items()
        if {"Ready": "True"}.items() <= {one["type"]: one["status"] for one in all_of_it}.items()
    }
