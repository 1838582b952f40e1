"""What a worker says became of a shard's hosts, checked: what is of another form is none. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_burnin.system.codec import from_json, to_json
from gpu_burnin.system.files import parse_json
from gpu_burnin.system.prose import printable
from gpu_burnin.types import OMIT_DEFAULT

# As many characters as the callback keeps of a message, with the name of its task.
_MOST_TEXT = 1000
_ABSENT = {OMIT_DEFAULT: True}


@dataclass(frozen=True)
class _Host:
    """As the callback roll_results has it."""

    failed: str | None = field(default=None, metadata=_ABSENT)
    unreachable: str | None = field(default=None, metadata=_ABSENT)
    left: str | None = field(default=None, metadata=_ABSENT)
    verdict: str | None = field(default=None, metadata=_ABSENT)
    why: str | None = field(default=None, metadata=_ABSENT)
    codes: tuple[str, ...] = field(default=(), metadata=_ABSENT)
    gate: Mapping[str, bool | str] = field(default_factory=dict, metadata=_ABSENT)


@dataclass(frozen=True)
class _Fault:
    hosts: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class _Outcomes:
    hosts: Mapping[str, _Host] = field(default_factory=dict)
    faults: tuple[_Fault, ...] = ()
    cut: bool = False


def outcomes(content: bytes, hosts: Collection[str], most_bytes: int) -> Mapping[str, Any]:
    """What the callback kept, of these hosts alone and fit to be shown. Raises ValueError where it is of another form,
    or longer.

    What it keeps for the plays of a controller is left out: a worker has none of them.
    """
    if len(content) > most_bytes:
        raise ValueError(f"it has {len(content)} bytes, more than {most_bytes}")
    found = from_json(_Outcomes, parse_json(content), tolerant=True)
    kept = {name: one for name, one in found.hosts.items() if name in hosts}
    shown: Mapping[str, Any] = _shown(to_json(replace(found, hosts=kept)))
    return shown


def _shown(value: Any) -> Any:
    if isinstance(value, str):
        return printable(value[:_MOST_TEXT])
    if isinstance(value, dict):
        return {key: _shown(one) for key, one in value.items()}
    return [_shown(one) for one in value] if isinstance(value, (list, tuple)) else value
