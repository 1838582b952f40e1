"""Jinja filter: address and port as an endpoint, for one address or for those of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

from ansible.errors import AnsibleFilterError
from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host import endpoints

DOCUMENTATION = r"""
name: endpoint
short_description: Write address and port as an endpoint
version_added: "0.2.0"
description:
  - Gives C(https://ADDRESS:PORT) for an address or a DNS name. IPv6 addresses are written in their shortest form and in
    brackets.
  - Gives a dictionary of host name to endpoint for a dictionary of host name to address, in its order.
positional: port
options:
  _input:
    description: The address, or a dictionary of addresses as P(muster.fleet.addresses#filter) gives it.
    type: raw
    required: true
  port:
    description: The port, from 1 to 65535.
    type: int
    required: true
  scheme:
    description: Scheme of the URL. Empty gives C(ADDRESS:PORT).
    type: str
    default: https
author:
  - Muster (@muster)
"""

EXAMPLES = r"""
api_url: "{{ fleet_api_address | muster.fleet.endpoint(fleet_api_port) }}"
# => https://[2001:db8::41]:6443
etcd_urls: "{{ groups['etcd'] | muster.fleet.addresses(hostvars) | muster.fleet.endpoint(fleet_etcd_client_port) }}"
# => {etcd-1: "https://198.18.7.11:2379"}
listen: "{{ '::' | muster.fleet.endpoint(9153, scheme='') }}"
# => [::]:9153
"""

RETURN = r"""
_value:
  description: The endpoint, or a dictionary of host name to endpoint.
  type: raw
"""


@overload
def endpoint(address: str, port: int | str, scheme: str = "https") -> str: ...
@overload
def endpoint(address: Mapping[str, str], port: int | str, scheme: str = "https") -> dict[str, str]: ...


def endpoint(address: str | Mapping[str, str], port: int | str, scheme: str = "https") -> str | dict[str, str]:
    """One endpoint, or one for each named address. Raises AnsibleFilterError for an address or port that is none."""
    try:
        if isinstance(address, Mapping):
            return endpoints.endpoints(address, port, scheme)
        return endpoints.endpoint(address, port, scheme)
    except FleetError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """Filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Name to function."""
        return {"endpoint": endpoint}
