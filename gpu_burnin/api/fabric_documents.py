"""Statements that the members of a test between nodes sign with their SSH host keys: form, refusals, no I/O.

Whoever reads one gets a value or a sentence; each is read from exactly the bytes that were signed. Standard library
only.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias, TypeVar

from gpu_burnin.api.evidence import strict_object
from gpu_burnin.errors import EXIT_INCONCLUSIVE, GpuBurninError
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.codec import from_json
from gpu_burnin.system.files import MOST_BYTES, parse_json
from gpu_burnin.system.prose import printable

NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9._]{0,251}[A-Za-z0-9])?", re.ASCII)
BOOT_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_SIGNATURE_CHARS = 4096
_MOST_REASON_CHARS = 160
_T = TypeVar("_T")
# Whether a signature is one of these bytes by this key for this namespace: (data, signature, key line, namespace).
Holds: TypeAlias = Callable[[bytes, str, str, str], bool]


class Why(StrEnum):
    """Why a rendezvous or a view is refused."""

    FORM = "form"
    KEYS = "keys"
    SIGNATURE = "signature"
    MEMBER = "member"
    BOOT = "boot"
    FUTURE = "future"
    EXPIRED = "expired"
    USED = "used"
    OTHER = "other"
    # Nothing is wrong with it: this host could not do its part.
    HOST = "host"


class RendezvousError(GpuBurninError):
    """What is refused, in one sentence. It says nothing of the fabric: the test is inconclusive (exit code 3)."""

    def __init__(self, why: Why, message: str) -> None:
        super().__init__(message, EXIT_INCONCLUSIVE)
        self.why = why


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement as it was signed, byte for byte, and its signature; nothing is checked yet."""

    statement: bytes
    signature: str

    def document(self) -> bytes:
        """As it is written to a file."""
        return canonical_json({"statement": self.statement.decode("ascii"), "signature": self.signature})

    @property
    def digest(self) -> str:
        """The SHA-256 of the statement, in hex."""
        return hashlib.sha256(self.statement).hexdigest()


def reason(error: ValueError) -> str:
    """Why a document is none, fit for a terminal and a log: parts of it are what a stranger has written."""
    text = printable(str(error))
    return text if len(text) <= _MOST_REASON_CHARS else f"{text[: _MOST_REASON_CHARS - 3]}..."


def parse_signed(data: bytes) -> Signed:
    """Statement and signature, unchecked. Raises ValueError."""
    if len(data) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES} bytes")
    document = parse_json(data, strict_object)
    if not isinstance(document, dict) or set(document) != {"statement", "signature"}:
        raise ValueError("it is not exactly a statement and a signature")
    statement, signature = document["statement"], document["signature"]
    if not isinstance(statement, str) or not isinstance(signature, str):
        raise ValueError("statement and signature must be texts")
    if len(signature) > _MOST_SIGNATURE_CHARS or not signature.isascii():
        raise ValueError("the signature is too long, or not ASCII")
    return Signed(statement.encode("ascii"), signature)


def parsed(kind: type[_T], schema: str, data: bytes) -> _T:
    """A document of exactly these fields, each key once. Raises ValueError."""
    document = parse_json(data, strict_object)
    if not isinstance(document, dict) or document.get("schema") != schema:
        raise ValueError(f"its schema is not {schema}: other versions of gpu-burnin do not meet")
    return from_json(kind, document)


def check(holds: Any, why: str) -> None:
    """Raise ValueError where it does not hold."""
    if not holds:
        raise ValueError(why)


def check_unlike(values: Iterable[object], what: str) -> None:
    """Raise ValueError where one stands twice."""
    twice = [value for value, times in Counter(values).items() if times > 1]
    check(not twice, f"the {what} {str(twice[0])[:64] if twice else ''} stands twice")
