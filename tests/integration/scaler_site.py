"""Machines that a program switches, on a real API server: kubelets and agents that boot with them, and scalers."""

from __future__ import annotations

import stat
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.admission.client import KubeApi
from gpu_burnin.admission.machines import have_machines
from gpu_burnin.api.crd import machine_crd
from gpu_burnin.api.machine_power import MachinePower, MachineSpec, Supply, machines_path, parse_machine
from gpu_burnin.api.names import PROVISIONER_USER, SCALER_USER, Names
from gpu_burnin.api.record import Hardware, Place
from tests.integration.admitter_fleet import Machine, Process
from tests.integration.gate import NODES
from tests.integration.kube import JSON_PATCH, STRATEGIC_PATCH, Client, Server, free_ports, until
from tests.integration.kube_files import gate_file, render
from tests.support.admission_helpers import Signer, new_host_key

NAMES = Names()
MODEL = "h100-sxm5-80gb"
IN_CLOUD, AT_HOME = Supply("cloud"), Place("r1", "l1", "a")
_PROGRAM = """#!{python}
import json, pathlib, sys
place, verb = pathlib.Path({place!r}), sys.argv[1]
if verb == "list":
    for path in sorted(place.glob("*.on")):
        print(json.dumps({{"name": path.stem}}))
else:
    name = json.loads(sys.stdin.readline())["name"]
    (place / (name + ".on")).touch() if verb == "create" else (place / (name + ".on")).unlink(missing_ok=True)
    with (place / "log").open("a") as log:
        print(verb, name, file=log)
"""


def scaler_objects() -> list[Any]:
    """What the scaler may do, as role scaler applies it."""
    text = render("scaler", "objects.yaml.j2", {"scaler_domain": "muster.dev"})
    return list(yaml.safe_load_all(text))


@contextmanager
def machines_known(server: Server) -> Iterator[Server]:
    """The kind is served, the gate's policies of machines hold, and the scaler has its rights, until the block ends.

    The MachinePowers go with it.
    """
    provisioner = server.client(PROVISIONER_USER)
    reply = provisioner.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", machine_crd(NAMES))
    # Another file of the session may have been here.
    assert reply.status in (201, 409), reply.message
    until("the kind's being served", lambda: provisioner.request("GET", machines_path(NAMES)).status == 200)
    root = server.client("break-glass", ["system:masters"])
    for item in scaler_objects():
        group, namespace = f"/apis/{item['apiVersion']}", item["metadata"].get("namespace")
        path = f"{group}/namespaces/{namespace}" if namespace else group
        reply = root.request("POST", f"{path}/{item['kind'].lower()}s", item)
        assert reply.status in (201, 409), reply.message
    before = server.policy_files()
    server.load({**before, "machines.yaml": gate_file("machines.yaml", server.directory)})
    try:
        yield server
    finally:
        for item in provisioner.request("GET", machines_path(NAMES)).body["items"]:
            reply = provisioner.request("DELETE", machines_path(NAMES, item["metadata"]["name"]))
            assert reply.status == 200, reply.message
        server.load(before)


