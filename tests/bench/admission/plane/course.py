"""The course: a fleet grows from one size to the next, and at each size its cost is taken."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import resource
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from gpu_burnin.admission.client import CSRS
from gpu_burnin.api.names import PROVISIONER_USER, SYSTEM_NAMESPACE
from gpu_burnin.fleet.plan import sizing
from tests.bench.admission.api import Api, each
from tests.bench.admission.fleet import Fleet
from tests.bench.admission.heartbeats import first_heartbeat
from tests.bench.admission.measure import Admitter
from tests.bench.admission.plane.controllers import Controllers, controllers
from tests.bench.admission.plane.http2 import Broken
from tests.bench.admission.plane.joins import join
from tests.bench.admission.plane.meter import Cost, Meter, sizes
from tests.bench.admission.plane.node import CONNECTIONS, WATCHES, Node, context_of
from tests.integration.admitter_fleet import Process, admitters
from tests.integration.kube import Part, Server, api_server, apply_ledger, until
from tests.integration.kube_files import defaults, render

SIZES = (250, 1000, 2500, 5000)
NODES_OF_A_SITE = 7500
RENEW_S = 10.0
REST_S = 15.0
LEASES_S = 30.0
AT_ONCE = 32
PATIENCE_S = 1800.0
# Files and connections that API server and driver have beside those of nodes.
_OTHER_FILES = 500
_STEP_LABEL = "bench.example/step"
_PLUGIN = "app.kubernetes.io/name%3Dnvidia-device-plugin"


@dataclass
class Course:
    """One API server with all that works beside it, and the nodes that there are."""

    server: Server
    directory: Path
    admitter: Process
    controllers: Controllers
    say: Callable[[str], None]
    root: Api = field(init=False)
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = Api.of(self.server, "root", ["system:masters"])
        certificate = self.server.authority.issue("system:kube-proxy")
        self._of_proxies = context_of(self.server.authority.ca, *certificate)

    @property
    def pids(self) -> dict[str, int]:
        """Of the processes that are measured."""
        parts: dict[str, Part | Process] = {
            "API server": self.server.apiserver,
            "etcd": self.server.etcd,
            "admitter": self.admitter,
            "controller manager": self.controllers.manager,
            "scheduler": self.controllers.scheduler,
        }
        return {name: part.running.pid for name, part in parts.items() if part.running is not None}

    async def grow(self, count: int) -> None:
        """From the nodes that there are to so many, and what that costs."""
        fleet = Fleet(self.root, count, first=len(self.nodes), labels={_STEP_LABEL: str(count)})
        await asyncio.to_thread(fleet.provision, Api.of(self.server, PROVISIONER_USER))
        await asyncio.to_thread(self._settle)
        meter = Meter(self.pids)
        made = await join(self.server, self.directory, fleet.names)
        self.say(f"{count} nodes: joins of two CSRs each: {meter.of_each(len(made))}")
        await asyncio.to_thread(self._register, fleet)
        self.say(f"{count} nodes: with their objects: {sizes(self.server, self.root)}")
        await self._plugins(count, made)
        self.nodes += made
        self.say(f"{count} nodes: with a device plugin's pod each: {sizes(self.server, self.root)}")
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if count * CONNECTIONS + _OTHER_FILES > most:
            self.say(f"{count} nodes: no watches and no Leases: a process may have {most} open files here (ulimit -Hn)")
            return
        meter = Meter(self.pids)
        await _in_turn(made, lambda node: node.watch(self.server.port, self._of_proxies))
        opened = meter.of_each(len(made))
        early = sum(connection.early for node in made for connection in node.connections)
        again = f"; {early} were asked for again, since the server's cache was late" if early else ""
        self.say(f"{count} nodes: {WATCHES} watches on three connections each: {opened}{again}")
        self.say(f"{count} nodes: with these: {sizes(self.server, self.root)}")
        await self._leases(count, made)
        if lost := next(filter(None, (node.lost() for node in self.nodes)), ""):
            raise Broken(lost)

    def close(self) -> None:
        """End all connections."""
        for node in self.nodes:
            node.close()

    def _register(self, fleet: Fleet) -> None:
        """Nodes, heartbeats and evidence; until the admitter has let them in. Their requests for certificates go."""
        meter = Meter(self.pids)
        fleet.register()
        each(lambda name: first_heartbeat(self.root, name, fleet.boot_id(name)), fleet.names)
        fleet.publish()
        admitter = self._admitter()
        admitter.wait_for("the admission of all", PATIENCE_S, ready=fleet.count)
        admitter.wait_idle(PATIENCE_S)
        self.say(f"{fleet.count} nodes: registered and let in: {meter.of_each(len(fleet.names))}")
        self.root.request("DELETE", CSRS)

    def _admitter(self) -> Admitter:
        address = str(yaml.safe_load(self.admitter.config.read_text())["listen"])
        return Admitter(int(address.rpartition(":")[2]), self.pids["admitter"])

    def _settle(self) -> None:
        admitter = self._admitter()
        admitter.wait_for("the first lists", PATIENCE_S, steady_seconds=0.001)
        admitter.wait_idle(PATIENCE_S)

    async def _plugins(self, count: int, made: Sequence[Node]) -> None:
        """The device plugin comes to the new nodes: one made, bound and told of on each."""
        name = f"nvidia-device-plugin-{count}"
        meter = Meter(self.pids)
        path = f"/apis/apps/v1/namespaces/{SYSTEM_NAMESPACE}/daemonsets"
        await asyncio.to_thread(self.root.request, "POST", path, daemon_set(name, {_STEP_LABEL: str(count)}))

        def bound() -> bool:
            status = self.root.request("GET", f"{path}/{name}").get("status") or {}
            return bool(status.get("desiredNumberScheduled") == len(made) == len(self._pods(name)))

        await asyncio.to_thread(until, f"{len(made)} pods of {name} on their nodes", bound, PATIENCE_S)
        self.say(f"{count} nodes: a DaemonSet's pod on each, made and bound: {meter.of_each(len(made))}")
        pods, meter = await asyncio.to_thread(self._pods, name), Meter(self.pids)

        async def report(node: Node) -> None:
            await node.connect(self.server.port)
            await node.report_pod(SYSTEM_NAMESPACE, pods[node.name])
            node.close()

        await _in_turn(made, report)
        self.say(f"{count} nodes: its kubelet connects and writes its status twice: {meter.of_each(len(made))}")

    def _pods(self, name: str) -> dict[str, str]:
        """The pods of a DaemonSet that have a node, by that."""
        path = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/pods?labelSelector={_PLUGIN}&fieldSelector=spec.nodeName%21%3D"
        return {
            pod["spec"]["nodeName"]: pod["metadata"]["name"]
            for pod in self.root.request("GET", path)["items"]
            if pod["metadata"]["name"].startswith(f"{name}-")
        }

    async def _leases(self, count: int, made: Sequence[Node]) -> None:
        """All kubelets renew their Leases each 10 s; then as often as those of a whole site.

        Those of a small fleet alone can hardly be told from what is done at rest.
        """
        await _in_turn(made, Node.make_lease)
        meter = Meter(self.pids)
        await asyncio.sleep(REST_S)
        rest = meter.shares()
        self.say(f"{count} nodes: at rest, shares of a core: {_percent(rest)}")
        of_these = await self._renew(count / RENEW_S, LEASES_S, rest)
        self.say(f"{count} nodes: their Leases each {RENEW_S:.0f} s: {of_these}")
        wanted = NODES_OF_A_SITE / RENEW_S
        of_a_site = await self._renew(wanted, LEASES_S, rest)
        self.say(
            f"{count} nodes renew as often as {NODES_OF_A_SITE} would, {wanted:.0f} a second: {of_a_site}; a core of "
            f"API server and etcd carries {of_a_site.a_core:.0f} a second, {NODES_OF_A_SITE} nodes take "
            f"{wanted / of_a_site.a_core:.2f} cores"
        )

    async def _renew(self, a_second: float, seconds: float, rest: dict[str, float]) -> Cost:
        """The nodes in turn, so many a second for so long; fewer where `AT_ONCE` requests cannot be as many."""
        meter, began_s, writers = Meter(self.pids, rest), time.monotonic(), min(AT_ONCE, len(self.nodes))

        async def renew(first: int) -> int:
            """Each writer has nodes of its own: a Lease has one writer, who waits for its answer."""
            for done, node in enumerate(itertools.cycle(self.nodes[first::writers])):
                await asyncio.sleep(began_s + (first + done * writers) / a_second - time.monotonic())
                if time.monotonic() - began_s > seconds:
                    return done
                await node.renew_lease()
            return 0

        done = await asyncio.gather(*map(renew, range(writers)))
        return meter.of_each(sum(done))


def sizes_up_to(count: int) -> list[int]:
    """The steps to so many nodes."""
    return [*(size for size in SIZES if size < count), count]


def run(directory: Path, counts: Sequence[int], say: Callable[[str], None]) -> None:
    """All sizes, one after the other, on one API server."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    flags = [f"--max-requests-inflight={sizing.reads_in_flight(max(counts))}"]
    flags += [f"--max-mutating-requests-inflight={sizing.writes_in_flight(max(counts))}"]
    with ExitStack() as stack:
        server = stack.enter_context(api_server(directory, *flags))
        apply_ledger(server)
        settings = {"workers": 8, "joins_per_s": 10_000, "tests": {"nodes": 0}}
        (admitter,) = stack.enter_context(admitters(server, directory, ["plane"], **settings))
        working = stack.enter_context(controllers(server, directory, max(counts)))
        course = Course(server, directory, admitter, working, say)
        say(f"{os.cpu_count()} cores, one API server and etcd; nothing yet: {sizes(server, course.root)}")
        asyncio.run(_grow(course, counts))


