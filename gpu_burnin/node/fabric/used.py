"""Which rendezvous this node has joined already: each one once, by whichever process and in whichever boot.

The file has no id, only its hash. A rendezvous that has expired is refused for that, so its id is forgotten; the file
keeps until when that may have been, and what ended before is refused though the clock was set back.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from gpu_burnin.api.evidence import MAX_SKEW_S, strict_object
from gpu_burnin.api.fabric_documents import RendezvousError, Why
from gpu_burnin.api.rendezvous import MOST_VALID_S, Rendezvous
from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.system.clock import NEVER, parse_rfc3339, rfc3339
from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.system.files import parse_json, read_bytes, write_atomic
from gpu_burnin.system.locks import lock

FILE = "fabric-used"
_SCHEMA = "muster-fabric-used/v1"
_LOCK_WAIT_S = 5.0
_MOST_AGE_S = MOST_VALID_S + 2 * MAX_SKEW_S


@dataclass(frozen=True)
class _Used:
    """Until when each is kept, by the SHA-256 of its id; and until when one was kept that is forgotten."""

    forgotten_to: str = field(default_factory=lambda: rfc3339(NEVER))
    until: Mapping[str, str] = field(default_factory=dict)
    schema: str = _SCHEMA


def use(state_dir: Path, made: Rendezvous, now: datetime) -> None:
    """Note on the disk that it is used, before this returns. Raises RendezvousError where it was, or that fails."""
    path, first = state_dir / FILE, made.members[0].name
    digest = hashlib.sha256(made.secret).hexdigest()
    try:
        state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(path.with_name(f"{FILE}.lock"), flags, 0o600)
        try:
            lock(fd, _LOCK_WAIT_S)
            known = _read(path)
            if digest in known.until or made.deadline <= parse_rfc3339(known.forgotten_to):
                raise RendezvousError(
                    Why.USED, f"{first}: this node has joined the offer before, and each is good once; make it anew"
                )
            write_atomic(path, canonical_json(to_json(_with(known, digest, made.deadline, now))))
        finally:
            os.close(fd)
    except BlockingIOError as error:
        raise RendezvousError(
            Why.USED, f"{path}.lock is held by another process for {_LOCK_WAIT_S:.0f} s; see what it is, and try again"
        ) from error
    except OSError as error:
        raise RendezvousError(
            Why.USED, f"{path}: that the offer is used cannot be noted ({error.strerror}); make room, or run as root"
        ) from error
    except ValueError as error:
        raise RendezvousError(
            Why.USED,
            f"{path} is damaged ({error}), so whether the offer was used is not known; remove the file after "
            f"{_MOST_AGE_S / 60:.0f} minutes, when every offer has expired",
        ) from error


def _read(path: Path) -> _Used:
    try:
        data = read_bytes(path, follow=False)
    except FileNotFoundError:
        return _Used()
    known = from_json(_Used, parse_json(data, strict_object))
    if known.schema != _SCHEMA:
        raise ValueError(f"its schema is not {_SCHEMA}")
    return known


def _with(known: _Used, digest: str, deadline: datetime, now: datetime) -> _Used:
    """With one more, and without those that have ended."""
    until = {one: parse_rfc3339(text) for one, text in known.until.items()}
    ended = [end for end in until.values() if end < now]
    forgotten_to = max([parse_rfc3339(known.forgotten_to), *ended])
    kept = {one: rfc3339(end) for one, end in until.items() if end >= now}
    return _Used(rfc3339(forgotten_to), {**kept, digest: rfc3339(deadline)})
