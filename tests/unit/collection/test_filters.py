"""The collection's filters."""

from __future__ import annotations

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.filter.addresses import addresses
from ansible_collections.muster.fleet.plugins.filter.kubeconfig import kubeconfig
from ansible_collections.muster.fleet.plugins.filter.sha256sums import sha256sums
from ansible_collections.muster.fleet.plugins.filter.wave_wait import wave_wait

SUM = "a1" * 32
HOSTVARS = {
    "b": {"ansible_host": "198.18.7.12"},
    "a": {"ansible_host": "jump", "fleet_address": "198.18.7.11"},
    "bare": {},
}


def test_addresses_keep_the_order_of_the_group() -> None:
    assert list(addresses(["b", "a"], HOSTVARS).items()) == [("b", "198.18.7.12"), ("a", "198.18.7.11")]


@pytest.mark.parametrize(("host", "message"), [("bare", "set ansible_host"), ("c", "not in the inventory")])
def test_addresses_refuses(host: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        addresses([host], HOSTVARS)


def test_sha256sums() -> None:
    text = f"# binaries\n{SUM}  etcd\n\n{SUM.upper()} *bin/with space \n"
    assert sha256sums(text) == {"etcd": SUM, "with space": SUM}


@pytest.mark.parametrize(
    ("text", "message"), [("abc  etcd", "line 1"), (f"{SUM}  a\n{'b2' * 32}  x/a", "line 2.*second sum")]
)
def test_sha256sums_refuses(text: str, message: str) -> None:
    with pytest.raises(AnsibleFilterError, match=message):
        sha256sums(text)


def test_kubeconfig() -> None:
    text = kubeconfig("https://198.18.7.41:6443", "lab: one", "admin", "/pki")
    read = yaml.safe_load(text)
    assert text.startswith("---\n")
    assert read["clusters"] == [
        {"name": "lab: one", "cluster": {"server": "https://198.18.7.41:6443", "certificate-authority": "/pki/ca.crt"}}
    ]
    assert read["users"] == [
        {"name": "admin", "user": {"client-certificate": "/pki/admin.crt", "client-key": "/pki/admin.key"}}
    ]
    assert read["contexts"] == [{"name": "lab: one", "context": {"cluster": "lab: one", "user": "admin"}}]
    assert read["current-context"] == "lab: one"


def test_a_kubeconfig_may_name_its_certificate_otherwise_than_its_user() -> None:
    user = yaml.safe_load(kubeconfig("https://api", "lab", "scheduler", "/pki", name="client"))["users"][0]
    assert user == {
        "name": "scheduler",
        "user": {"client-certificate": "/pki/client.crt", "client-key": "/pki/client.key"},
    }


def test_kubeconfig_refuses_a_server_without_tls() -> None:
    with pytest.raises(AnsibleFilterError, match="must begin with https://"):
        kubeconfig("http://198.18.7.41:6443", "lab", "admin", "/pki")


@pytest.mark.parametrize(
    ("hosts", "forks", "wave_nodes", "extended_s", "expected_s"),
    [
        (1, 20, 1, 0, 1800),
        (100, 20, 1, 0, 5 * 600 + 100 * 150),
        (101, 20, 10, 0, 6 * 600 + 11 * 150),
        # As docs/operations/power-waves.md says: up to two days.
        (1000, 20, 1, 0, 180_000),
        (4, 20, 2, 7200, 7800 + 2 * 1950),
    ],
)
def test_a_node_waits_for_its_waves_until_all_others_had_theirs(
    hosts: int, forks: int, wave_nodes: int, extended_s: int, expected_s: int
) -> None:
    found = wave_wait(1800, hosts=hosts, forks=forks, wave_nodes=wave_nodes, extended_s=extended_s)
    assert found == expected_s
    assert wave_wait(10**6, hosts=hosts, forks=forks, wave_nodes=wave_nodes, extended_s=extended_s) == 10**6
