"""The ledger read where it lies in etcd: from a snapshot's database, and from a member through its JSON gateway."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.etcd import ledger as etcd_ledger
from ansible_collections.muster.fleet.plugins.module_utils.etcd.database import newest_values
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

from tests.support.bolt import database

PREFIX = "/registry/muster.dev/nodeadmissions/"
ONE, TWO = ({"metadata": {"name": name}, "spec": {}} for name in ("gpu-1", "gpu-2"))


def value(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document).encode()


def test_a_snapshot_has_the_newest_value_of_each_key_and_none_that_was_removed(tmp_path: Path) -> None:
    changes = [
        (f"{PREFIX}gpu-1", b"old"), (f"{PREFIX}gone", b"x"), ("/registry/minions/gpu-1", b"\0\xff" * 300),
        (f"{PREFIX}gpu-1", value(ONE)), (f"{PREFIX}gone", None), (f"{PREFIX}back", b"1"), (f"{PREFIX}back", None),
        (f"{PREFIX}gpu-2", value(TWO)),
    ]  # fmt: skip
    path = tmp_path / "snapshot.db"
    path.write_bytes(database(changes) + b"sha256 of etcd, 32 bytes........")
    assert etcd_ledger.of_database(path, "muster.dev") == [ONE, TWO]
    assert etcd_ledger.of_database(path, "other.dev") == []
    whole = path.read_bytes()
    # The newer of the two heads is torn: the one before it counts.
    path.write_bytes(whole[: 65_536 + 40] + b"\xff" + whole[65_536 + 41 :])
    assert len(newest_values(path, PREFIX.encode())) == 2
    for broken in (b"database" * 100, whole[:1000], b"", whole[:65_536] + b"\0" * 65_536, whole[: 4 * 65_536]):
        path.write_bytes(broken)
        with pytest.raises(FleetError, match="cannot be read as a database of etcd"):
            newest_values(path, b"")


def test_a_ledger_that_is_encrypted_is_none(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.db"
    path.write_bytes(database([(f"{PREFIX}gpu-1", b"k8s:enc:secretbox:v1:muster:\0\1")]))
    with pytest.raises(FleetError, match="nodeadmissions/gpu-1 in etcd is no JSON: it is damaged or encrypted"):
        etcd_ledger.of_database(path, "muster.dev")


def test_a_member_is_asked_page_by_page_at_one_revision_and_by_itself() -> None:
    keys = [f"{PREFIX}gpu-{number:04}" for number in range(1200)]
    asked: list[Mapping[str, Any]] = []

    def api(path: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        assert path == "/v3/kv/range" and body is not None
        asked.append(body)
        start, end = (base64.b64decode(body[name]).decode() for name in ("key", "range_end"))
        left = [key for key in keys if start <= key < end]
        page = [
            {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value(ONE)).decode()}
            for key in left[: int(body["limit"])]
        ]
        return {"header": {"revision": str(70 + len(asked))}, "kvs": page, "more": len(left) > len(page)}

    revision, found = etcd_ledger.of_member(api, "muster.dev")
    assert (revision, len(found), len(asked)) == (71, 1200, 3)
    assert all(body["serializable"] for body in asked), "a member without a majority could not answer"
    assert [body.get("revision") for body in asked] == [None, "71", "71"]


def test_the_member_that_is_furthest_is_believed_and_nobody_is_none() -> None:
    silent = {"answered": False, "revision": 0, "ledger": ""}
    members = [
        {"answered": True, "revision": n, "ledger": etcd_ledger.packed([one])} for n, one in ((9, ONE), (10, TWO))
    ]
    assert etcd_ledger.newest([silent, *members]) == [TWO]
    assert etcd_ledger.newest([silent, {}]) is None
    assert etcd_ledger.newest([{"answered": True, "revision": 1, "ledger": etcd_ledger.packed([])}]) == []