@dataclass
class Cloud:
    """The program's machines, and what boots on them."""

    server: Server
    folder: Path
    machines: dict[str, Machine] = field(default_factory=dict)
    specs: dict[str, MachineSpec] = field(default_factory=dict)
    running: set[str] = field(default_factory=set)
    _over: threading.Event = field(default_factory=threading.Event)

    @property
    def program(self) -> Path:
        """The program, made when it is first asked for."""
        path = self.folder / "cloud"
        if not path.exists():
            path.write_text(_PROGRAM.format(python=sys.executable, place=str(self.folder)))
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return path

    @property
    def on(self) -> set[str]:
        """The machines whose power is on."""
        return {path.stem for path in self.folder.glob("*.on")}

    def orders(self) -> list[str]:
        """Every order that was given."""
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []

    def add(self, *names: str, supply: Supply = IN_CLOUD, place: Place = AT_HOME) -> None:
        """Machines of the inventory, off: their ledger entries and MachinePowers."""
        key = self.folder / "key"
        if not key.exists():
            new_host_key(key)
        for name in names:
            machine = Machine(self.server, name, Signer(key, self.folder / "known_hosts"))
            machine.provision(hardware=Hardware(8, model=MODEL), place=place)
            self.machines[name] = machine
            self.specs[name] = MachineSpec(supply, 8, MODEL, place)
        api = KubeApi(self.server.kubeconfig(PROVISIONER_USER))
        have_machines(api, NAMES, self.specs, apply=True)

    def power(self, name: str) -> MachinePower:
        """Its MachinePower as it is."""
        root = self.server.client("break-glass", ["system:masters"])
        return parse_machine(root.request("GET", machines_path(NAMES, name)).body)

    def live(self) -> None:
        """Boot what is on, and have kubelets fall silent where it is off, until closed."""
        while not self._over.wait(0.05):
            on = self.on
            for name in on - self.running:
                self._boot(self.machines[name])
                self.running.add(name)
            for name in self.running - on:
                self._silent(self.machines[name].own, name)
                self.running.discard(name)

    def close(self) -> None:
        """Nothing boots any more."""
        self._over.set()

    def _boot(self, machine: Machine) -> None:
        machine.boot = str(uuid.uuid4())
        if machine.own.request("GET", f"{NODES}/{machine.name}").status != 200:
            machine.register()
        machine.publish()
        until(f"the report of {machine.name}", machine.report, 60)
        until(f"the taints of {machine.name}", lambda: self._well(machine.name), 60)

    def _well(self, name: str) -> bool:
        """Whether the taint of a node that is not ready is gone: there is no controller manager that takes it away."""
        root = self.server.client("break-glass", ["system:masters"])
        node = root.request("GET", f"{NODES}/{name}").body
        taints = node["spec"].get("taints", [])
        left = [taint for taint in taints if not taint["key"].startswith("node.kubernetes.io/")]
        test = {"op": "test", "path": "/metadata/resourceVersion", "value": node["metadata"]["resourceVersion"]}
        patch = [test, {"op": "add", "path": "/spec/taints", "value": left}]
        return left == taints or root.request("PATCH", f"{NODES}/{name}", patch, JSON_PATCH).status == 200

    def _silent(self, client: Client, name: str) -> None:
        condition = {"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown", "message": ""}
        body = {"status": {"conditions": [condition]}}
        client.request("PATCH", f"{NODES}/{name}/status", body, STRATEGIC_PATCH)


class Scaler(Process):
    """One scaler as its unit runs it."""

    def start(self) -> None:
        """Run it."""
        import subprocess

        command = [sys.executable, "-c", "from gpu_burnin.__main__ import muster; muster()", "scaler"]
        with self.log.open("ab") as output:
            self.running = subprocess.Popen([*command, "--config", str(self.config)], stdout=output, stderr=output)


def scaler(cloud: Cloud, folder: Path, identity: str, redfish: Mapping[str, str] | None = None, **rules: Any) -> Scaler:
    """A scaler with these rules, not started. `redfish` is its configuration's, for machines that BMCs switch."""
    (port,) = free_ports(1)
    config = folder / f"{identity}.yaml"
    content = {
        "kubeconfig": str(cloud.server.kubeconfig(SCALER_USER)),
        "listen": f"127.0.0.1:{port}",
        "identity": identity,
        "observe_s": 2,
        "rules": {"settle_s": 1, "feed_s": 1, "on_per_feed": 100, "in_share": 1.0, "idle_s": 1, **rules},
        "programs": {"cloud": {"command": [str(cloud.program)], "call_s": 20, "shown_s": 20}},
        **({"redfish": dict(redfish)} if redfish else {}),
    }
    config.write_text(yaml.safe_dump(content))
    return Scaler(identity, config, folder / f"{identity}.log")


def wait_for_order(cloud: Cloud, count: int, timeout_s: float = 60.0) -> bool:
    """Whether one more order than `count` comes in time."""
    end = time.monotonic() + timeout_s
    while len(cloud.orders()) <= count:
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True
