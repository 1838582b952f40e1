"""How the fleet's hosts reach each other: endpoints, chosen variables, name servers."""

from __future__ import annotations

from collections import Counter

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.endpoint import endpoint
from ansible_collections.muster.fleet.plugins.filter.host_options import host_options
from ansible_collections.muster.fleet.plugins.module_utils.host.endpoints import name_servers


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("198.18.7.11", "https://198.18.7.11:2379"),
        ("etcd-1.example.com", "https://etcd-1.example.com:2379"),
        ("localhost", "https://localhost:2379"),
        ("2001:db8::11", "https://[2001:db8::11]:2379"),
        # In one form, however it is written: etcd compares URLs as text.
        ("2001:0DB8:0:0:0:0:0:0011", "https://[2001:db8::11]:2379"),
        ("::", "https://[::]:2379"),
    ],
)
def test_an_endpoint_of_an_address(address: str, expected: str) -> None:
    assert endpoint(address, 2379) == expected
    assert endpoint(address, "2379", scheme="") == expected.removeprefix("https://")


def test_endpoints_of_a_group_keep_its_order() -> None:
    found = endpoint({"b": "2001:db8::2", "a": "198.18.7.1"}, 80, scheme="http")
    assert list(found.items()) == [("b", "http://[2001:db8::2]:80"), ("a", "http://198.18.7.1:80")]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("198.18.7.41:6443", "without scheme, brackets or port"),
        ("https://198.18.7.41", "without scheme, brackets or port"),
        ("[2001:db8::1]", "without scheme, brackets or port"),
        ("198.18.7.300", "neither an IP address nor a host name"),
        ("two words", "neither an IP address nor a host name"),
        ("", "neither an IP address nor a host name"),
        ("*", "neither an IP address nor a host name"),
        ("fe80::1%eth0", "give a global address"),
    ],
)
def test_what_is_no_address_is_refused(address: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        endpoint(address, 6443)


@pytest.mark.parametrize("port", [0, 65536, -1, "http", "", True, 1.5])
def test_what_is_no_port_is_refused(port: int | str) -> None:
    with pytest.raises(AnsibleFilterError, match="is not a port; give a number from 1 to 65535"):
        endpoint("198.18.7.11", port)


def test_host_values_leave_out_what_the_inventory_does_not_say() -> None:
    known = {"ansible_host": "198.18.0.1", "ansible_port": 2222, "fleet_host_key_fingerprint": "SHA256:x"}
    fields = {"address": "ansible_host", "port": "ansible_port", "fingerprint": "fleet_host_key_fingerprint"}
    assert host_options(["a", "b"], {"a": known, "b": {}}, **fields) == [
        {"name": "a", "address": "198.18.0.1", "port": 2222, "fingerprint": "SHA256:x"},
        {"name": "b"},
    ]


def test_host_values_look_into_results() -> None:
    hostvars = {"open": {"state": {"gate": True}}, "closed": {"state": {"gate": False}}, "silent": {"state": "?"}}
    assert host_options(hostvars, hostvars, gate="state.gate") == [
        {"name": "open", "gate": True},
        {"name": "closed"},
        {"name": "silent"},
    ]


def test_nodes_spread_over_the_name_servers() -> None:
    servers = [f"198.18.7.3{number}" for number in range(5)]
    chosen = {f"gpu-{number}": name_servers(servers, f"gpu-{number}") for number in range(200)}
    for order in chosen.values():
        first = servers.index(order[0])
        assert order == (servers + servers)[first : first + 3]
    # 40 nodes each if it were even; a name always gives the same server, so these counts never change.
    assert min(Counter(order[0] for order in chosen.values()).values()) >= 25
    assert name_servers(servers[:1], "gpu-1") == servers[:1]
    assert name_servers([], "gpu-1") == []
