"""Which hardware it is: what a report, evidence and the agent mean by "the same hardware". Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_burnin.system.canonical import canonical_json
from gpu_burnin.types import JSON, Gpu

# No machine has as many GPUs; each text is some 40 characters.
MOST_GPUS = 128
_MOST_CHARS = 128
# Said where hashes differ and what differs cannot be named.
UNNAMED = "GPUs, VBIOS, driver or kernel are not those that were tested"


def identity(gpus: Iterable[Gpu], driver: str, kernel: str) -> dict[str, JSON]:
    """GPU UUIDs, serials and VBIOS (in UUID order), driver and kernel release."""
    known: list[JSON] = [list(gpu) for gpu in sorted((gpu.uuid, gpu.serial, gpu.vbios) for gpu in gpus)]
    return {"gpus": known, "driver": driver, "kernel": kernel}


def digest(hardware: Mapping[str, JSON]) -> str:
    """SHA-256 in hex of an identity."""
    import hashlib  # here: most commands hash nothing

    return hashlib.sha256(canonical_json(dict(hardware))).hexdigest()


def checked(document: Any) -> dict[str, JSON]:
    """`document` when it has the form that identity() makes; raises ValueError."""
    if not isinstance(document, dict) or set(document) != {"gpus", "driver", "kernel"}:
        raise ValueError("hardware must hold exactly gpus, driver and kernel")
    gpus = document["gpus"]
    if not isinstance(gpus, list) or len(gpus) > MOST_GPUS:
        raise ValueError(f"gpus must be a list of {MOST_GPUS} or fewer")
    if not all(isinstance(gpu, list) and len(gpu) == 3 for gpu in gpus):
        raise ValueError("a GPU must be UUID, serial and VBIOS")
    texts = [document["driver"], document["kernel"], *(text for gpu in gpus for text in gpu)]
    if not all(isinstance(text, str) and len(text) <= _MOST_CHARS for text in texts):
        raise ValueError(f"hardware is told in texts of at most {_MOST_CHARS} characters")
    return dict(document)


def bounded(document: Any) -> dict[str, JSON]:
    """What is kept of a node's words: nothing where they have not the form."""
    try:
        return checked(document)
    except ValueError:
        return {}


def difference(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> str:
    """What is other in `new`, in words, such as "driver 570.1 -> 580.2; GPU-a is gone"; "" for the same hardware.

    UNNAMED where one of them has not the form.
    """
    if not bounded(old) or not bounded(new):
        return UNNAMED
    before, after = (_by_uuid(hardware) for hardware in (old, new))
    parts = [f"{key} {old[key]} -> {new[key]}" for key in ("driver", "kernel") if old[key] != new[key]]
    parts += [f"{uuid or 'a GPU without UUID'} is gone" for uuid in before if uuid not in after]
    parts += [f"{uuid or 'a GPU without UUID'} is new" for uuid in after if uuid not in before]
    for uuid, (serial, vbios) in before.items():
        if uuid in after:
            parts += [f"serial of {uuid} {serial} -> {after[uuid][0]}"] if serial != after[uuid][0] else []
            parts += [f"VBIOS of {uuid} {vbios} -> {after[uuid][1]}"] if vbios != after[uuid][1] else []
    if not parts and digest(old) != digest(new):
        parts.append("several GPUs of one UUID")
    return "; ".join(parts)


def _by_uuid(hardware: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {uuid: (serial, vbios) for uuid, serial, vbios in hardware["gpus"]}
