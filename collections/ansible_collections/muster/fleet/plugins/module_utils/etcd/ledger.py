"""The ledger (all NodeAdmissions) where it lies in etcd: of a member that answers, or of a snapshot's database.

Standard library only: the part for members runs on the hosts.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.etcd.api import Api
from ansible_collections.muster.fleet.plugins.module_utils.etcd.database import newest_values
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

_PAGE = 500


def of_member(api: Api, domain: str) -> tuple[int, list[dict[str, Any]]]:
    """The member's revision and the NodeAdmissions that it has, without asking the others. Raises FleetError.

    So a member of a cluster that lost its majority answers too.
    """
    prefix = _prefix(domain)
    start, end = prefix, prefix[:-1] + bytes([prefix[-1] + 1])
    revision, found = 0, {}
    while True:
        asked = {"key": _text(start), "range_end": _text(end), "limit": str(_PAGE), "serializable": True}
        answer = api("/v3/kv/range", asked | ({"revision": str(revision)} if revision else {}))
        revision = revision or int(answer["header"]["revision"])
        page = answer.get("kvs", [])
        found |= {base64.b64decode(one["key"]): base64.b64decode(one.get("value", "")) for one in page}
        if not answer.get("more"):
            return revision, documents(found)
        start = base64.b64decode(page[-1]["key"]) + b"\0"


def of_database(database: Path, domain: str) -> list[dict[str, Any]]:
    """The NodeAdmissions of a snapshot. Raises FleetError."""
    return documents(newest_values(database, _prefix(domain)))


def documents(found: Mapping[bytes, bytes]) -> list[dict[str, Any]]:
    """Each value as the object that it is. Raises FleetError, for one that is encrypted too."""
    made = []
    for key, value in found.items():
        try:
            document = json.loads(value)
        except ValueError:
            raise FleetError(f"{key.decode(errors='replace')} in etcd is no JSON: it is damaged or encrypted") from None
        made.append(document)
    return made


def packed(ledger: Sequence[Mapping[str, Any]]) -> str:
    """A ledger as a text of a tenth of its size, to go through Ansible: 7,500 records are 20 MB."""
    return base64.b64encode(zlib.compress(json.dumps(ledger, separators=(",", ":")).encode())).decode()


def newest(members: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]] | None:
    """The ledger of the member that is furthest, of those that answered; None where none did."""
    answered = [one for one in members if one.get("answered")]
    if not answered:
        return None
    ledger: list[dict[str, Any]] = json.loads(
        zlib.decompress(base64.b64decode(max(answered, key=lambda one: int(one["revision"]))["ledger"]))
    )
    return ledger


def _prefix(domain: str) -> bytes:
    return f"/registry/{domain}/nodeadmissions/".encode()


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()
