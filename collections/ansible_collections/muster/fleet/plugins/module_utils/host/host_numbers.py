"""Address and pod range of a numbered host, such as each of `gpu-[001:200]`. Pure functions."""

from __future__ import annotations

import ipaddress
import re

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError

# The messages name no host: one mistake in a formula is one problem, however many hosts it is of.
NUMBER = re.compile(r"[0-9]+$")


def host_number(host: str) -> int:
    """The number at the end of the host's name before its domain: 7 for gpu-007.site. Raises FleetError without one."""
    found = NUMBER.search(host.split(".")[0])
    if found is None:
        raise FleetError("the host's name does not end with a number; set the value for this host alone")
    return int(found.group())


def nth_address(host: str, network: str, offset: int = 0) -> str:
    """Address number `host_number + offset` of the network; for gpu-007 and 10.20.0.0/16 it is 10.20.0.7.

    Raises FleetError when no host of the network may have it.
    """
    whole = _network(network)
    index = host_number(host) + offset
    last = whole.num_addresses - 1
    # The first and the last address of an IPv4 network are the network itself and its broadcast (RFC 1122, 3.2.1.3).
    first, last = (1, last - 1) if whole.version == 4 and whole.prefixlen < 31 else (0, last)
    if not first <= index <= last:
        raise FleetError(
            f"{whole} has the addresses {first} to {last}, and the host's number (with its offset) is none of them; "
            "take a wider network or another offset"
        )
    return str(whole[index])


def nth_range(host: str, network: str, prefix: int, offset: int = 0) -> str:
    """Range number `host_number + offset` of all `/prefix` in the network; gpu-007 has 10.64.7.0/24 of 10.64.0.0/12.

    Raises FleetError when the network has no such range.
    """
    whole = _network(network)
    if not whole.prefixlen <= int(prefix) <= whole.max_prefixlen:
        raise FleetError(f"{whole} has no ranges of /{prefix}; give a length from {whole.prefixlen} on")
    index = host_number(host) + offset
    count = 2 ** (int(prefix) - whole.prefixlen)
    if not 0 <= index < count:
        raise FleetError(
            f"{whole} has the /{prefix} ranges 0 to {count - 1}, and the host's number (with its offset) is none of "
            "them; take a wider network, smaller ranges or another offset"
        )
    return f"{whole.network_address + index * 2 ** (whole.max_prefixlen - int(prefix))}/{prefix}"


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(str(text))
    except ValueError as error:
        raise FleetError(f"{text!r} is not an IP range; write network/prefix without host bits") from error
