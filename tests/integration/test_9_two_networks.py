"""Nodes in a network of their own, from their first package on: which connections the whole fleet has opened by now.

Late: the firewall has counted since the lab was started. Before test_9_ways_out.py, whose attempts it would find.

Only here: each connection of a whole fleet, as a firewall has counted it.
"""

from __future__ import annotations

import re

from tests.lab import wall

from .fleet import Fleet, wait_until

POD = """
apiVersion: v1
kind: Pod
metadata: {name: asks-the-api}
spec:
  restartPolicy: Never
  nodeSelector: {muster.node-restriction.kubernetes.io/ready: "true"}
  containers:
    - name: tool
      image: lab.muster.dev/tool:1
      imagePullPolicy: Never
      args: [get, "http://kubernetes.default.svc.cluster.local:443/"]
"""
KUBELET = ("get", "--raw", "/api/v1/nodes/gpu-1/proxy/healthz", "--request-timeout=3s")


def test_a_router_stands_between_nodes_and_control_plane(fleet: Fleet) -> None:
    control, nodes = (subnet.replace(".0/24", ".1") for subnet in fleet.lab.subnets)
    assert f"via {nodes} " in fleet.must("gpu-1", f"ip route get {fleet.addresses['api-1']}")
    assert f"via {control} " in fleet.must("api-1", f"ip route get {fleet.addresses['gpu-1']}")
    # Addresses pass as they are: the API server would see the router's else.
    seen = fleet.must("lb-1", "ss -Htn state established sport = 6443")
    assert re.search(rf"\b{re.escape(fleet.addresses['gpu-1'])}\b", seen), seen


def test_a_pod_reaches_an_api_server(fleet: Fleet) -> None:
    made = fleet.kubectl("create", "-f", "-", stdin=POD)
    assert made.rc == 0, made.err
    try:
        wait_until(
            "the pod to have asked",
            lambda: fleet.get("pod", "asks-the-api")["status"]["phase"] in ("Succeeded", "Failed"),
            timeout_s=60,
        )
        # The tool speaks no TLS: this is a server's word to those who do not.
        assert fleet.kubectl("logs", "asks-the-api").out == "Client sent an HTTP request to an HTTPS server.\n"
    finally:
        fleet.kubectl("delete", "pod", "asks-the-api", "--now", "--ignore-not-found")


def test_each_path_of_the_page_was_used_and_no_other_was_tried(fleet: Fleet) -> None:
    opened, dropped = wall.traffic(fleet.lab)
    print("connections opened:", ", ".join(f"{name} {count}" for name, count in opened.items()))
    assert dropped == []
    never = {name for name, count in opened.items() if count == 0}
    # A resolver asks by TCP when an answer does not fit into a packet: none of the lab's does.
    assert never == {"long answers of names"}


def test_what_the_page_does_not_name_is_dropped_and_told(fleet: Fleet) -> None:
    node, member = (fleet.addresses[name] for name in ("gpu-1", "etcd-1"))
    connect = f"timeout 1 bash -c '</dev/tcp/{member}/2379'"
    assert fleet.ssh("gpu-1", connect).rc == 124
    _, dropped = wall.traffic(fleet.lab)
    assert dropped == [f"{node} -> {member}:2379"]


def test_without_its_path_the_api_reaches_no_kubelet(fleet: Fleet) -> None:
    def healthz() -> str:
        return fleet.kubectl(*KUBELET, identity="break-glass").out

    (path,) = [one for one in wall.paths(fleet.lab) if one.port == 10250]
    assert healthz() == "ok"
    wall.close(fleet.lab, path)
    try:
        assert healthz() != "ok", "the firewall is one"
    finally:
        wall.reopen(fleet.lab, path)
    wait_until("the way to kubelet to be open again", lambda: healthz() == "ok", timeout_s=60)
