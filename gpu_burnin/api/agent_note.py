"""What a node's agent says on its own Node, and what the admitter asks of it there. Standard library only.

Both are unsigned, since they only close doors: a node can write its own note alone, and no note admits it. Boot,
findings and maintenance keep work away; the answer to a request is evidence.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from gpu_burnin.api.remedies import AGENT
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.canonical import canonical_json, check_utf8
from gpu_burnin.system.codec import Misfit, from_json, to_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.types import JSON_NAME, OMIT_DEFAULT

MAX_NOTE_BYTES = 8192
_T = TypeVar("_T")
_ABSENT = {OMIT_DEFAULT: True}


class NoteError(GpuBurninError):
    """A note or request that cannot be read."""


@dataclass(frozen=True)
class Maintenance:
    """A maintenance window, from whatever source, in one form. Times are RFC 3339 UTC, "" for not known.

    `state` is none, scheduled, started or unknown; `impact_s` is None where the provider does not say. `fetched_at` is
    when the provider was first heard to say this: it stays while the answers do.
    """

    provider: str
    state: str
    not_before: str = field(default="", metadata={JSON_NAME: "notBefore"})
    not_after: str = field(default="", metadata={JSON_NAME: "notAfter"})
    kind: str = ""
    impact_s: float | None = field(default=None, metadata={JSON_NAME: "impactSeconds", OMIT_DEFAULT: True})
    id: str = ""
    fetched_at: str = field(default="", metadata={JSON_NAME: "fetchedAt"})
    message: str = ""


@dataclass(frozen=True)
class Warned:
    """Something that the agent saw and that does not revoke: the node is tested again when it is idle."""

    code: str
    message: str
    at: str


@dataclass(frozen=True)
class Asked:
    """A burn-in that the admitter asks for (annotation DOMAIN/request).

    Its number has to be above `after`, the highest that the ledger knows of the node: no lower one counts there.
    """

    id: str
    level: str
    after: int = field(default=0, metadata={JSON_NAME: "afterSequence", OMIT_DEFAULT: True})


@dataclass(frozen=True)
class Answer:
    """What became of a request: `state` is running, done or refused."""

    id: str
    state: str
    why: str = ""


@dataclass(frozen=True)
class Revoking:
    """A fatal finding whose signed statement is still to come, as it waits for a burn-in that is under way."""

    code: str
    message: str


@dataclass(frozen=True)
class AgentNote:
    """The annotation DOMAIN/agent. `boot_id` is the boot in which the agent runs.

    `restored` is what the agent reads in DOMAIN/restored, said once its newest evidence is on the Node with it: so the
    admitter knows that both are of the time after etcd was restored.

    `heartbeat`: agents of this version renew an AgentHeartbeat. Those of 0.2.0 and before do not, and do not say so.
    """

    boot_id: str = field(metadata={JSON_NAME: "bootID"})
    version: str = ""
    heartbeat: bool = field(default=False, metadata=_ABSENT)
    request: Answer | None = field(default=None, metadata=_ABSENT)
    warnings: tuple[Warned, ...] = ()
    maintenance: Maintenance | None = field(default=None, metadata=_ABSENT)
    revoking: Revoking | None = field(default=None, metadata=_ABSENT)
    restored: str = field(default="", metadata=_ABSENT)


def note_text(note: AgentNote | Asked) -> str:
    """The annotation's value."""
    return canonical_json(to_json(note)).decode("ascii")


def read_note(text: str) -> AgentNote:
    """A node's note; fields of a newer version are passed over. Raises NoteError."""
    return _read(AgentNote, text)


def read_request(text: str) -> Asked:
    """The admitter's request. Raises NoteError."""
    return _read(Asked, text)


def _read(kind: type[_T], text: str) -> _T:
    try:
        if len(text) > MAX_NOTE_BYTES:
            raise ValueError(f"longer than {MAX_NOTE_BYTES} bytes")
        document = parse_json(text)
        check_utf8(document)
        return from_json(kind, document, tolerant=True)
    except (Misfit, ValueError) as error:
        raise NoteError(f"the note cannot be read ({error}); restart {AGENT} on the node") from error
