"""The audit log of a real API server with the role's policy: what was touched and by whom, never what a secret says.

Only here: what the role's policy puts into the log that a real API server writes, and what it leaves out.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from .gate import NODES, a_node, refused
from .kube import APPLY, MERGE_PATCH, Client, Server, until

SECRETS = "/api/v1/namespaces/default/secrets"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
HUSH = "hush-hush-never-told"
ENCODED = base64.b64encode(HUSH.encode()).decode()


def entries(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """What the log has of requests with these fields."""
    lines = (server.directory / "audit.log").read_text().splitlines()
    whole = [json.loads(line) for line in lines if line.endswith("}")]
    return [entry for entry in whole if all(entry.get(name) == value for name, value in fields.items())]


def logged(server: Server, **fields: Any) -> list[dict[str, Any]]:
    """The same, once there are some."""
    until(f"entries of {fields}", lambda: bool(entries(server, **fields)), 20)
    return entries(server, **fields)


def test_secrets_and_config_maps_leave_who_and_what_but_not_their_content(server: Server) -> None:
    root = server.client("hushed", ["system:masters"])
    for path, kind in ((SECRETS, "Secret"), (CONFIG_MAPS, "ConfigMap")):
        data = {"k": ENCODED if kind == "Secret" else HUSH}
        whole = {"apiVersion": "v1", "kind": kind, "metadata": {"name": "quiet"}, "data": data}
        assert root.request("POST", path, whole).status == 201
        assert root.request("GET", f"{path}/quiet").status == 200
        assert root.request("GET", path).status == 200
        assert root.request("PUT", f"{path}/quiet", whole).status == 200
        assert root.request("PATCH", f"{path}/quiet", {"data": {"m": data["k"]}}, MERGE_PATCH).status == 200
        applied = f"{path}/quiet?fieldManager=t&force=true"
        assert root.request("PATCH", applied, {**whole, "data": {"a": data["k"]}}, APPLY).status == 200
        # Refused for its name; the body is as secret.
        assert root.request("POST", path, {**whole, "metadata": {"name": "NOT A NAME"}}).status == 422
        assert root.request("DELETE", f"{path}/quiet").status == 200
    logged(server, verb="delete", requestURI=f"{CONFIG_MAPS}/quiet")
    for path in (SECRETS, CONFIG_MAPS):
        mine = [entry for entry in entries(server) if entry["requestURI"].startswith(path)]
        mine = [entry for entry in mine if entry["user"]["username"] == "hushed"]
        assert {"create", "get", "list", "update", "patch", "delete"} <= {entry["verb"] for entry in mine}, path
        assert {entry["level"] for entry in mine} == {"Metadata"}, path
        assert not any("requestObject" in entry or "responseObject" in entry for entry in mine), path
    log = (server.directory / "audit.log").read_text()
    assert HUSH not in log and ENCODED not in log


def test_a_token_that_was_made_or_shown_is_not_told(server: Server, root: Client) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "quiet"}}
    path = "/api/v1/namespaces/default/serviceaccounts"
    assert root.request("POST", path, account).status == 201
    ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = root.request("POST", f"{path}/quiet/token", ask)
    assert made.status == 201, made
    token = made.body["status"]["token"]
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    assert root.request("POST", reviews, review).status == 201
    shown = server.client(None).request("GET", CONFIG_MAPS, headers={"Authorization": f"Bearer {token}"})
    assert shown.status == 403, shown
    assert [entry["level"] for entry in logged(server, requestURI=f"{path}/quiet/token")] == ["Metadata"]
    assert {entry["level"] for entry in logged(server, requestURI=reviews)} == {"Metadata"}
    user = "system:serviceaccount:default:quiet"
    until("the entry of its use", lambda: any(entry["user"].get("username") == user for entry in entries(server)), 20)
    assert token not in (server.directory / "audit.log").read_text()


def test_secrets_are_encrypted_in_etcd(server: Server, root: Client) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "stored"}, "stringData": {"k": "plain-words"}}
    assert root.request("POST", SECRETS, secret).status == 201
    stored = b"".join(path.read_bytes() for path in (server.directory / "etcd").rglob("*") if path.is_file())
    assert b"/secrets/default/stored" in stored and b"plain-words" not in stored


def test_what_concerns_the_gate_is_told_with_the_request(server: Server, root: Client) -> None:
    refused(root.request("POST", NODES, a_node("untainted", spec={})))
    root.request("GET", NODES, headers={"Impersonate-User": "someone"})
    until(
        "the entry of the impersonation",
        lambda: any(entry.get("impersonatedUser", {}).get("username") == "someone" for entry in entries(server)),
        20,
    )
    [entry] = [
        entry
        for entry in logged(server, verb="create", requestURI=NODES)
        if entry.get("requestObject", {}).get("metadata", {}).get("name") == "untainted"
    ]
    assert entry["level"] == "Request"
    assert "muster-node-gate.static.k8s.io" in json.dumps(entry)


def test_who_is_nobody_and_asks_for_secrets_is_told(server: Server) -> None:
    assert server.client(None).request("GET", f"{SECRETS}?limit=7").status == 401
    [entry] = logged(server, requestURI=f"{SECRETS}?limit=7")
    assert entry["responseStatus"]["code"] == 401 and entry["sourceIPs"] == ["127.0.0.1"]


@pytest.mark.parametrize("name", ["leases", "events"])
def test_what_is_told_a_thousand_times_a_minute_is_left_out(server: Server, root: Client, name: str) -> None:
    paths = {
        "leases": "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "events": "/api/v1/namespaces/default/events",
    }
    body: dict[str, Any] = {"metadata": {"name": f"quiet-{name}", "namespace": "default"}}
    if name == "events":
        body["involvedObject"] = {"kind": "Node", "name": "x", "namespace": "default"}
    assert root.request("POST", paths[name], body).status == 201
    mark = f"{CONFIG_MAPS}/after-{name}"
    root.request("GET", mark)
    logged(server, requestURI=mark)
    assert entries(server, requestURI=paths[name]) == []
