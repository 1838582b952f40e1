"""What the admitter has seen of each node: one file a node on the controller, which no node can write."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.node.evidence import Statement
from gpu_burnin.system.files import parse_json, read_text, write_atomic

SCHEMA = "muster-admission/v1"
# RFC 1123 subdomain, as Kubernetes wants node names: nothing in it can leave the directory.
_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


@dataclass(frozen=True)
class Admission:
    """The evidence a node was let in with. `admitted_at` is RFC 3339 UTC."""

    boot_id: str
    sequence: int
    report_sha256: str
    hardware_sha256: str
    admitted_at: str


@dataclass(frozen=True)
class Entry:
    """One node: the key its evidence is checked with, the newest evidence seen, the last admission."""

    host_key: str
    highest_sequence: int = 0
    highest_report_sha256: str = ""
    admitted: Admission | None = None

    def seen(self, statement: Statement) -> Entry:
        """The entry after authentic evidence was seen."""
        if statement.sequence <= self.highest_sequence:
            return self
        return replace(self, highest_sequence=statement.sequence, highest_report_sha256=statement.report_sha256)


class Ledger:
    """The directory of entries; each is written whole."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def path(self, node: str) -> Path:
        """The file of one node; raises GpuBurninError for an invalid node name."""
        if len(node) > 253 or not _NODE_NAME.fullmatch(node):
            raise GpuBurninError(f"{node!r} is not a node name (RFC 1123 subdomain); correct the inventory")
        return self.directory / f"{node}.json"

    def read(self, node: str, host_key: str) -> Entry:
        """The entry of a node whose pinned key is `host_key`; a new one when there is none.

        A different key means a reinstalled machine, whose sequence starts again: old evidence does not verify
        with the new key. Raises GpuBurninError for a file that cannot be read: guessing would allow a replay.
        """
        path = self.path(node)
        try:
            document = parse_json(read_text(path, follow=False))
            if document.pop("schema") != SCHEMA or document.pop("node") != node:
                raise ValueError(f"not the {SCHEMA} entry of {node}")
            admitted = document.pop("admitted")
            entry = Entry(**document, admitted=Admission(**admitted) if admitted else None)
            numbers = (entry.highest_sequence, entry.admitted.sequence if entry.admitted else 0)
            if any(type(number) is not int for number in numbers) or not isinstance(entry.host_key, str):
                raise ValueError("a value of the wrong kind")
        except FileNotFoundError:
            return Entry(host_key)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise GpuBurninError(
                f"{node}: cannot read the admission ledger {path} ({error}); restore it from a backup, or remove it "
                "to start over (evidence older than the newest could then be accepted once)"
            ) from error
        return entry if entry.host_key == host_key else Entry(host_key)

    def write(self, node: str, entry: Entry) -> None:
        """Replace the entry of a node in one step."""
        document = {"schema": SCHEMA, "node": node, **asdict(entry)}
        path = self.path(node)
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(path, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode("utf-8"))
        except OSError as error:
            raise GpuBurninError(
                f"{node}: cannot write the admission ledger {path} ({error}); check the directory's owner and space"
            ) from error
