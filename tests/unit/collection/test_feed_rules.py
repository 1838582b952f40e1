"""What `fleet_feed_limits` and `gpu_burnin_wave_max_nodes` may say: each mistake is one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.feed_rules import feed_limits
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED, Inventory
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_rules import check
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_rules import ROLE_RULES

PLACES = {"gpu-1": {"feed": "a"}, "gpu-2": {"feed": 7}, "gpu-3": {}, "gpu-4": UNRESOLVED, "gpu-5": {"feed": "row 3"}}
NONE_THERE = "at which no GPU node stands; those that there are: 7, a; correct the name, there or in feed of"


def lines(limits: Any, places: Any = PLACES) -> list[str]:
    inventory = Inventory({"gpu_nodes": list(PLACES)}, fleet={"fleet_feed_limits": limits}, places=places)
    return [problem.line() for problem in feed_limits(inventory)]


@pytest.mark.parametrize("limits", [{}, None, {"a": 1}, {"a": "2", 7: 10}, {"7": 1}])
def test_what_is_accepted(limits: Any) -> None:
    assert lines(limits) == []


@pytest.mark.parametrize(
    ("limits", "line"),
    [
        (3, "fleet_feed_limits is 3, not a dictionary of nodes by feed; write it such as fleet_feed_limits: {a: 2, "),
        ({"a": 0}, "fleet_feed_limits has 0 for the feed a; give how many nodes may swing there, 1 or more"),
        ({"a": -3}, "fleet_feed_limits has -3 for the feed a; give how many nodes may swing there, 1 or more"),
        ({"b": 1}, f"fleet_feed_limits has the feed 'b', {NONE_THERE}"),
        ({"": 1}, f"fleet_feed_limits has the feed '', {NONE_THERE}"),
        ({"row 3": 1}, f"fleet_feed_limits has the feed 'row 3', {NONE_THERE}"),
    ],
)
def test_a_mistake_is_one_sentence(limits: Any, line: str) -> None:
    (found,) = lines(limits)
    assert found.startswith(line)


def test_without_any_feed_and_with_many_of_them() -> None:
    (found,) = lines({"a": 1}, {})
    assert "those that there are: none; correct" in found
    many = {host: {"feed": f"f{host}"} for host in PLACES}
    (found,) = lines({"a": 1}, many)
    assert "those that there are: fgpu-1, fgpu-2, fgpu-3, fgpu-4, fgpu-5; correct" in found


def test_the_inventory_check_has_both_rules() -> None:
    inventory = Inventory({"gpu_nodes": ["gpu-1"]}, fleet={"fleet_feed_limits": {"a": 0}}, places=PLACES)
    assert any("fleet_feed_limits has 0" in problem.message for problem in check(inventory))
    (rule,) = (one for one in ROLE_RULES["gpu_burnin"] if one.blamed == "gpu_burnin_wave_max_nodes")
    assert [list(rule.check(most)) for most in (1, "20")] == [[], []]
    for most in (0, -1):
        said = (f"gpu_burnin_wave_max_nodes is {most}", "give how many nodes may swing at the same time, 1 or more")
        assert list(rule.check(most)) == [said]
