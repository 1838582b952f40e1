"""An agent has its own node's credential: what it may and may not do, on a real API server.

Only here: NodeRestriction and the gate together answer a node's own credential, verb by verb.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.gate import EVIDENCE, FABRIC, FABRIC_TEST, NODES, held_node, kubelet, refused
from tests.integration.kube import MERGE_PATCH, Client, Reply, Server

AGENT, REQUEST, LEAVE, ADMITTED = (f"muster.dev/{name}" for name in ("agent", "request", "leave", "admitted"))


@pytest.fixture
def two(server: Server) -> tuple[Client, str, str]:
    """The credential of one node, its name, and the name of another."""
    mine, theirs = held_node(server), held_node(server)
    return kubelet(server, mine), mine, theirs


def by_name(name: str, **more: str) -> str:
    """The path of a list of one node, as the agent asks."""
    query = "&".join(f"{key}={value}" for key, value in more.items())
    return f"{NODES}?fieldSelector=metadata.name%3D{name}" + (f"&{query}" if query else "")


def annotate(client: Client, name: str, key: str, value: str | None) -> Reply:
    body: dict[str, Any] = {"metadata": {"annotations": {key: value}}}
    return client.request("PATCH", f"{NODES}/{name}", body, MERGE_PATCH)


def test_it_reads_watches_and_writes_its_own_node(two: tuple[Client, str, str]) -> None:
    client, mine, _ = two
    assert client.request("GET", f"{NODES}/{mine}").status == 200
    listed = client.request("GET", by_name(mine))
    assert listed.status == 200
    version = listed.body["metadata"]["resourceVersion"]
    assert client.request("GET", by_name(mine, watch="1", timeoutSeconds="1", resourceVersion=version)).status == 200
    for key in (AGENT, EVIDENCE, FABRIC):
        assert annotate(client, mine, key, "text").status == 200
        assert annotate(client, mine, key, None).status == 200


def test_it_reads_no_other_node(two: tuple[Client, str, str]) -> None:
    client, _, theirs = two
    for path in (f"{NODES}/{theirs}", by_name(theirs), by_name(theirs, watch="1", timeoutSeconds="1"), NODES):
        reply = client.request("GET", path)
        assert reply.status == 403, f"{path}: {reply.status} {reply.message}"


@pytest.mark.parametrize("key", [AGENT, EVIDENCE, FABRIC, REQUEST, FABRIC_TEST, LEAVE, ADMITTED])
def test_it_writes_no_other_node(two: tuple[Client, str, str], key: str) -> None:
    client, _, theirs = two
    reply = annotate(client, theirs, key, "text")
    assert reply.status == 403, reply.message


@pytest.mark.parametrize("key", [REQUEST, FABRIC_TEST, LEAVE, ADMITTED])
def test_it_asks_itself_for_nothing(two: tuple[Client, str, str], key: str) -> None:
    client, mine, _ = two
    refused(annotate(client, mine, key, "text"))


@pytest.mark.parametrize("verb", ["GET", "POST", "DELETE"])
def test_the_ledger_is_not_its_business(two: tuple[Client, str, str], verb: str) -> None:
    client, mine, _ = two
    path = "/apis/muster.dev/v1/nodeadmissions"
    body = {"apiVersion": "muster.dev/v1", "kind": "NodeAdmission", "metadata": {"name": mine}, "spec": {}}
    reply = client.request(verb, path if verb == "POST" else f"{path}/{mine}", body if verb == "POST" else None)
    assert reply.status == 403, reply.message
