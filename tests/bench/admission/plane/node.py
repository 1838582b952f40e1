"""A node's programs as the API server sees them: kubelet, kube-proxy and agent, each with a connection and watches."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.bench.admission.plane.http2 import JSON, PROTOBUF, Connection
from tests.integration.kube import STRATEGIC_PATCH

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
# What an informer of client-go 1.36 asks for.
_INFORMER = (
    "allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan&sendInitialEvents=true&timeoutSeconds=3600&watch=true"
)
# Where the sources of Kubernetes 1.36.3 open them: pkg/kubelet/kubelet.go (Node, services), config/apiserver.go (pods),
# volume_host.go (CSIDrivers), runtimeclass/runtimeclass_manager.go; cmd/kube-proxy/app/server.go and pkg/proxy/node.go.
# A kubelet has one more for each ConfigMap and Secret that a pod of its node names; the device plugin's names none.
KUBELET = (
    "/api/v1/nodes?fieldSelector=metadata.name%3D{name}",
    "/api/v1/pods?fieldSelector=spec.nodeName%3D{name}",
    "/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone",
    "/apis/storage.k8s.io/v1/csidrivers?",
    "/apis/node.k8s.io/v1/runtimeclasses?",
)
_UNPROXIED = quote("!service.kubernetes.io/headless,!service.kubernetes.io/service-proxy-name", safe="")
KUBE_PROXY = (
    f"/api/v1/services?fieldSelector=spec.clusterIP%21%3DNone&labelSelector={_UNPROXIED}",
    f"/apis/discovery.k8s.io/v1/endpointslices?labelSelector={_UNPROXIED}",
    "/apis/networking.k8s.io/v1/servicecidrs?",
    "/api/v1/nodes?fieldSelector=metadata.name%3D{name}",
)
AGENT = ("/api/v1/nodes?fieldSelector=metadata.name%3D{name}",)
CONNECTIONS = 3
WATCHES = len(KUBELET) + len(KUBE_PROXY) + len(AGENT)
# Any moment whose seconds are five bytes as protobuf writes them, and that nothing else in a Lease has.
_FIRST_RENEWAL_S = 4_000_000_000


@dataclass
class Node:
    """One node with its own certificate, and its connections once they are made."""

    name: str
    context: ssl.SSLContext
    kubelet: Connection | None = None
    others: list[Connection] = field(default_factory=list)
    _lease: bytes = b""
    _renewed_s: int = _FIRST_RENEWAL_S

    async def connect(self, port: int) -> Connection:
        """kubelet's connection, which the API server ends when nothing goes on there for 90 s."""
        self.kubelet = await Connection.to(port, self.context)
        return self.kubelet

    async def watch(self, port: int, of_proxies: ssl.SSLContext) -> None:
        """All watches of its three programs, each of which has told what there is."""
        kubelet, proxy = await self.connect(port), await Connection.to(port, of_proxies)
        agent = await Connection.to(port, self.context)
        self.others = [proxy, agent]
        users = ((kubelet, KUBELET, PROTOBUF), (proxy, KUBE_PROXY, PROTOBUF), (agent, AGENT, JSON))
        await asyncio.gather(
            *(
                connection.watch(f"{path.format(name=self.name)}&{_INFORMER}".replace("?&", "?"), answer)
                for connection, paths, answer in users
                for path in paths
            )
        )

    async def make_lease(self) -> None:
        """Its Lease, as kubelet makes it."""
        assert self.kubelet is not None
        lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self.name, "namespace": "kube-node-lease"},
            "spec": {"holderIdentity": self.name, "leaseDurationSeconds": 40, "renewTime": _FIRST_RENEWAL},
        }
        await self.kubelet.request("POST", LEASES, json.dumps(lease).encode())
        self._lease = await self.kubelet.request("GET", f"{LEASES}/{self.name}", answer=PROTOBUF)

    async def renew_lease(self) -> None:
        """What kubelet does each 10 s: the whole object that it has, with another time. Raises Broken."""
        assert self.kubelet is not None
        body = self._lease.replace(_varint(self._renewed_s), _varint(self._renewed_s + 1))
        self._renewed_s += 1
        self._lease = await self.kubelet.request("PUT", f"{LEASES}/{self.name}", body, PROTOBUF, PROTOBUF)

    async def report_pod(self, namespace: str, pod: str) -> None:
        """kubelet's two words on a pod that starts: its conditions, and that it runs."""
        assert self.kubelet is not None
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/status"
        for status in _POD_STATUSES:
            await self.kubelet.request("PATCH", path, json.dumps({"status": status}).encode(), STRATEGIC_PATCH)

    @property
    def connections(self) -> list[Connection]:
        """Those that it has made."""
        return [one for one in (self.kubelet, *self.others) if one is not None]

    def lost(self) -> str:
        """Why one of its connections is lost, "" where all are there."""
        found = [one.lost for one in self.connections if one.lost]
        return f"{self.name}: {found[0]}" if found else ""

    def close(self) -> None:
        """End all its connections."""
        for connection in self.connections:
            connection.close()


def context_of(authority: Path, certificate: Path, key: Path) -> ssl.SSLContext:
    """A context of one client that speaks HTTP/2."""
    context = ssl.create_default_context(cafile=str(authority))
    context.load_cert_chain(certificate, key)
    context.set_alpn_protocols(["h2"])
    return context


def _varint(number: int) -> bytes:
    found = b""
    while number >= 128:
        found += bytes([number % 128 + 128])
        number //= 128
    return found + bytes([number])


_FIRST_RENEWAL = "2096-10-02T07:06:40.000000Z"
_NOW = "2026-11-28T05:00:00Z"


def _conditions(ready: str) -> Sequence[dict[str, Any]]:
    states = {"PodReadyToStartContainers": ready, "Initialized": "True", "Ready": ready, "ContainersReady": ready}
    return [{"type": kind, "status": state, "lastTransitionTime": _NOW} for kind, state in states.items()]


_POD_STATUSES: Sequence[dict[str, Any]] = (
    {
        "phase": "Pending",
        "startTime": _NOW,
        "hostIP": "198.18.0.1",
        "conditions": _conditions("False"),
        "containerStatuses": [
            {
                "name": "plugin",
                "image": "registry.example/plugin",
                "imageID": "",
                "ready": False,
                "restartCount": 0,
                "state": {"waiting": {"reason": "ContainerCreating"}},
            }
        ],
    },
    {
        "phase": "Running",
        "podIP": "198.18.64.1",
        "podIPs": [{"ip": "198.18.64.1"}],
        "conditions": _conditions("True"),
        "containerStatuses": [
            {
                "name": "plugin",
                "image": "registry.example/plugin",
                "imageID": "registry.example/plugin@sha256:" + "1" * 64,
                "containerID": "containerd://" + "2" * 64,
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": _NOW}},
            }
        ],
    },
)
