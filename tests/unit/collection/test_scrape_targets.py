"""Targets of Prometheus: names, groups, places."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.preflight.scrape_targets import metric_hosts, scrape_targets

GROUPS = {"all": ["etcd-1", "gpu-1"], "ungrouped": [], "etcd": ["etcd-1"], "gpu_nodes": ["gpu-1"]}


def _hostvars(place: Any) -> dict[str, dict[str, Any]]:
    return {
        "etcd-1": {"fleet_address": "198.18.0.1"},
        "gpu-1": {"ansible_host": "2001:db8::1", "fleet_place": place},
    }


def test_each_host_has_its_name_its_group_and_its_place() -> None:
    assert scrape_targets(["etcd-1", "gpu-1"], _hostvars({"rack": 12, "feed": "a"}), GROUPS, 9443) == [
        {"targets": ["198.18.0.1:9443"], "labels": {"instance": "etcd-1", "group": "etcd"}},
        {
            "targets": ["[2001:db8::1]:9443"],
            "labels": {"instance": "gpu-1", "group": "gpu_nodes", "rack": "12", "feed": "a"},
        },
    ]


@pytest.mark.parametrize("place", [{"leaf": "l7"}, {"switch": "l7"}, {"switch": "l7", "leaf": "l7"}])
def test_the_leaf_switch_has_one_name_in_all_series(place: dict[str, str]) -> None:
    (target,) = scrape_targets(["gpu-1"], _hostvars(place), GROUPS, 9443)
    assert target["labels"] == {"instance": "gpu-1", "group": "gpu_nodes", "switch": "l7"}


def test_the_group_is_one_of_musters_and_the_same_in_any_order() -> None:
    """Also below `gpu_nodes: {children: {h100: ...}}`: a panel asks for the nodes by group="gpu_nodes"."""
    groups = {
        **GROUPS,
        "a_site": ["etcd-1", "gpu-1"],
        "h100": ["gpu-1"],
        "monitoring": ["etcd-1"],
        "zone_b": ["etcd-1", "gpu-1"],
    }
    for order in (list(groups), list(reversed(groups))):
        found = scrape_targets(["etcd-1", "gpu-1"], _hostvars({}), {name: groups[name] for name in order}, 9443)
        assert [target["labels"]["group"] for target in found] == ["etcd", "gpu_nodes"]


def test_a_host_of_no_group_of_musters_has_none() -> None:
    (target,) = scrape_targets(["gpu-1"], _hostvars({}), {"all": ["gpu-1"], "h100": ["gpu-1"]}, 9443)
    assert target["labels"]["group"] == ""


@pytest.mark.parametrize("address", ["198.18.0.1", "gpu-1.example.com"])
def test_two_names_of_one_address_are_refused_with_both(address: str) -> None:
    hosts = {"etcd-1": {"fleet_address": address}, "gpu-1": {"ansible_host": address.upper()}}
    with pytest.raises(FleetError, match=rf"^etcd-1 and gpu-1 have the same address {address.upper()}; give each"):
        scrape_targets(hosts, hosts, GROUPS, 9443)


def test_a_host_that_is_asked_for_twice_is_one_target() -> None:
    assert len(scrape_targets(["etcd-1", "etcd-1"], _hostvars({}), GROUPS, 9443)) == 1


def test_each_path_has_the_hosts_of_its_groups_once() -> None:
    sources = {"all": {"node": "x"}, "etcd": {"etcd": "x"}, "etcd_events": {"etcd": "x"}, "gpu_nodes": {"gpu": "x"}}
    groups = {"all": ["etcd-1", "gpu-1"], "etcd": ["etcd-1"], "etcd_events": ["etcd-1"]}
    assert metric_hosts(sources, groups) == {"node": ["etcd-1", "gpu-1"], "etcd": ["etcd-1"], "gpu": []}


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("r12", "fleet_place is 'r12'; give a dictionary"),
        ({"Rack": "r12"}, "'Rack', which cannot be a label"),
        ({"instance": "x"}, "'instance', which cannot be a label"),
        ({"leaf": "l7", "switch": "l8"}, "has switch l8 and leaf l7, and both mean the leaf switch"),
    ],
)
def test_a_place_that_cannot_be_a_label_is_refused_with_the_host(place: object, told: str) -> None:
    with pytest.raises(FleetError, match="gpu-1: fleet_place") as refused:
        scrape_targets(["gpu-1"], _hostvars(place), GROUPS, 9443)
    assert told in str(refused.value)
