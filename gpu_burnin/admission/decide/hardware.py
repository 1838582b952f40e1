"""The hardware that evidence is of, in words, and what has changed between two. Pure.

A node writes it: what has not the form of gpu_burnin.system.hardware_identity counts as nothing said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpu_burnin.types import JSON

_MOST_GPUS, _MOST_CHARS = 128, 128
# The most GPUs that a sentence names.
_NAMED = 4


@dataclass(frozen=True)
class Identity:
    """`gpus` by UUID: serial and VBIOS."""

    gpus: Mapping[str, tuple[str, str]]
    driver: str
    kernel: str


def bounded(hardware: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """What is kept of the node's words: nothing where they have not the form."""
    found = _read(hardware)
    if found is None:
        return {}
    gpus = [[uuid, *rest] for uuid, rest in sorted(found.gpus.items())]
    return {"gpus": gpus, "driver": found.driver, "kernel": found.kernel}


def change(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> str:
    """What has changed, in words, such as "driver 570.1 -> 580.2; GPU-a is gone"."""
    before, after = _read(old), _read(new)
    if before is None or after is None:
        return "GPUs, VBIOS, driver or kernel are not those that were tested"
    parts = [
        f"{name} {was or 'unknown'} -> {is_now or 'unknown'}"
        for name, was, is_now in (("driver", before.driver, after.driver), ("kernel", before.kernel, after.kernel))
        if was != is_now
    ]
    parts += _list("gone", [uuid for uuid in before.gpus if uuid not in after.gpus])
    parts += _list("new", [uuid for uuid in after.gpus if uuid not in before.gpus])
    for uuid in sorted(before.gpus.keys() & after.gpus.keys()):
        for name, was, is_now in zip(("serial", "VBIOS"), before.gpus[uuid], after.gpus[uuid], strict=True):
            if was != is_now:
                parts.append(f"{name} of {uuid} {was or 'unknown'} -> {is_now or 'unknown'}")
    return "; ".join(parts) or "the identity that was hashed differs, though its words do not"


def _list(what: str, uuids: Sequence[str]) -> list[str]:
    if not uuids:
        return []
    shown = ", ".join(sorted(uuids)[:_NAMED])
    more = f" and {len(uuids) - _NAMED} more" if len(uuids) > _NAMED else ""
    return [f"{what}: {shown}{more}"]


def _read(hardware: object) -> Identity | None:
    if not isinstance(hardware, Mapping):
        return None
    gpus, driver, kernel = hardware.get("gpus"), hardware.get("driver"), hardware.get("kernel")
    if not isinstance(gpus, list | tuple) or len(gpus) > _MOST_GPUS or not (_is_text(driver) and _is_text(kernel)):
        return None
    found: dict[str, tuple[str, str]] = {}
    for gpu in gpus:
        if not isinstance(gpu, list | tuple) or len(gpu) != 3 or not all(map(_is_text, gpu)):
            return None
        found[str(gpu[0])] = (str(gpu[1]), str(gpu[2]))
    return Identity(found, str(driver), str(kernel))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _MOST_CHARS and value.isprintable()
