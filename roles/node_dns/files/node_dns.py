#!/usr/bin/env python3
"""What the node's own name server has of the host beside its process: its address, and rules for who asks it.

up: the address is on lo, and the rules are in chains of our own. Prints one line for each thing that differed; nothing
printed means nothing changed. stop: what node-dns.service does at its end; the address stays where the process died.
remove: address and limit go. The way round stays until the next boot: pods that run keep the name servers that they
began with. With --check it only prints. Standard library only.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_CHAIN = "NODE-DNS-LIMIT"
FALLBACK_CHAIN = "NODE-DNS-FALLBACK"
PORT = 53
# How long a pod that asks nothing is remembered.
REMEMBERED_MS = 10000
QPS = range(1, 100001)
# The kernel keeps the time between two packets, in microseconds (XT_HASHLIMIT_SCALE_v2).
SCALE = 1_000_000


class NodeDnsError(Exception):
    """Something that cannot be set; the message names it and what to do."""


@dataclass(frozen=True)
class Config:
    """The configuration file. `servers` are the cluster's name servers, in the order in which this node asks them."""

    address: ipaddress.IPv4Address
    pods: ipaddress.IPv4Network
    servers: tuple[ipaddress.IPv4Address, ...]
    max_qps: int


@dataclass(frozen=True)
class Chain:
    """An iptables chain of our own: the built-in chain that jumps to it, and its rules as `iptables -S` prints them."""

    table: str
    name: str
    parent: str
    rules: tuple[str, ...]


def parse_config(text: str, path: str) -> Config:
    """Read the configuration. Raises NodeDnsError that names file and key."""
    try:
        data: dict[str, Any] = json.loads(text)
        servers = (ipaddress.ip_address(server) for server in data["servers"])
        max_qps = int(data["max_qps"])
        if max_qps not in QPS:
            raise ValueError(f"node_dns_max_qps is {max_qps}, which is not from {QPS[0]} to {QPS[-1]}")
        return Config(
            address=ipaddress.IPv4Address(data["address"]),
            pods=ipaddress.IPv4Network(data["pods"]),
            # Pods have IPv4 alone.
            servers=tuple(server for server in servers if isinstance(server, ipaddress.IPv4Address)),
            max_qps=max_qps,
        )
    except KeyError as error:
        raise NodeDnsError(f"{path}: {error.args[0]} is missing; apply the role node_dns again") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise NodeDnsError(f"{path}: {error}; correct the inventory and apply the role node_dns") from error


def limit_chain(config: Config) -> Chain:
    """Each pod asks so many questions a second at most, whether this server or, beside it, the cluster's.

    Nobody but this node's pods and processes asks this one: link-local as it is, a neighbour could still route to it.
    """
    kept_qps = SCALE // (SCALE // config.max_qps)
    # The kernel keeps a table for each name, with the limit of the first rule that names it.
    above = (
        f"-m hashlimit --hashlimit-above {kept_qps}/sec --hashlimit-burst {2 * config.max_qps} --hashlimit-mode srcip "
        f"--hashlimit-name node-dns-{config.max_qps} --hashlimit-htable-expire {REMEMBERED_MS} -j DROP"
    )
    asks = [f"-s {config.pods} -d {config.address}/32"]
    asks += [
        f"-s {config.pods} -d {server}/32 -p {protocol} -m {protocol} --dport {PORT}"
        for server in config.servers
        for protocol in ("udp", "tcp")
    ]
    rules = [f"! -s {config.pods} -d {config.address}/32 ! -i lo -j DROP", *(f"{one} {above}" for one in asks)]
    return Chain("mangle", LIMIT_CHAIN, "PREROUTING", tuple(f"-A {LIMIT_CHAIN} {rule}" for rule in rules))


