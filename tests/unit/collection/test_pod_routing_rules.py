"""What an inventory may say about routes by BGP: each mistake is one sentence that names the host and the fix."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import UNRESOLVED
from ansible_collections.muster.fleet.plugins.module_utils.preflight.role_rules import ROLE_RULES

from tests.support.clean_inventory import GROUPS, Data

NODES = GROUPS["nodes"]
LEAF = {"address": "10.20.9.1", "asn": 64601}


def reflected() -> Data:
    """A fleet with a reflector."""
    data = Data()
    given = {"routing": "bgp", "manage_routes": True, "bgp_asn": 64512, "bgp_peers": [],
             "bgp_reflectors": ["system-1"], "bgp_nodes": ["10.20.0.0/24"]}  # fmt: skip
    data.pod_routing = {f"pod_network_{name}": dict.fromkeys(NODES, value) for name, value in given.items()}
    return data


def put(name: str, value: object, *hosts: str) -> Callable[[Data], object]:
    """Set a variable of these hosts, or of all nodes."""
    return lambda data: data.pod_routing[f"pod_network_{name}"].update(dict.fromkeys(hosts or NODES, value))


def leaves(*peers: object) -> Callable[[Data], object]:
    """Peers in the place of reflectors."""
    return lambda data: (put("bgp_reflectors", [])(data), put("bgp_peers", list(peers))(data))


@pytest.mark.parametrize(
    "change",
    [
        lambda data: None,
        leaves(LEAF),
        leaves(LEAF, {"address": "10.20.9.2", "asn": "4200000000", "ttl_security": False}),
        put("bgp_asn", UNRESOLVED),
        put("bgp_asn", 4294967294),
        # Each rack has its own leaf switches, and each leaf its own number.
        lambda data: (leaves(LEAF)(data), put("bgp_peers", [{"address": "10.20.8.1", "asn": 64602}], "gpu-2")(data)),
        # Of a fleet with static routes nothing else is looked at.
        lambda data: (put("routing", "static")(data), put("bgp_asn", -1)(data)),
        lambda data: data.pod_routing.clear(),
    ],
)
def test_what_is_accepted(change: Callable[[Data], object]) -> None:
    data = reflected()
    change(data)
    assert [problem.line() for problem in data.problems()] == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            put("routing", "static", "gpu-2"),
            "gpu-2: pod_network_routing is static, but on 2 nodes bgp: nodes of the one do not hear of new ones of the "
            "other; set it once, in group_vars/all.yml",
        ),
        (
            lambda data: (
                put("bgp_reflectors", ["gpu-1"])(data),
                put("routing", "static", "gpu-2", "system-1")(data),
            ),
            "gpu-1: pod_network_routing is bgp, but on 2 nodes static: nodes of the one",
        ),
        (
            put("manage_routes", "no"),
            "pod_network_manage_routes is false, but pod_network_routing is bgp, which sets routes; leave",
        ),
        (put("bgp_asn", 0), "pod_network_bgp_asn is 0, which is no number of an autonomous system; give"),
        (put("bgp_asn", 23456), "pod_network_bgp_asn is 23456, which is no number"),
        (put("bgp_asn", 4294967296), "pod_network_bgp_asn is 4294967296, which is no number"),
        (put("bgp_asn", "AS1"), "pod_network_bgp_asn is 'AS1', which is no number"),
        (put("bgp_asn", 64513, "gpu-1"), "gpu-1: pod_network_bgp_asn is 64513, but reflectors and their nodes"),
        (
            leaves(),
            "pod_network_routing is bgp, but pod_network_bgp_peers and pod_network_bgp_reflectors are empty, so nobody",
        ),
        (leaves({"asn": 64601}), "pod_network_bgp_peers: None is no IPv4 address; give the router's in the node's"),
        (leaves("10.20.9.1"), "pod_network_bgp_peers: None is no IPv4 address"),
        (leaves({"address": "fd00::1", "asn": 1}), "pod_network_bgp_peers: 'fd00::1' is no IPv4 address"),
        (leaves(LEAF, LEAF), "pod_network_bgp_peers: 10.20.9.1 stands twice; name each router once"),
        (leaves({**LEAF, "asn": 65535}), "pod_network_bgp_peers: 10.20.9.1 has asn 65535, which is no number of one; "),
        (leaves({"address": "10.20.9.1"}), "pod_network_bgp_peers: 10.20.9.1 has asn None, which is no number of one"),
        (
            leaves({"address": "10.20.0.1", "asn": 64601}),
            "pod_network_bgp_peers: 10.20.0.1 is etcd-1, a host of the fleet; name it in pod_network_bgp_reflectors",
        ),
        (
            put("bgp_reflectors", ["system-1", "system-9"]),
            "pod_network_bgp_reflectors names system-9, which is no host of the inventory; name nodes of system_nodes",
        ),
        (
            put("bgp_reflectors", ["api-1"]),
            "pod_network_bgp_reflectors names api-1, which is no node with BGP; name nodes",
        ),
        (
            put("bgp_reflectors", ["gpu-1"], "gpu-2"),
            "gpu-2: pod_network_bgp_reflectors is another one than on other nodes, so the two parts would not hear of",
        ),
        (
            put("bgp_nodes", ["10.20.0.0/32"]),
            "fleet_address 10.20.0.8 lies in none of pod_network_bgp_nodes, so no reflector would take its session; "
            "add its network to pod_network_bgp_nodes (10.20.0.0/32)",
        ),
        (put("bgp_nodes", []), "lies in none of pod_network_bgp_nodes, so no reflector would take its session; add its "
                               "network to pod_network_bgp_nodes (empty)"),
        (put("bgp_nodes", ["10.20.0.1/24"]), "pod_network_bgp_nodes: '10.20.0.1/24' is no IPv4 network; write it like"),
        (
            lambda data: data.pod_ranges.update({"gpu-2": "10.64.9.0/25"}),
            "gpu-2: pod_network_range is a /25, but those of 2 nodes with BGP are /24; give all nodes ranges of one",
        ),
    ],
)  # fmt: skip
def test_each_mistake_is_one_sentence(change: Callable[[Data], object], line: str) -> None:
    data = reflected()
    change(data)
    (found,) = data.problems()
    assert line in found.line()


@pytest.mark.parametrize("password", ["", "a", "x" * 80, "AB+/=;#{}\\"])
def test_passwords_that_kernel_and_bird_take(password: str) -> None:
    (rule,) = ROLE_RULES["pod_network"]
    assert list(rule.check(password)) == []


@pytest.mark.parametrize("password", ['a"b', "a b", "x" * 81, "ä", "a\nb"])
def test_other_ones_are_refused_and_not_shown(password: str) -> None:
    (rule,) = ROLE_RULES["pod_network"]
    ((message, _),) = rule.check(password)
    assert rule.blamed == "pod_network_bgp_password" and password not in message
