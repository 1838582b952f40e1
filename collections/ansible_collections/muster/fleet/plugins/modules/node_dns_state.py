#!/usr/bin/python
"""Ansible module: what the node_dns role must know of a host before it writes anything."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import run_module
from ansible_collections.muster.fleet.plugins.module_utils.host.upstreams import upstreams

DOCUMENTATION = r"""
module: node_dns_state
short_description: Name servers that the resolver of a node asks
version_added: "0.2.0"
description:
  - Reads which name servers the host has. Of a stub of the host itself (systemd-resolved, or the dnsmasq of
    NetworkManager or of resolvconf) it finds the servers behind it; where no file tells them, the stub is asked.
  - Refuses servers that would send questions back to O(address). Changes nothing.
options:
  address:
    description: Address on which the node's resolver listens.
    type: str
    required: true
  upstreams:
    description: Servers to ask instead of the host's, as C(forward) of CoreDNS takes them.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - muster.fleet.check_mode.looks
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
- name: Read the name servers of the node
  muster.fleet.node_dns_state:
    address: 169.254.20.10
"""

RETURN = r"""
servers:
  description: Servers to ask, in the order of the host's own resolver.
  returned: success
  type: list
  elements: str
source:
  description: The file or the variable that names them.
  returned: success
  type: str
stub:
  description: The host's own resolver that stands before them and is left out; empty where there is none.
  returned: success
  type: str
"""

ARGUMENT_SPEC: dict[str, Any] = {
    "address": {"type": "str", "required": True},
    "upstreams": {"type": "list", "elements": "str", "default": []},
}


def observe(module: AnsibleModule) -> dict[str, Any]:
    """Look at the host. Raises FleetError."""
    found = upstreams(module.params["address"], module.params["upstreams"])
    return {"changed": False, "servers": found.servers, "source": found.source, "stub": found.stub}


def main() -> None:
    """Entry point."""
    run_module(observe, ARGUMENT_SPEC)


if __name__ == "__main__":
    main()
