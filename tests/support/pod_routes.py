"""Files of role pod_network as Ansible renders them for a node, in this process: for fleets of any size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from ansible_collections.muster.fleet.plugins.filter.addresses import addresses

from tests.lab.paths import REPOSITORY

ROLE = REPOSITORY / "roles/pod_network"
BIRD = (ROLE / "templates/bird.conf.j2").read_text()
FLEET: Mapping[str, Any] = {
    "fleet_pod_cidr": "198.19.0.0/17",
    "pod_network_routing": "bgp",
    "pod_network_bgp_nodes": ["198.18.56.0/24"],
    "ansible_managed": "Ansible managed",
}


def rendered(
    text: str, host: str, nodes: Mapping[str, tuple[str, str]], system: Sequence[str] = (), **variables: Any
) -> Any:
    """A template by the role's variables, for a host of these nodes: {name: (address, range of pods)}."""
    loader = DataLoader()
    values: dict[str, Any] = {}
    for part in ("defaults", "vars"):
        values |= loader.load_from_file(str(ROLE / part / "main.yml"), trusted_as_template=True)
    address, range_ = nodes[host]
    values |= {
        **FLEET,
        "inventory_hostname": host,
        "fleet_address": address,
        "pod_network_range": range_,
        "groups": {"system_nodes": list(system), "gpu_nodes": [name for name in nodes if name not in system]},
        "hostvars": {name: {"fleet_address": at, "pod_network_range": own} for name, (at, own) in nodes.items()},
        **variables,
    }
    # As file_set has them.
    settings = {"trim_blocks": True, "lstrip_blocks": False, "newline_sequence": "\n"}
    templar = Templar(loader, variables=values)
    templar._engine.environment.filters["muster.fleet.addresses"] = addresses
    return templar.template(trust_as_template(text), escape_backslashes=False, overrides=settings)
