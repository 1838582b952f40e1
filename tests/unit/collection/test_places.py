"""Rack, leaf and feed of a host, as fleet_place says them."""

from __future__ import annotations

import re

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import levels_of


@pytest.mark.parametrize(
    ("place", "levels"),
    [
        ({}, {}),
        (
            {"rack": "r12", "leaf": "leaf-7", "feed": "a", "row": "row 3"},
            {"rack": "r12", "leaf": "leaf-7", "feed": "a"},
        ),
        ({"switch": "leaf-7"}, {"leaf": "leaf-7"}),
        ({"switch": "leaf-7", "leaf": "leaf-7"}, {"leaf": "leaf-7"}),
        ({"rack": 12, "leaf": None, "feed": ""}, {"rack": "12"}),
    ],
)
def test_what_is_said(place: dict[str, object], levels: dict[str, str]) -> None:
    assert levels_of("gpu-1", place) == levels


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("r12", "gpu-1: fleet_place is 'r12'; give a dictionary such as {rack: r12, leaf: leaf-7}"),
        (
            {"switch": "leaf-7", "leaf": "leaf-8"},
            "gpu-1: fleet_place has switch leaf-7 and leaf leaf-8, and both mean the leaf switch; give leaf alone",
        ),
        ({"rack": "row 3"}, "gpu-1: fleet_place.rack is 'row 3', which cannot be the value of a Node's label"),
        ({"rack": "a" * 64}, "use at most 63 letters"),
        ({"switch": "-7"}, "gpu-1: fleet_place.switch is '-7'"),
        ({"feed": True}, "gpu-1: fleet_place.feed is True, which cannot be the value of a Node's label"),
    ],
)
def test_a_mistake_is_one_sentence(place: object, sentence: str) -> None:
    with pytest.raises(FleetError, match=re.escape(sentence)):
        levels_of("gpu-1", place)
