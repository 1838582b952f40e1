"""Which hardware it is: what a report, evidence and the agent mean by "the same hardware". Standard library only."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from gpu_burnin.system.canonical import canonical_json, check_utf8
from gpu_burnin.types import JSON, Gpu

# No machine has as many GPUs; each text is some 40 characters.
MOST_GPUS = 128
_MOST_CHARS = 128
# Only where a GPU is in MIG mode: its layout, by UUID of the GPU and profile.
_MIG = "mig"
# As NVIDIA names them: 1g.10gb, 1g.10gb+me, 1c.3g.20gb. A GPU has 7 instances at most.
_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+\-]{0,31}")
_MOST_PROFILES = _MOST_INSTANCES = 16
# Said where hashes differ and what differs cannot be named.
UNNAMED = "GPUs, VBIOS, driver or kernel are not those that were tested"


def identity(gpus: Iterable[Gpu], driver: str, kernel: str) -> dict[str, JSON]:
    """GPU UUIDs, serials and VBIOS (in UUID order), driver and kernel release; of GPUs in MIG mode the number of
    instances by profile."""
    found = list(gpus)
    known: list[JSON] = [list(gpu) for gpu in sorted((gpu.uuid, gpu.serial, gpu.vbios) for gpu in found)]
    layouts: dict[str, JSON] = {
        gpu.uuid: dict(Counter(one.profile for one in gpu.instances)) for gpu in found if gpu.instances is not None
    }
    return {"gpus": known, "driver": driver, "kernel": kernel, **({_MIG: layouts} if layouts else {})}


def mig_layouts(hardware: Mapping[str, JSON]) -> dict[str, dict[str, int]]:
    """The number of instances by profile, by UUID of each GPU in MIG mode; {} for hardware of another form."""
    found: Any = bounded(hardware).get(_MIG, {})
    return {uuid: dict(layout) for uuid, layout in found.items()}


def layout_text(layout: Mapping[str, int] | None) -> str:
    """The instances of a GPU in words: "7 x 1g.10gb", "none", or "MIG off"."""
    if layout is None:
        return "MIG off"
    return " + ".join(f"{number} x {profile}" for profile, number in sorted(layout.items())) or "none"


def digest(hardware: Mapping[str, JSON]) -> str:
    """SHA-256 in hex of an identity."""
    import hashlib  # here: most commands hash nothing

    return hashlib.sha256(canonical_json(dict(hardware))).hexdigest()


def checked(document: Any) -> dict[str, JSON]:
    """`document` when it has the form that identity() makes; raises ValueError."""
    if not isinstance(document, dict) or set(document) - {_MIG} != {"gpus", "driver", "kernel"}:
        raise ValueError("hardware must hold exactly gpus, driver and kernel, and mig of GPUs in MIG mode")
    gpus = document["gpus"]
    if not isinstance(gpus, list) or len(gpus) > MOST_GPUS:
        raise ValueError(f"gpus must be a list of {MOST_GPUS} or fewer")
    if not all(isinstance(gpu, list) and len(gpu) == 3 for gpu in gpus):
        raise ValueError("a GPU must be UUID, serial and VBIOS")
    texts = [document["driver"], document["kernel"], *(text for gpu in gpus for text in gpu)]
    if not all(isinstance(text, str) and len(text) <= _MOST_CHARS for text in texts):
        raise ValueError(f"hardware is told in texts of at most {_MOST_CHARS} characters")
    if _MIG in document:
        _check_layouts(document[_MIG])
    check_utf8(document)
    return dict(document)


def _check_layouts(layouts: Any) -> None:
    """Raises ValueError for layouts that have not the form that identity() gives them."""
    if not isinstance(layouts, dict) or not 1 <= len(layouts) <= MOST_GPUS:
        raise ValueError(f"mig must have {MOST_GPUS} or fewer GPUs, and one at least")
    for uuid, layout in layouts.items():
        if len(uuid) > _MOST_CHARS or not isinstance(layout, dict) or len(layout) > _MOST_PROFILES:
            raise ValueError(f"a GPU's MIG layout must have {_MOST_PROFILES} or fewer profiles")
        if any(not _PROFILE.fullmatch(profile) for profile in layout):
            raise ValueError("a MIG profile is a text such as 1g.10gb")
        if any(type(number) is not int or not 1 <= number <= _MOST_INSTANCES for number in layout.values()):
            raise ValueError(f"of a MIG profile there are 1 to {_MOST_INSTANCES} instances")


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
    layouts, now = mig_layouts(old), mig_layouts(new)
    parts += [
        f"MIG instances of {uuid} {layout_text(layouts.get(uuid))} -> {layout_text(now.get(uuid))}"
        for uuid in before
        if uuid in after and layouts.get(uuid) != now.get(uuid)
    ]
    if not parts and digest(old) != digest(new):
        parts.append("several GPUs of one UUID")
    return "; ".join(parts)


def _by_uuid(hardware: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {uuid: (serial, vbios) for uuid, serial, vbios in hardware["gpus"]}
