"""What Prometheus reads: targets with their labels, as its file_sd files want them. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.endpoints import addresses, endpoint
from ansible_collections.muster.fleet.plugins.module_utils.host.places import metric_labels_of
from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import KNOWN_GROUPS


def scrape_targets(
    hosts: Iterable[str], hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]], port: int
) -> list[dict[str, Any]]:
    """One entry of a file_sd file for each host: endpoint, name, group, and where it stands (`fleet_place`).

    Of a host's groups it is the first of Muster's own, whatever other ones the site has put it into.
    Raises FleetError for a host without an address, for two with the same one and for a place that cannot be a label.
    """
    # Each look into hostvars makes Ansible put the host's variables together anew.
    wanted = list(hosts)
    known = {host: hostvars[host] for host in wanted if host in hostvars}
    at = addresses(wanted, known)
    _refuse_shared(at)
    group_of = {host: group for group in reversed(KNOWN_GROUPS) for host in groups.get(group, ())}
    return [
        {
            "targets": [endpoint(address, port, scheme="")],
            "labels": {
                "instance": host,
                "group": group_of.get(host, ""),
                **metric_labels_of(host, known[host].get("fleet_place")),
            },
        }
        for host, address in at.items()
    ]


def metric_hosts(sources: Mapping[str, Mapping[str, str]], groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """For each path on the port of metrics its hosts, each once; `sources` has for each group its paths."""
    hosts: dict[str, dict[str, None]] = {}
    for group, paths in sources.items():
        for path in paths:
            hosts.setdefault(path, {}).update(dict.fromkeys(groups.get(group, ())))
    return {path: list(names) for path, names in hosts.items()}


def _refuse_shared(at: Mapping[str, str]) -> None:
    """One machine under two names would be read, counted and told of twice."""
    first: dict[str, str] = {}
    for host, address in at.items():
        if (other := first.setdefault(address.lower(), host)) != host:
            raise FleetError(
                f"{other} and {host} have the same address {address}; give each its own fleet_address or ansible_host, "
                "or take one of the names out of the inventory"
            )
