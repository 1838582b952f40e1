"""Dedicated nodes on a real API server behind the gate: given, kept by a Node that is made anew, and given back.

Only here: that no version of a Node ever takes work without the taint of the team that its record names.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.names import GPU_LABEL, RACK_LABEL, READY_LABEL, TEAM_LABEL, Names
from gpu_burnin.api.record import Hardware, Place
from tests.integration.admitter_fleet import Machine, admitters, make_machines
from tests.integration.gate import NODES, merge, numbers, refused
from tests.integration.kube import NO_BINARIES, Client, Server, api_server, apply_ledger, binaries, until
from tests.integration.ledger import LEDGER
from tests.support.admission_helpers import Signer, new_host_key

NAMES = Names()
MODEL = "h100-sxm5-80gb"
PACE = {"joins_per_s": 1000, "max_unready_share": 1.0}
AUDIO = {"key": NAMES.team, "value": "audio", "effect": "NoSchedule"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One of its own: an admitter leaves its Lease there, which nobody else may take away."""
    if binaries() is None:
        pytest.skip(NO_BINARIES)
    with api_server(tmp_path_factory.mktemp("api")) as running:
        yield running


@pytest.fixture(scope="module")
def ledger(server: Server) -> Server:
    apply_ledger(server)
    return server


@pytest.fixture(scope="module")
def root(server: Server) -> Client:
    return server.client("break-glass", ["system:masters"])


@contextmanager
def admitter(server: Server, directory: Path, identity: str, jobs: dict[str, Any] | None) -> Iterator[None]:
    """An admitter that gives its Lease back at the end."""
    with admitters(server, directory, [identity], **PACE, **({"jobs": jobs} if jobs else {})) as (process,):
        yield
        process.signal(signal.SIGTERM)
        assert process.running is not None
        process.running.wait()


def a_rack(server: Server, directory: Path) -> list[Machine]:
    """Three nodes, two of them in one rack, and all with their proof."""
    key, machines = directory / "host-key", []
    new_host_key(key)
    for number in range(3):
        machine = Machine(server, f"team-{next(numbers)}", Signer(key, directory / "unused"))
        machine.provision(hardware=Hardware(8, model=MODEL), place=Place(rack=f"r{number // 2}"))
        machine.register()
        machine.publish()
        machines.append(machine)
    return machines


def taints(node: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of the fleet's domain, without their times."""
    found = [taint for taint in node["spec"].get("taints") or [] if taint["key"].startswith(NAMES.domain)]
    return [{key: value for key, value in taint.items() if key != "timeAdded"} for taint in found]


def labels(node: dict[str, Any]) -> dict[str, str]:
    return node["metadata"].get("labels") or {}


def test_a_team_has_its_nodes_alone_whatever_becomes_of_their_nodes(
    ledger: Server, root: Client, tmp_path: Path
) -> None:
    machines = a_rack(ledger, tmp_path)
    queues: dict[str, Any] = {"audio": {}}

    def all_ready() -> bool:
        return all(machine.report() and READY_LABEL in labels(machine.node()) for machine in machines)

    with admitter(ledger, tmp_path, "api-1", {"queues": queues}):
        until("the admissions", all_ready)
    assert {labels(machine.node())[GPU_LABEL] for machine in machines} == {MODEL}
    assert [labels(machine.node())[RACK_LABEL] for machine in machines] == ["r0", "r0", "r1"]
    jobs = {"queues": queues, "dedicated": {"audio": {MODEL: 16}}}
    with admitter(ledger, tmp_path, "api-2", jobs):
        first, second, other = machines
        until("the team's rack", lambda: all(taints(one.node()) == [AUDIO] for one in (first, second)))
        assert taints(other.node()) == [] and TEAM_LABEL not in labels(other.node())
        assert labels(first.node())[TEAM_LABEL] == "audio"
        assert root.request("GET", f"{LEDGER}/{first.name}").body["status"]["team"] == "audio"
        # Nobody else takes it away, or gives it.
        refused(merge(root, first.name, {"spec": {"taints": []}}))
        refused(merge(root, other.name, {"spec": {"taints": [AUDIO]}}))
        refused(merge(root, other.name, {"metadata": {"labels": {TEAM_LABEL: "audio"}}}))
        version = root.request("GET", NODES).body["metadata"]["resourceVersion"]
        assert root.request("DELETE", f"{NODES}/{second.name}").status == 200
        second.register()
        second.publish()
        until("its admission", lambda: second.report() and READY_LABEL in labels(second.node()))
        assert taints(second.node()) == [AUDIO]
    path = f"{NODES}?watch=1&resourceVersion={version}&timeoutSeconds=1&fieldSelector=metadata.name={second.name}"
    seen = [event["object"] for event in root.stream(path) if event["type"] == "MODIFIED"]
    opened = [node for node in seen if READY_LABEL in labels(node)]
    assert opened and all(AUDIO in taints(node) for node in opened)
    with admitter(ledger, tmp_path, "api-3", None):
        until("its end", lambda: all(taints(machine.node()) == [] for machine in machines))
        assert TEAM_LABEL not in labels(first.node())


@pytest.mark.parametrize("key", [RACK_LABEL, GPU_LABEL, TEAM_LABEL])
def test_a_node_says_nothing_of_its_place_itself(ledger: Server, tmp_path: Path, key: str) -> None:
    (machine,) = make_machines(ledger, tmp_path, f"own-{next(numbers)}", 1)
    reply = merge(machine.own, machine.name, {"metadata": {"labels": {key: "audio"}}})
    assert reply.status == 403, reply.message
