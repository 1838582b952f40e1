#!/usr/bin/env python3
"""Bring this node's pod network to its configuration: kernel settings, routes to other nodes' ranges (where they do not
come by BGP), masquerading, and link-local addresses kept from pods.

Prints one line for each thing that differed; nothing printed means nothing changed. With --check it only prints. Run by
pod-network-routes.service at boot and by the Ansible role. Standard library only.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAT_CHAIN = "POD-NETWORK"
FORWARD_CHAIN = "POD-NETWORK-FORWARD"
LINK_LOCAL_CHAIN = "POD-NETWORK-LINK-LOCAL"
LINK_LOCAL = "169.254.0.0/16"
SYSCTLS = {"net/ipv4/ip_forward": "1"}
# Only where the kernel has br_netfilter. Without it a Service whose pod is on the caller's own node does not answer.
BRIDGE_SYSCTLS = {"net/bridge/bridge-nf-call-iptables": "1"}
# There while BIRD is run by role pod_network.
BGP_PROGRAM = Path("/usr/local/sbin/pod-network-bgp")
_FAILED_LINE = re.compile(r"Command failed -:(\d+)")


class PodNetworkError(Exception):
    """Something that cannot be set; the message names it and what to do."""


@dataclass(frozen=True)
class Peer:
    """Another node: its name, the range of its pods, and the address it is reached by."""

    host: str
    range: ipaddress.IPv4Network
    via: ipaddress.IPv4Address


@dataclass(frozen=True)
class Config:
    """The configuration file. `range` is this node's; `peers` may include this node."""

    range: ipaddress.IPv4Network
    cidr: ipaddress.IPv4Network
    bridge: str
    protocol: int
    manage_routes: bool
    routing: str
    masquerade: bool
    deny_link_local: bool
    no_masquerade: tuple[ipaddress.IPv4Network, ...]
    peers: tuple[Peer, ...]


@dataclass(frozen=True)
class Chain:
    """An iptables chain of our own: the built-in chain that jumps to it, and its rules as `iptables -S` prints them."""

    table: str
    name: str
    parent: str
    rules: tuple[str, ...]


def parse_config(text: str, path: str) -> Config:
    """Read the configuration. Raises PodNetworkError that names file and key."""
    try:
        data: dict[str, Any] = json.loads(text)
        return Config(
            range=ipaddress.IPv4Network(data["range"]),
            cidr=ipaddress.IPv4Network(data["cidr"]),
            bridge=str(data["bridge"]),
            protocol=int(data["protocol"]),
            manage_routes=bool(data["manage_routes"]),
            routing=str(data["routing"]),
            masquerade=bool(data["masquerade"]),
            deny_link_local=bool(data["deny_link_local"]),
            no_masquerade=tuple(ipaddress.IPv4Network(item) for item in data["no_masquerade"]),
            peers=tuple(
                Peer(host, ipaddress.IPv4Network(range_), ipaddress.IPv4Address(data["addresses"][host]))
                for host, range_ in data["ranges"].items()
            ),
        )
    except KeyError as error:
        raise PodNetworkError(f"{path}: {error.args[0]} is missing; apply the role pod_network again") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise PodNetworkError(f"{path}: {error}; correct the inventory and apply the role pod_network") from error


def wanted_routes(config: Config) -> dict[str, str]:
    """{range: gateway} of all other nodes, empty when routes are not ours to set."""
    if not config.manage_routes:
        return {}
    return {str(peer.range): str(peer.via) for peer in config.peers if peer.range != config.range}


def present_routes(text: str) -> dict[str, str]:
    """{range: gateway} from `ip -json route show`."""
    return {
        str(ipaddress.IPv4Network(route["dst"])): str(route.get("gateway", "")) for route in json.loads(text or "[]")
    }


def route_batch(wanted: Mapping[str, str], present: Mapping[str, str], protocol: int) -> list[str]:
    """The lines for `ip -batch`: new and changed routes first, then the removal of those nobody wants."""
    replace = [
        f"route replace {range_} via {via} proto {protocol}"
        for range_, via in wanted.items()
        if present.get(range_) != via
    ]
    return replace + [f"route del {range_} proto {protocol}" for range_ in present if range_ not in wanted]


