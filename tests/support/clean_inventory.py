"""A clean inventory as plain data, for cases to spoil."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import Inventory
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_rules import check
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

GROUPS = {
    "etcd": ["etcd-1", "etcd-2", "etcd-3"],
    "etcd_events": ["events-1"],
    "kube_apiserver": ["api-1", "api-2"],
    "api_loadbalancer": ["lb-1"],
    "gpu_nodes": ["gpu-1", "gpu-2"],
    "system_nodes": ["system-1"],
    "monitoring": ["mon-1"],
    "nodes": ["gpu-1", "gpu-2", "system-1"],
}


class Data:
    """A clean inventory as plain data, for a case to spoil."""

    def __init__(self) -> None:
        self.groups: dict[str, list[str]] = copy.deepcopy(GROUPS)
        self.groups["all"] = list(dict.fromkeys(host for hosts in GROUPS.values() for host in hosts))
        self.addresses: dict[str, Any] = {
            host: f"10.20.0.{number}" for number, host in enumerate(self.groups["all"], start=1)
        }
        self.pod_ranges: dict[str, Any] = {
            host: f"10.64.{number}.0/24" for number, host in enumerate(self.groups["nodes"])
        }
        self.fleet: dict[str, Any] = {
            "fleet_planned_nodes": 3000,
            "fleet_pod_cidr": "10.64.0.0/12",
            "fleet_service_cidr": "10.96.0.0/16",
            "fleet_api_address": self.addresses["lb-1"],
            "fleet_allow_single_members": False,
            "fleet_api_port": 6443,
            "fleet_api_server_port": 6443,
            "fleet_etcd_client_port": 2379,
            "fleet_etcd_peer_port": 2380,
            "fleet_etcd_metrics_port": 2381,
        }
        self.ansible_hosts: dict[str, Any] = {}
        self.group_files = {"group_vars/all.yml": "all", "group_vars/rack1.yml": "rack1", "group_vars/etcd2": "etcd2"}
        self.host_files = {f"host_vars/{name}.yml": name for name in ("gpu-1", "gpu-99", "localhost")}
        self.bmc_addresses: dict[str, Any] = {"gpu-1": "10.21.0.1", "gpu-2": "https://10.21.0.2:8443", "mon-1": ""}
        self.bmc_systems: dict[str, Any] = {"gpu-1": "1"}
        self.device_plugin: dict[str, dict[str, Any]] = {
            "nvidia_device_plugin_image": {"gpu-1": "plugin", "gpu-2": "plugin", "etcd-1": ""},
            "nvidia_device_plugin_environment": {"gpu-1": {"A": "b"}, "gpu-2": {"A": "b"}},
        }
        self.pod_routing: dict[str, dict[str, Any]] = {"pod_network_routing": dict.fromkeys(GROUPS["nodes"], "static")}
        self.places: dict[str, Any] = {
            "gpu-1": {"rack": "r1", "pdu": "7 b"},
            "gpu-2": {"rack": "r1"},
            "mon-1": {"rack": "?"},
        }
        self.expects: dict[str, Any] = {host: {"gpus": 8, "model": "h100-sxm5-80gb"} for host in ("gpu-1", "gpu-2")}
        self.patterns = ["all", "etcd", "system_nodes:gpu_nodes", "localhost", "gpu_nodes:!gpu-1", "~gpu.*"]

    def problems(self, rules: Callable[[Inventory], list[Problem]] = check) -> list[Problem]:
        """What the rules find."""
        return rules(
            Inventory(
                self.groups,
                self.addresses,
                self.pod_ranges,
                self.fleet,
                self.patterns,
                self.ansible_hosts,
                self.group_files,
                self.host_files,
                self.bmc_addresses,
                self.bmc_systems,
                self.device_plugin,
                self.pod_routing,
                self.places,
                self.expects,
            )
        )


def drop(data: Data, group: str, *hosts: str) -> None:
    """Take hosts out of a group, and out of the inventory where they are in no other one."""
    data.groups[group] = [host for host in data.groups[group] if host not in hosts]
    placed = {host for name, members in data.groups.items() if name != "all" for host in members}
    data.groups["all"] = [host for host in data.groups["all"] if host in placed]


def rename(data: Data, new: str) -> None:
    """Give mon-1 another name."""
    for members in data.groups.values():
        members[:] = [new if host == "mon-1" else host for host in members]
    data.addresses[new] = data.addresses.pop("mon-1")


def add(data: Data, host: str, *groups: str) -> None:
    """One host more."""
    for group in ("all", *groups):
        data.groups.setdefault(group, []).append(host)
    data.addresses[host] = f"10.20.0.{100 + len(data.addresses)}"


def with_teams(data: Data, gpus: int = 16) -> bool:
    """One team, of alice."""
    data.fleet.update(fleet_users=["alice"], fleet_teams={"vision": {"gpus": gpus, "members": ["alice"]}})
    return True
