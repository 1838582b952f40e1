"""Where a host stands, as `fleet_place` of the inventory says it: the one reader of its levels. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

# What the labels of Nodes tell; of other keys of fleet_place, metrics and alerts alone do.
LEVELS = ("rack", "leaf", "feed")
# By which addresses a host is in the fabric.
NICS = "fleet_fabric_nics"
# An older name of the leaf switch.
LEAF_ALIAS = "switch"
# The value of a label of Kubernetes (apimachinery, validation.IsValidLabelValue).
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_METRIC_LABEL = re.compile(r"[a-z][a-z0-9_]*")
# Labels that Prometheus or Muster give themselves.
_TAKEN = frozenset({"instance", "job", "group", "fleet", "place", "alertname", "severity"})


def levels_of(host: str, place: object) -> dict[str, str]:
    """Rack, leaf and feed of a host, those that are said; `place` is its fleet_place.

    Raises FleetError for a place that cannot be read, for switch and leaf that differ, and for a value that cannot be
    a label.
    """
    said = _said(host, place)
    found = _one_leaf(host, {key: _text(host, key, said.get(key)) for key in (*LEVELS, LEAF_ALIAS)})
    return {level: found[level] for level in LEVELS if level in found}


def metric_labels_of(host: str, place: object) -> dict[str, str]:
    """All that a host's fleet_place says, as labels of its metrics; the leaf switch by its older name.

    Raises FleetError for a place that cannot be read, for a key that cannot be a label, and for switch and leaf that
    differ.
    """
    said = _said(host, place or {})
    for name in said:
        if not _METRIC_LABEL.fullmatch(str(name)) or name in _TAKEN:
            raise FleetError(
                f"{host}: fleet_place has {name!r}, which cannot be a label; use lower-case letters, "
                f"digits and _, and none of {', '.join(sorted(_TAKEN))}"
            )
    found = _one_leaf(host, {str(name): "" if value is None else str(value) for name, value in said.items()})
    # Both the rules and the stored series know it by that.
    return {LEAF_ALIAS if name == "leaf" else name: value for name, value in found.items()}


def nics_of(host: str, given: object, address: str) -> list[dict[str, Any]]:
    """A host's NICs of the fabric. Raises FleetError for what is none."""
    if not given:
        return [{"rail": 0, "address": address}]
    example = "give a list such as [{rail: 0, address: 192.0.2.1}]"
    if not isinstance(given, list):
        raise FleetError(f"{host}: {NICS} is {given!r}; {example}")
    found = []
    for nic in given:
        rail = nic.get("rail") if isinstance(nic, Mapping) else None
        if not isinstance(rail, int) or isinstance(rail, bool) or rail < 0 or not nic.get("address"):
            raise FleetError(f"{host}: {NICS} has {nic!r}; {example}")
        found.append({"rail": rail, "address": str(nic["address"])})
    return found


def _said(host: str, place: object) -> Mapping[Any, Any]:
    if not isinstance(place, Mapping):
        raise FleetError(f"{host}: fleet_place is {place!r}; give a dictionary such as {{rack: r12, leaf: leaf-7}}")
    return place


def _one_leaf(host: str, values: Mapping[str, str]) -> dict[str, str]:
    """What is said, with the leaf switch by one name."""
    switch, leaf = values.get(LEAF_ALIAS), values.get("leaf")
    if switch and leaf and switch != leaf:
        raise FleetError(
            f"{host}: fleet_place has switch {switch} and leaf {leaf}, and both mean the leaf switch; give leaf alone"
        )
    return {"leaf" if name == LEAF_ALIAS else name: value for name, value in values.items() if value}


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
