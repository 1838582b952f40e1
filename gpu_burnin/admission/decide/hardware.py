"""The hardware that evidence is of, in words, and what has changed between two. Pure.

A node writes it: what has not the form of gpu_burnin.system.hardware_identity counts as nothing said.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpu_burnin.system.hardware_identity import checked, difference
from gpu_burnin.types import JSON


def bounded(hardware: Mapping[str, JSON]) -> Mapping[str, JSON]:
    """What is kept of the node's words: nothing where they have not the form."""
    try:
        return checked(hardware)
    except ValueError:
        return {}


def change(old: Mapping[str, JSON], new: Mapping[str, JSON]) -> str:
    """What has changed, in words, such as "driver 570.1 -> 580.2; GPU-a is gone"."""
    before, after = bounded(old), bounded(new)
    said = difference(before, after) if before and after else ""
    return said or "GPUs, VBIOS, driver or kernel are not those that were tested"
