"""The bench of nodes on a control plane: what it sends is what a node's programs send."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from gpu_burnin.admission.approve import (
    BOOTSTRAP_GROUP,
    CLIENT_SIGNER,
    NODES_GROUP,
    SERVING_SIGNER,
    InventoryNode,
    judge_csr,
)
from tests.bench.admission.fleet import ADDRESS
from tests.bench.admission.plane.controllers import _manager
from tests.bench.admission.plane.course import daemon_set, sizes_up_to
from tests.bench.admission.plane.http2 import Broken, Connection, frame, headers
from tests.bench.admission.plane.joins import request_of
from tests.bench.admission.plane.meter import Cost
from tests.bench.admission.plane.node import _FIRST_RENEWAL_S, WATCHES, Node, _varint
from tests.integration.kube import Part, Server
from tests.integration.kube_files import REPOSITORY
from tests.support.authority import Authority

DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7


class Wire(asyncio.Transport):
    """A transport that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: Any) -> None:
        self.written += bytes(data)


def connected() -> tuple[Connection, Wire]:
    connection, wire = Connection("127.0.0.1:1"), Wire()
    connection.connection_made(wire)
    wire.written = b""
    return connection, wire


def test_header_fields_are_literals_with_lengths_of_any_size() -> None:
    assert headers({"a": "bc"}) == b"\0\x01a\x02bc"
    assert headers({"a": "x" * 126})[3:4] == b"\x7e"
    assert headers({"a": "x" * 127})[3:5] == b"\x7f\x00"
    # RFC 7541, C.1.2: 1337 with a prefix of 5 bits is 31, 154, 10; with 7 bits 1337 - 127 = 1210.
    assert headers({"a": "x" * 1337})[3:6] == b"\x7f\xba\x09"


def test_an_answer_that_comes_in_pieces_is_put_together() -> None:
    async def course() -> bytes:
        connection, _ = connected()
        answer = asyncio.ensure_future(connection.request("GET", "/x"))
        await asyncio.sleep(0)
        whole = frame(HEADERS, 4, 1, b"\x88") + frame(DATA, 0, 1, b"ab") + frame(DATA, 1, 1, b"c")
        for at in range(len(whole)):
            connection.data_received(whole[at : at + 1])
        return await answer

    assert asyncio.run(course()) == b"abc"


@pytest.mark.parametrize(
    "body", [b'{"kind":"Status","status":"Failure"}', b"k8s\0\n\x0c\n\x02v1\x12\x06Status\x12\x07Failure"]
)
def test_a_refusal_is_one(body: bytes) -> None:
    async def course() -> None:
        connection, _ = connected()
        answer = asyncio.ensure_future(connection.request("PUT", "/x", b"y"))
        await asyncio.sleep(0)
        connection.data_received(frame(HEADERS, 4, 1, b"\x8d") + frame(DATA, 1, 1, body))
        await answer

    with pytest.raises(Broken, match="PUT /x"):
        asyncio.run(course())


@pytest.mark.parametrize(
    ("last", "why"),
    [
        (frame(DATA, 1, 1, b""), "it has ended"),
        (frame(RESET, 0, 1, bytes(4)), "reset it"),
        (frame(GOAWAY, 0, 0, bytes(8)), "sends it away"),
    ],
)
def test_a_watch_that_ends_is_not_passed_over(last: bytes, why: str) -> None:
    async def course() -> tuple[str, str]:
        connection, _ = connected()
        watch = asyncio.ensure_future(connection.watch("/nodes?watch=true"))
        await asyncio.sleep(0)
        connection.data_received(frame(HEADERS, 4, 1, b"\x88") + frame(DATA, 0, 1, b"event"))
        assert (await watch).size_bytes == 5
        before = connection.lost
        connection.data_received(last)
        return before, connection.lost

    before, after = asyncio.run(course())
    assert before == ""
    assert why in after


def test_a_watch_that_came_too_early_is_asked_for_again() -> None:
    async def course() -> tuple[int, str]:
        connection, wire = connected()
        watch = asyncio.ensure_future(connection.watch("/nodes?watch=true"))
        await asyncio.sleep(0)
        wire.written = b""
        connection.data_received(frame(DATA, 0, 1, b"ERROR ... ResourceVersionTooLarge") + frame(DATA, 1, 1, b""))
        await asyncio.sleep(0)
        assert struct.unpack(">I", wire.written[5:9]) == (3,)
        connection.data_received(frame(DATA, 0, 3, b"event"))
        await watch
        return connection.early, connection.lost

    assert asyncio.run(course()) == (1, "")