def daemon_set(name: str, of_nodes: dict[str, str]) -> dict[str, object]:
    """The device plugin as its role writes it, for some nodes."""
    variables = {
        **defaults("nvidia_device_plugin"),
        "nvidia_device_plugin_image": "registry.example/plugin",
        "nvidia_device_plugin_cdi_hook": "/usr/bin/nvidia-cdi-hook",
        "groups": {},
    }
    made: dict[str, object] = yaml.safe_load(render("nvidia_device_plugin", "daemonset.yaml.j2", variables))
    text = json.dumps(made).replace('"name": "nvidia-device-plugin", "namespace"', f'"name": "{name}", "namespace"')
    found = json.loads(text)
    found["spec"]["template"]["spec"]["nodeSelector"] = of_nodes
    labels = found["spec"]["template"]["metadata"]["labels"]
    labels |= of_nodes
    found["spec"]["selector"]["matchLabels"] = labels
    return dict(found)


async def _grow(course: Course, counts: Iterable[int]) -> None:
    try:
        for count in counts:
            await course.grow(count)
    finally:
        course.close()


async def _in_turn(nodes: Sequence[Node], work: Callable[[Node], Awaitable[None]]) -> None:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(node: Node) -> None:
        async with turns:
            await work(node)

    await asyncio.gather(*map(one, nodes))


def _percent(shares: dict[str, float]) -> str:
    return ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