def fallback_chain(config: Config) -> Chain:
    """While nobody listens on the address, what pods ask there goes to one of the cluster's servers.

    The kernel looks for the socket at each question, so nothing has to notice that the server is gone.
    """
    to_address = f"-d {config.address}/32"
    rules = [
        rule
        for protocol in ("udp", "tcp")
        for rule in (
            f"{to_address} -p {protocol} -m {protocol} --dport {PORT} -m socket -j RETURN",
            *(
                f"{to_address} -p {protocol} -m {protocol} --dport {PORT} -j DNAT --to-destination {server}"
                for server in config.servers[:1]
            ),
        )
    ]
    return Chain("nat", FALLBACK_CHAIN, "PREROUTING", tuple(f"-A {FALLBACK_CHAIN} {rule}" for rule in rules))


def restore_input(chain: Chain) -> str:
    """Input of `iptables-restore --noflush` that makes or replaces the chain in one step."""
    return "\n".join([f"*{chain.table}", f":{chain.name} - [0:0]", *chain.rules, "COMMIT", ""])


def run(command: Sequence[str], stdin: str = "", may_fail: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a command. Raises NodeDnsError when it is missing or, unless `may_fail`, fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NodeDnsError(f"{command[0]} is not installed; apply the role pod_network") from error
    if done.returncode != 0 and not may_fail:
        raise NodeDnsError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done


def has_address(config: Config) -> bool:
    """Whether the address is on lo."""
    shown = json.loads(run(["ip", "-json", "address", "show", "dev", "lo"]).stdout or "[]")
    return any(
        address.get("local") == str(config.address) for device in shown for address in device.get("addr_info", [])
    )


def add_address(config: Config, check: bool) -> list[str]:
    """Put the address on lo."""
    if has_address(config):
        return []
    if not check:
        run(["ip", "address", "replace", f"{config.address}/32", "dev", "lo", "scope", "host"])
    return [f"address {config.address} on lo"]


def remove_address(config: Config, check: bool) -> list[str]:
    """Take the address from lo."""
    if not has_address(config):
        return []
    if not check:
        run(["ip", "address", "delete", f"{config.address}/32", "dev", "lo"])
    return [f"address {config.address} off lo"]


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


def remove_chain(chain: Chain, check: bool) -> list[str]:
    """Remove the chain and the jump to it."""
    iptables = ["iptables", "--wait", "--table", chain.table]
    if run([*iptables, "--list-rules", chain.name], may_fail=True).returncode != 0:
        return []
    if not check:
        run([*iptables, "--delete", chain.parent, "--jump", chain.name], may_fail=True)
        run([*iptables, "--flush", chain.name])
        run([*iptables, "--delete-chain", chain.name])
    return [f"chain {chain.name} of table {chain.table} removed"]


def up(config: Config, check: bool) -> list[str]:
    """The address and both chains; what differed, one line each."""
    return (
        add_address(config, check)
        + apply_chain(limit_chain(config), check)
        + apply_chain(fallback_chain(config), check)
    )


def stop(config: Config, check: bool) -> list[str]:
    """After the end of the process: one that has died leaves the address.

    The host's own processes are then refused at once, and ask their next server; without the address they would wait.
    """
    return remove_address(config, check) if os.environ.get("SERVICE_RESULT") == "success" else []


def remove(config: Config, check: bool) -> list[str]:
    """Address and limit go; the way round stays for the pods of this boot."""
    return remove_address(config, check) + remove_chain(limit_chain(config), check)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 with one sentence on stderr when something cannot be set."""
    acts = {"up": up, "stop": stop, "remove": remove}
    parser = argparse.ArgumentParser(description="Address and rules of this node's name server.")
    parser.add_argument("act", choices=acts, help="what to do")
    parser.add_argument("config", type=Path, help="the configuration file (JSON)")
    parser.add_argument("--check", action="store_true", help="only print what would change")
    options = parser.parse_args(arguments)
    try:
        changes = acts[options.act](parse_config(options.config.read_text(), str(options.config)), options.check)
    except NodeDnsError as error:
        print(f"node-dns: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"node-dns: {options.config}: {error.strerror}", file=sys.stderr)
        return 1
    for change in changes:
        print(change)
    return 0


if __name__ == "__main__":
    sys.exit(main())