def test_a_watch_waits_for_what_is_wanted_and_is_taken_back() -> None:
    async def course() -> tuple[bytes, bytes]:
        connection, wire = connected()
        told = asyncio.ensure_future(connection.watch_until("/csrs", b'"certificate":"'))
        await asyncio.sleep(0)
        wire.written = b""
        connection.data_received(frame(DATA, 0, 1, b'{"a":1}\n'))
        await asyncio.sleep(0)
        assert not told.done()
        connection.data_received(frame(DATA, 0, 1, b'{"certificate":"A'))
        await asyncio.sleep(0)
        assert not told.done()
        connection.data_received(frame(DATA, 0, 1, b'B"}\n'))
        return await told, wire.written

    told, written = asyncio.run(course())
    assert json.loads(told.splitlines()[-1]) == {"certificate": "AB"}
    assert written == frame(RESET, 0, 1, struct.pack(">I", 8))


def test_settings_and_pings_are_answered() -> None:
    connection, wire = connected()
    connection.data_received(frame(SETTINGS, 0, 0, b"") + frame(PING, 0, 0, b"12345678") + frame(PING, 1, 0, bytes(8)))
    assert wire.written == frame(SETTINGS, 1, 0, b"") + frame(PING, 1, 0, b"12345678")


def test_its_certificate_requests_are_those_that_the_approver_takes() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    inventory = {"gpu-1": InventoryNode.of("gpu-1", [ADDRESS])}
    users = {CLIENT_SIGNER: ("bootstrap", BOOTSTRAP_GROUP), SERVING_SIGNER: ("system:node:gpu-1", NODES_GROUP)}
    for signer, (user, group) in users.items():
        auth = "server auth" if signer == SERVING_SIGNER else "client auth"
        spec = {
            "request": base64.b64encode(request_of("gpu-1", key, signer)).decode(),
            "signerName": signer,
            "username": user,
            "groups": [group],
            "usages": ["digital signature", auth],
        }
        judged = judge_csr({"metadata": {"name": "x"}, "spec": spec}, inventory)
        assert (judged.node, judged.refusals) == ("gpu-1", ())
        other = judge_csr({"metadata": {"name": "x"}, "spec": spec}, {})
        assert other.refusals


def test_a_renewal_changes_the_time_alone() -> None:
    sent: list[bytes] = []

    class Kubelet(Connection):
        async def request(self, method: str, path: str, body: bytes = b"", *_: str, **__: str) -> bytes:
            sent.append(body)
            return body

    lease = b"k8s\0 holder " + _varint(_FIRST_RENEWAL_S) + b" end"
    node = Node("gpu-1", context=None, kubelet=Kubelet(""), _lease=lease)  # type: ignore[arg-type]
    for _ in range(3):
        asyncio.run(node.renew_lease())
    assert sent == [lease.replace(_varint(_FIRST_RENEWAL_S), _varint(_FIRST_RENEWAL_S + n)) for n in (1, 2, 3)]
    assert len(set(sent)) == 3


def test_a_node_has_ten_watches() -> None:
    assert WATCHES == 10


def test_the_device_plugin_goes_to_the_nodes_of_its_step() -> None:
    made: Any = daemon_set("plugin-7", {"step": "7"})
    template = made["spec"]["template"]
    assert made["metadata"]["name"] == "plugin-7"
    assert template["spec"]["nodeSelector"] == {"step": "7"}
    assert (
        template["metadata"]["labels"].items()
        >= made["spec"]["selector"]["matchLabels"].items()
        >= {"step": "7"}.items()
    )
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]


def test_the_controller_manager_has_the_flags_of_its_role(tmp_path: Path) -> None:
    server = Server(1, tmp_path, Authority(tmp_path), Part([], tmp_path / "a"), Part([], tmp_path / "b"))
    unit = (REPOSITORY / "roles/kube_controller_manager/templates/kube-controller-manager.service.j2").read_text()
    flags = {flag.partition("=")[0] for flag in _manager(server, Path("/bin"), tmp_path, 7500)[1:]}
    of_the_bench = {"--cert-dir", "--secure-port", "--node-monitor-grace-period"}
    assert {flag for flag in flags if f"{flag}=" not in unit} == of_the_bench


def test_sizes_end_with_the_number_that_was_asked_for() -> None:
    assert sizes_up_to(7500) == [250, 1000, 2500, 5000, 7500]
    assert sizes_up_to(1000) == [250, 1000]
    assert sizes_up_to(40) == [40]


def test_a_cost_in_words() -> None:
    cost = Cost(100, 4.0, {"API server": 1.5, "etcd": 0.5, "scheduler": 9.0})
    assert (cost.servers_ms, cost.a_core) == (2.0, 500.0)
    assert str(cost) == "100 in 4 s, 25 a second; ms of processor: API server 1.50, etcd 0.50, scheduler 9.00"
