"""Where a host stands, as `fleet_place` of the inventory says it: the one reader of its levels. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

# What the labels of Nodes tell; of other keys of fleet_place, metrics and alerts alone do.
LEVELS = ("rack", "leaf", "feed")
# An older name of the leaf switch.
LEAF_ALIAS = "switch"
# The value of a label of Kubernetes (apimachinery, validation.IsValidLabelValue).
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def levels_of(host: str, place: object) -> dict[str, str]:
    """Rack, leaf and feed of a host, those that are said; `place` is its fleet_place.

    Raises FleetError for a place that cannot be read, for switch and leaf that differ, and for a value that cannot be
    a label.
    """
    if not isinstance(place, Mapping):
        raise FleetError(f"{host}: fleet_place is {place!r}; give a dictionary such as {{rack: r12, leaf: leaf-7}}")
    said = {key: _text(host, key, place.get(key)) for key in (*LEVELS, LEAF_ALIAS)}
    switch = said.pop(LEAF_ALIAS)
    if switch and said["leaf"] not in ("", switch):
        raise FleetError(
            f"{host}: fleet_place has switch {switch} and leaf {said['leaf']}, and both mean the leaf switch; give "
            "leaf alone"
        )
    found = {**said, "leaf": said["leaf"] or switch}
    return {level: found[level] for level in LEVELS if found[level]}


def _text(host: str, key: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    text = str(value)
    if isinstance(value, bool) or not _LABEL_VALUE.fullmatch(text):
        raise FleetError(
            f"{host}: fleet_place.{key} is {value!r}, which cannot be the value of a Node's label; use at most 63 "
            "letters, digits, -, _ and ., in quotes where it reads as true or false"
        )
    return text
