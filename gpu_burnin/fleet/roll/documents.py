"""Documents on the controller that say what was begun: written before each step, read by the run that goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.codec import Misfit, from_json
from gpu_burnin.system.files import parse_json, read_text, write_atomic

# Of all of them: the first were those of driver upgrades.
SCHEMA = "muster-driver-upgrade/v1"
_UNKNOWN = "nobody knows what was begun; repair it, or move it away and look at `muster status`"


class _Document(Protocol):
    @property
    def schema(self) -> str: ...


_T = TypeVar("_T", bound=_Document)


def read(kind: type[_T], path: Path, unknown: str = _UNKNOWN) -> _T:
    """A document of its kind, with the field `schema`. Raises GpuBurninError for one that cannot be used.

    `unknown` is what follows from one that cannot be read, and what to do.
    """
    try:
        found = from_json(kind, parse_json(read_text(path)))
    except (OSError, ValueError, Misfit) as error:
        raise GpuBurninError(f"{path} cannot be read ({error}), so {unknown}") from error
    if found.schema != SCHEMA:
        raise GpuBurninError(f"{path} is of schema {found.schema}; move it away")
    return found


def write(path: Path, document: Any) -> None:
    """Keep it, durably. Raises GpuBurninError."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document, indent=1).encode() + b"\n")
    except OSError as error:
        raise GpuBurninError(f"{path} cannot be written ({error.strerror}); nothing is done without it") from error
