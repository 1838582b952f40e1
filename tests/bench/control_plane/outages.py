"""The quick scenarios: parts of the control plane that stop, hang, die or restart under clients."""

from __future__ import annotations

import time

from tests.integration.fleet import API_SERVERS, wait_until
from tests.lab import hosts

from .clients import Clients
from .health import BALANCER, EVENTS, NODES, balanced, follower, leader, ready_nodes

# While a part is out, each client writes so often.
WRITES = 50
MINUTE_S = 60
SERVER = "api-1"
NOTICED_S = 60
POD = """
apiVersion: v1
kind: Pod
metadata: {name: without-events}
spec:
  restartPolicy: Never
  nodeSelector: {muster.node-restriction.kubernetes.io/ready: "true"}
  containers: [{name: tool, image: "lab.muster.dev/tool:1", imagePullPolicy: Never, args: [pause]}]
"""


def member_stopped(clients: Clients) -> str:
    """A member that does not lead is stopped."""
    return _stopped(clients, follower(clients.fleet), "etcd")


def leader_killed(clients: Clients) -> str:
    """The member that leads is killed; systemd starts it again.

    What it had been handed is lost with it, and etcd answers such a request after 5 s and two election timeouts (its
    ReqTimeout). The probe does not wait so long.
    """
    host = leader(clients.fleet)
    clients.fleet.must(host, "systemctl kill --signal KILL etcd")
    clients.write_on(WRITES)
    return host


def member_rebooted(clients: Clients) -> str:
    """The host of a member that does not lead restarts."""
    return _rebooted(clients, follower(clients.fleet))


def events_stopped(clients: Clients, away_s: float = MINUTE_S) -> str:
    """The events etcd is away for so long: nodes stay Ready, pods are made, the balancer keeps all servers in."""
    fleet = clients.fleet
    fleet.must(EVENTS, "systemctl stop etcd")
    end_s = time.monotonic() + away_s
    try:
        made = fleet.kubectl("create", "-f", "-", stdin=POD)
        assert made.rc == 0, made.err
        looks = 0
        while time.monotonic() < end_s:
            used, ready = balanced(fleet), ready_nodes(fleet)
            assert used == set(API_SERVERS), f"the balancer uses {', '.join(sorted(used)) or 'none'} alone"
            assert ready >= set(NODES), f"Ready are {', '.join(sorted(ready))} alone"
            looks += 1
        phase = fleet.get("pod", "without-events")["status"]["phase"]
        assert phase == "Running", f"the pod that was made meanwhile is {phase}"
        stayed = f"{len(API_SERVERS)} servers stayed in and {len(NODES)} nodes Ready"
        return f"a pod was made and ran, {stayed} in {looks} looks"
    finally:
        fleet.must(EVENTS, "systemctl start etcd")
        fleet.kubectl("delete", "pod", "without-events", "--now", "--ignore-not-found")


def server_stopped(clients: Clients) -> str:
    """An API server is stopped."""
    return _stopped(clients, SERVER, "kube-apiserver")


def server_paused(clients: Clients) -> str:
    """An API server hangs: it keeps its connections and answers nothing."""
    fleet = clients.fleet
    fleet.must(SERVER, "systemctl kill --signal STOP kube-apiserver")
    try:
        wait_until("the balancer to notice", lambda: SERVER not in balanced(fleet), timeout_s=NOTICED_S)
        clients.write_on(WRITES)
    finally:
        fleet.must(SERVER, "systemctl kill --signal CONT kube-apiserver")
    return SERVER


def server_killed(clients: Clients) -> str:
    """An API server is killed; systemd starts it again."""
    clients.fleet.must(SERVER, "systemctl kill --signal KILL kube-apiserver")
    clients.write_on(WRITES)
    return SERVER


def server_rebooted(clients: Clients) -> str:
    """The host of an API server restarts."""
    return _rebooted(clients, SERVER)


def balancer_restarted(clients: Clients) -> str:
    """The lab's one balancer is restarted."""
    clients.fleet.must(BALANCER, "systemctl restart haproxy")
    clients.write_on(WRITES)
    return BALANCER


def balancer_killed(clients: Clients) -> str:
    """The lab's one balancer is killed; systemd starts it again."""
    clients.fleet.must(BALANCER, "systemctl kill --signal KILL haproxy")
    clients.write_on(WRITES)
    return BALANCER


def _stopped(clients: Clients, host: str, unit: str) -> str:
    clients.fleet.must(host, f"systemctl stop {unit}")
    try:
        clients.write_on(WRITES)
    finally:
        clients.fleet.must(host, f"systemctl start {unit}")
    return host


def _rebooted(clients: Clients, host: str) -> str:
    hosts.reboot(clients.fleet.lab, host)
    clients.write_on(WRITES)
    return host
