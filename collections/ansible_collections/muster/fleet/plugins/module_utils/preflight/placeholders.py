"""Values that only stand in the place of the site's own: the example's addresses, names, disks and checksums."""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

# Blocks for documentation: RFC 5737, RFC 3849, RFC 9637.
DOCUMENTATION = tuple(
    ipaddress.ip_network(block)
    for block in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20")
)
# Names that are reserved so that nobody has them (RFC 2606, RFC 6761).
RESERVED_NAME = re.compile(r"(?:^|\.)example\.(?:com|net|org)\.?$|\.(?:example|invalid)\.?$", re.IGNORECASE)
ONE_DIGIT = re.compile(r"^([0-9a-f])\1{63}$", re.IGNORECASE)
ONE_LETTER = re.compile(r"^SHA256:(.)\1{42}=?$")
# The example's word for what only the site knows, such as the serial number of a disk.
EXAMPLE = re.compile(r"(?<![A-Za-z0-9])EXAMPLE(?![A-Za-z0-9])")
SHOWN = 3

FIXES: Mapping[str, str] = {
    "ansible_host": "give the address by which Ansible reaches the host",
    "fleet_address": "give the address by which other hosts reach it",
    "fleet_api_address": "give the address of your load balancer, or of the API server if there is one",
    "fleet_host_key_fingerprint": "give the fingerprint of the host's own key, or leave it out",
    "fleet_name": "name your fleet (the name cannot change later)",
    "fleet_wheelhouse_url": "give the URL of your mirror (docs/operations/mirror.md), or leave it out",
    "kube_binaries_checksums": "replace SHA256SUMS.txt by the SHA256SUMS of your mirror (docs/operations/mirror.md)",
    "kube_binaries_url": "give the URL of your mirror (docs/operations/mirror.md)",
    "local_ssd_device": "give the disk's name under /dev/disk/by-id",
    "time_sync_servers": "give the time servers of your site, or leave it out",
}


# What is wrong, and what to do.
Finding = tuple[str, str]


def placeholders(name: str, value: Any) -> list[Finding]:
    """What of a variable's value, of any type, is a placeholder. One finding for each kind.

    The value of a plain variable is not repeated, so that the same mistake of many hosts is one finding.
    """
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for key, leaf in _leaves(value):
        kind = _kind(name, leaf)
        if kind:
            found[kind][key or leaf] = None
    findings = []
    for kind, parts in found.items():
        names = list(parts)
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        message = f"{name} still has {kind}" + ("" if isinstance(value, str) else f": {shown}")
        findings.append((message, FIXES.get(name, "put your own in its place")))
    return findings


def _kind(name: str, text: str) -> str:
    """Which kind of placeholder the text is; empty when it is none."""
    if ONE_DIGIT.match(text):
        return "a placeholder, a checksum of one repeated digit"
    if ONE_LETTER.match(text):
        return "a placeholder, a fingerprint of one letter"
    if EXAMPLE.search(text) or (name == "fleet_name" and text == "example"):
        return "the example's placeholder"
    host = _host(text)
    if RESERVED_NAME.search(host):
        return "a placeholder, a name reserved for examples (RFC 2606)"
    return "a placeholder, an address reserved for documentation (RFC 5737)" if _is_documentation(host) else ""


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every text in the value, with the nearest key above it."""
    if isinstance(value, str):
        yield key, str(value)
    elif isinstance(value, Mapping):
        for inner, item in value.items():
            yield from _leaves(item, str(inner))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(item, key)


def _host(text: str) -> str:
    """The host in a URL, an image's name, HOST:PORT, an address or a range; empty for a path."""
    place = text.partition("://")[2] or text
    place = place.partition("/")[0].rpartition("@")[2]
    if place.startswith("["):
        return place[1:].partition("]")[0]
    return place.partition(":")[0] if place.count(":") == 1 else place


def _is_documentation(host: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address.version == block.version and address in block for block in DOCUMENTATION)
