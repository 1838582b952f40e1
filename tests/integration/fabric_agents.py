"""Agents that do their part in tests between nodes, as processes on loopback, and what such tests leave."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from gpu_burnin.api.record import Place
from gpu_burnin.api.rendezvous import Nic
from gpu_burnin.system import host
from tests.integration.admitter_fleet import NAMES, Machine, Person
from tests.integration.kube import Server
from tests.support.admission_helpers import Signer, new_host_key

SETTINGS: dict[str, Any] = {
    "joins_per_s": 1000,
    "max_unready_share": 1.0,
    "workers": 2,
    "rules": {"settle_s": 1.0},
    "tests": {"quick_every_s": 0, "standard_every_s": 0, "extended_every_s": 0, "ask_again_s": 5},
    "fabric": {"every_s": 86400, "seconds": 0.5, "size_mib": 1},
}


def fabric_machine(server: Server, folder: Path, number: int) -> Machine:
    """A node that is let in, with a NIC and without an agent. Its files are in a folder of its name."""
    name = f"pair-{number}"
    folder = folder / name
    folder.mkdir()
    new_host_key(folder / "key")
    machine = Machine(server, name, Signer(folder / "key", folder / "unused"), boot=host.boot_id())
    machine.provision(fabric=(Nic(0, f"127.0.0.{10 + number}"),), place=Place(leaf="leaf-1"))
    machine.register()
    machine.publish()
    return machine


@contextmanager
def agent(server: Server, folder: Path, number: int, fault: str = "") -> Iterator[Machine]:
    """Such a node with an agent that does its part in tests, until the block ends; what it sends has this `fault`."""
    machine = fabric_machine(server, folder, number)
    name, folder = machine.name, folder / machine.name
    certificate, key = server.authority.issue(f"system:node:{name}", ["system:nodes"])
    (folder / "client.pem").write_text(certificate.read_text() + key.read_text())
    publish = {
        "server": f"https://127.0.0.1:{server.port}",
        "ca": str(server.authority.ca),
        "client_cert": str(folder / "client.pem"),
    }
    mine = {"node_name": name, "host_key": str(folder / "key"), "state_dir": str(folder / "state")}
    (folder / "config.yaml").write_text(yaml.safe_dump({**mine, "publish": publish}))
    (folder / "fault").write_text(fault)
    command = [sys.executable, "-m", "tests.support.fabric_agent", str(folder / "config.yaml"), str(folder)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as running:
        try:
            yield machine
        finally:
            running.kill()


def proof(person: Person, machine: Machine) -> dict[str, Any]:
    return dict((person.record(machine).get("status") or {}).get("fabric") or {})


def marks(machine: Machine) -> list[str]:
    """What a test leaves on a Node while it is under way."""
    node = machine.node()
    keys = [key for key in node["metadata"]["annotations"] if key in (NAMES.fabric_test, NAMES.fabric)]
    return keys + [taint["key"] for taint in node["spec"].get("taints") or [] if taint["key"] == NAMES.testing]
