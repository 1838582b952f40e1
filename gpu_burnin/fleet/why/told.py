"""The story of a node, a pod or a job: what is said of it, and what programs get."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_burnin.fleet.why.cause import Cause
from gpu_burnin.fleet.why.entry import Entry

SCHEMA = "muster-why/v1"


@dataclass(frozen=True)
class Files:
    """Where files lie: the inventory's fleet_state_dir, and audit logs of the API servers."""

    state: Path | None = None
    audits: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Waits:
    """Why a job waits: a stable word, a sentence, whether it does so for ever, and the nodes that it is about."""

    why: str
    sentence: str
    never: bool = False
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Log:
    """The last lines of a container's log."""

    pod: str
    container: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Story:
    """`kind` is node, pod or job. `stands` says how it is now; `missing` and `clocks` are sentences.

    `waits`, `log` and `fabric` are of a job alone: why it waits, the last lines of the rank that ended first, and a
    sentence for each thing that tests between nodes found of its nodes.
    """

    subject: str
    kind: str
    node: str
    stands: str
    entries: tuple[Entry, ...]
    cause: Cause
    missing: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    waits: Waits | None = None
    log: Log | None = None
    fabric: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        first, before = self.cause.first, self.cause.before
        return {
            "schema": SCHEMA,
            "subject": self.subject,
            "kind": self.kind,
            "node": self.node,
            "stands": self.stands,
            "first_cause": _as_json(first) if first else None,
            "before_it": _as_json(before) if before else None,
            "chain": [_as_json(one) for one in self.cause.chain],
            "timeline": [_as_json(one) for one in self.entries],
            "not_looked_at": [*self.missing],
            "clocks": [*self.clocks],
            "waits": vars(self.waits) | {"nodes": [*self.waits.nodes]} if self.waits else None,
            "log": {"pod": self.log.pod, "container": self.log.container, "lines": [*self.log.lines]}
            if self.log
            else None,
            "fabric": [*self.fabric],
        }


def _as_json(entry: Entry) -> dict[str, str]:
    return {
        "at": entry.at.isoformat().replace("+00:00", "Z"),
        "source": str(entry.source),
        "what": str(entry.what),
        "code": entry.code,
        "message": entry.message,
        "who": entry.who,
        "node": entry.node,
        "pod": entry.pod,
    }
