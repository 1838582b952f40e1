"""What the admitter asks of members of a test on their Nodes, and what each answers on its own. Standard library only.

Both are unsigned: the offer and the views in them are signed, and who may write which annotation is the gate's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from gpu_burnin.api.agent_note import NoteError
from gpu_burnin.api.fabric_documents import reason
from gpu_burnin.system.canonical import canonical_json, check_utf8
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.types import OMIT_DEFAULT

# All annotations of an object have 256 KiB.
MOST_CHARS = 96 << 10
# What FabricAnswer.fault may be: an address that the test has for the node is not on it.
NO_ADDRESS = "address"
_ABSENT = {OMIT_DEFAULT: True}
_T = TypeVar("_T")


@dataclass(frozen=True)
class FabricRequest:
    """DOMAIN/fabric-test. `test` is the FabricTest as it is signed later, `offer` rank 0's, once there is one.

    `keys` are the members' pinned host keys. At `until` it is over, whatever has become of it.
    """

    id: str
    since: str
    until: str
    test: str
    keys: Mapping[str, str]
    offer: str = field(default="", repr=False, metadata=_ABSENT)


class Part(StrEnum):
    """How far a member has come."""

    READY = "ready"
    RUNNING = "running"
    DONE = "done"
    # It took no part, or could not go on: for a reason that is none of the fabric's.
    REFUSED = "refused"


@dataclass(frozen=True)
class FabricAnswer:
    """DOMAIN/fabric, the node's own. `offer` is rank 0's alone; `view` is what the member found, signed.

    `fault` says of a refusal that the node itself is its cause: NO_ADDRESS, or "" where it is not known to be.
    """

    id: str
    part: Part
    boot_id: str
    offer: str = field(default="", repr=False, metadata=_ABSENT)
    view: str = field(default="", metadata=_ABSENT)
    why: str = field(default="", metadata=_ABSENT)
    fault: str = field(default="", metadata=_ABSENT)


def fabric_text(note: FabricRequest | FabricAnswer) -> str:
    """The annotation's value."""
    return canonical_json(to_json(note)).decode("ascii")


def read_fabric_request(text: str) -> FabricRequest:
    """The admitter's. Raises NoteError."""
    return _read(FabricRequest, text, "restart the admitter of this version, or upgrade the node")


def read_fabric_answer(text: str) -> FabricAnswer:
    """A node's. Raises NoteError."""
    return _read(FabricAnswer, text, "restart gpu-burnin-watch on the node")


def _read(kind: type[_T], text: str, remedy: str) -> _T:
    try:
        if len(text) > MOST_CHARS:
            raise ValueError(f"longer than {MOST_CHARS} characters")
        document = parse_json(text)
        check_utf8(document)
        return from_json(kind, document, tolerant=True)
    except ValueError as error:
        raise NoteError(f"the annotation of a test between nodes cannot be read ({reason(error)}); {remedy}") from error