def chains(config: Config) -> list[Chain]:
    """The chains of our own. One whose purpose is off is left empty."""
    stays = [f"-A {NAT_CHAIN} -d {net} -j RETURN" for net in (config.cidr, *config.no_masquerade)]
    masquerade = [
        f"-A {NAT_CHAIN} ! -s {config.range} -j RETURN",
        *stays,
        f"-A {NAT_CHAIN} -j MASQUERADE --random-fully",
    ]
    # At the end of FORWARD: earlier refusals hold, a DROP policy (Docker's, ufw's) does not cut the pods off.
    forward = [f"-A {FORWARD_CHAIN} {way} {config.cidr} -j ACCEPT" for way in ("-s", "-d")]
    # In mangle, which comes before filter: no ACCEPT of somebody else's opens it. By the bridge and not by the source,
    # which a pod of a namespace without Pod Security may forge. In FORWARD alone: an address of the node itself (a DNS
    # cache on 169.254.20.10, say) is INPUT and answers its pods.
    link_local = [f"-A {LINK_LOCAL_CHAIN} -d {LINK_LOCAL} -i {config.bridge} -j DROP"]
    return [
        Chain("nat", NAT_CHAIN, "POSTROUTING", tuple(masquerade if config.masquerade else ())),
        Chain("filter", FORWARD_CHAIN, "FORWARD", tuple(forward)),
        Chain("mangle", LINK_LOCAL_CHAIN, "FORWARD", tuple(link_local if config.deny_link_local else ())),
    ]


def restore_input(chain: Chain) -> str:
    """Input of `iptables-restore --noflush` that makes or replaces the chain in one step."""
    return "\n".join([f"*{chain.table}", f":{chain.name} - [0:0]", *chain.rules, "COMMIT", ""])


def run(command: Sequence[str], stdin: str = "", may_fail: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises PodNetworkError when it is missing or, unless `may_fail`, fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise PodNetworkError(f"{command[0]} is not installed; apply the role pod_network") from error
    if done.returncode != 0 and not may_fail:
        raise PodNetworkError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done


def apply_sysctls(check: bool, root: Path = Path("/proc/sys")) -> list[str]:
    """Set the kernel's switches; those of the bridge only where there are any."""
    settings = {**SYSCTLS, **{key: value for key, value in BRIDGE_SYSCTLS.items() if (root / key).exists()}}
    changes = []
    for key, value in settings.items():
        try:
            if (root / key).read_text().strip() == value:
                continue
            if not check:
                (root / key).write_text(value)
        except OSError as error:
            raise PodNetworkError(f"{root / key} cannot be set to {value}: {error.strerror}") from error
        changes.append(f"{key.replace('/', '.')} = {value}")
    return changes


def apply_routes(config: Config, check: bool) -> list[str]:
    """Set and remove routes. Raises PodNetworkError that names the node whose route the kernel refused.

    With BGP a static one of before is pod-network-bgp's to take away, once its range is learnt.
    """
    if config.routing == "bgp":
        return []
    shown = run(["ip", "-json", "-4", "route", "show", "proto", str(config.protocol)]).stdout
    batch = route_batch(wanted_routes(config), present_routes(shown), config.protocol)
    if batch and not check:
        done = run(["ip", "-batch", "-"], "\n".join(batch) + "\n", may_fail=True)
        if done.returncode != 0:
            match = _FAILED_LINE.search(done.stderr)
            line = batch[int(match[1]) - 1] if match else "the routes"
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
            raise PodNetworkError(
                f"`ip {line}` failed: {reason}; the other nodes must be on a network of this host (fleet_address), "
                "or the fabric must route the pod ranges and pod_network_manage_routes be false"
            )
    return batch


def apply_chain(chain: Chain, check: bool) -> list[str]:
    """Make the chain as it should be and the jump to it."""
    iptables = ["iptables", "--wait", "--table", chain.table]
    shown = run([*iptables, "--list-rules", chain.name], may_fail=True)
    rules = tuple(line for line in shown.stdout.splitlines() if line.startswith("-A "))
    changes = []
    if shown.returncode != 0 or rules != chain.rules:
        changes.append(f"chain {chain.name} of table {chain.table}")
        if not check:
            run(["iptables-restore", "--wait", "--noflush"], restore_input(chain))
    jump = [chain.parent, "--jump", chain.name]
    if run([*iptables, "--check", *jump], may_fail=True).returncode != 0:
        changes.append(f"jump from {chain.parent} to {chain.name}")
        if not check:
            run([*iptables, "--append", *jump])
    return changes


def apply(config: Config, check: bool) -> list[str]:
    """Bring everything to the configuration; what differed, one line each."""
    changes = apply_sysctls(check) + apply_routes(config, check)
    for chain in chains(config):
        changes += apply_chain(chain, check)
    return changes


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 with one sentence on stderr when something cannot be set."""
    parser = argparse.ArgumentParser(description="Bring this node's pod network to its configuration.")
    parser.add_argument("config", type=Path, help="the configuration file (JSON)")
    parser.add_argument("--check", action="store_true", help="only print what would change")
    options = parser.parse_args(arguments)
    try:
        config = parse_config(options.config.read_text(), str(options.config))
        changes = apply(config, options.check)
    except PodNetworkError as error:
        print(f"pod-network: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"pod-network: {options.config}: {error.strerror}", file=sys.stderr)
        return 1
    for change in changes:
        print(change)
    if config.routing != "bgp" and BGP_PROGRAM.exists():
        # The role ends it when all nodes have their static routes.
        print(f"BGP still runs here, by {BGP_PROGRAM}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
