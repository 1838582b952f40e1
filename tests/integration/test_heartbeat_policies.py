"""Attacks on the heartbeats of agents, against a real API server, by every identity.

Only here: rights and policy together let each node write the AgentHeartbeat of its own name, and nobody delete one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.api.heartbeat import Heartbeat, heartbeat_document, heartbeats_path
from gpu_burnin.api.names import Names
from gpu_burnin.node.api import NodeApi
from gpu_burnin.settings.config import Config, PublishConfig
from tests.integration.gate import attacker, kubelet, numbers, refused
from tests.integration.kube import APPLY, JSON_PATCH, MERGE_PATCH, Client, Server

NAMES = Names()
PATH = heartbeats_path(NAMES)
OWN = "an AgentHeartbeat is written by the node of its name alone"


def made(name: str) -> dict[str, Any]:
    return heartbeat_document(name, Heartbeat("boot-1", "2026-11-27T02:00:00.000Z", "2026-11-27T03:00:00.000Z"), NAMES)


@pytest.fixture
def beating(ledger: Server) -> str:
    """A node whose agent has sent its first."""
    name = f"beat-{next(numbers)}"
    reply = kubelet(ledger, name).request("POST", PATH, made(name))
    assert reply.status == 201, reply.message
    return name


def test_the_agent_makes_and_renews_its_own(ledger: Server, admitter: Client, tmp_path: Path) -> None:
    """By its own client, with the certificate that kubelet has."""
    name = f"beat-{next(numbers)}"
    pair = tmp_path / "kubelet.pem"
    pair.write_bytes(b"".join(p.read_bytes() for p in ledger.authority.issue(f"system:node:{name}", ["system:nodes"])))
    publish = PublishConfig(f"https://127.0.0.1:{ledger.port}", ledger.authority.ca, pair)
    agent = NodeApi(Config(node_name=name, publish=publish))
    for renewed in ("2026-11-27T03:00:00.000Z", "2026-11-27T03:01:00.000Z"):
        agent.renew(Heartbeat("boot-1", "2026-11-27T02:00:00.000Z", renewed))
        kept = admitter.request("GET", f"{PATH}/{name}").body
        assert kept["spec"] == {**made(name)["spec"], "renewTime": renewed}


def test_the_admitter_hears_it(admitter: Client, beating: str) -> None:
    listed = admitter.request("GET", PATH)
    assert beating in {item["metadata"]["name"] for item in listed.body["items"]}
    version = listed.body["metadata"]["resourceVersion"]
    assert admitter.request("GET", f"{PATH}?watch=1&timeoutSeconds=1&resourceVersion={version}").status == 200


@pytest.mark.parametrize("who", ["root", "admin", "admitter", "provisioner", "another node"])
def test_nobody_else_writes_it(ledger: Server, who: str, beating: str) -> None:
    clients = {
        "admitter": lambda: ledger.client("muster:admitter"),
        "provisioner": lambda: ledger.client("muster:provisioner"),
        "another node": lambda: kubelet(ledger, f"{beating}0"),
    }
    client = clients.get(who, lambda: attacker(ledger, who, beating))()
    word = OWN if who in ("root", "another node") else "forbidden"
    change = {"spec": {"bootID": "boot-2"}}
    refused(client.request("PATCH", f"{PATH}/{beating}", change, MERGE_PATCH), word)
    patch = [{"op": "replace", "path": "/spec/bootID", "value": "boot-2"}]
    refused(client.request("PATCH", f"{PATH}/{beating}", patch, JSON_PATCH), word)
    refused(client.request("PATCH", f"{PATH}/{beating}?fieldManager=x&force=true", made(beating), APPLY), word)
    refused(client.request("POST", PATH, made(f"other-{next(numbers)}")), word)


@pytest.mark.parametrize("who", ["root", "admin", "kubelet"])
def test_nobody_but_the_provisioner_deletes_it(ledger: Server, provisioner: Client, who: str, beating: str) -> None:
    """One that is gone would look like an agent of before there were heartbeats."""
    client = attacker(ledger, who, beating)
    word = "only the provisioner deletes AgentHeartbeats" if who == "root" else "forbidden"
    refused(client.request("DELETE", f"{PATH}/{beating}"), word)
    refused(client.request("DELETE", PATH), word)
    assert provisioner.request("DELETE", f"{PATH}/{beating}").status == 200


def test_a_node_reads_none(ledger: Server, beating: str) -> None:
    for path in (PATH, f"{PATH}/{beating}"):
        refused(kubelet(ledger, beating).request("GET", path), "forbidden")


def test_what_is_no_heartbeat_is_not_kept(ledger: Server, beating: str) -> None:
    client, name = kubelet(ledger, beating), f"{PATH}/{beating}"
    assert client.request("PATCH", name, {"spec": {"bootID": "x" * 2000}}, MERGE_PATCH).status == 422
    assert client.request("PATCH", name, {"spec": {"bootID": None}}, MERGE_PATCH).status == 422
    assert client.request("PATCH", name, {"spec": {"more": "x"}}, MERGE_PATCH).status == 200
    assert "more" not in client.request("PATCH", name, {"spec": {}}, MERGE_PATCH).body["spec"]
