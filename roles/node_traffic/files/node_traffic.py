#!/usr/bin/env python3
"""Keep the chains that count this node's traffic by class, and write their counters for node_exporter.

A class is told by the address of the other side. Each class has a chain for each way that holds its counter alone; the
chains before them, which hold the ranges, may be written anew at any time, and no counter is lost by it. Every change
is one transaction of iptables-restore. No rule has a verdict: each packet goes on as if there were no chain of ours.

Prints one line for each thing that differed; nothing printed means nothing changed. With --check it only prints, with
--remove it takes away all that is ours. Run by muster-traffic.service at boot, by muster-traffic-numbers.timer and by
the Ansible role. Standard library only.
"""

from __future__ import annotations

import argparse
import fcntl
import ipaddress
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TABLE = "mangle"
REST = "rest"
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Family:
    """One version of IP, and what begins the names of its tools."""

    name: str
    version: int
    tool: str


@dataclass(frozen=True)
class Way:
    """One way that traffic goes: the chain that finds its class, and whether the other side is its source (-s)."""

    chain: str
    path: str
    direction: str
    other_side: str


FAMILIES = (Family("ipv4", 4, "iptables"), Family("ipv6", 6, "ip6tables"))
POD = "MUSTER-POD"
OWN_IN, OWN_OUT = Way("MUSTER-IN", "own", "in", "-s"), Way("MUSTER-OUT", "own", "out", "-d")
POD_IN, POD_OUT = Way(f"{POD}-IN", "pods", "in", "-s"), Way(f"{POD}-OUT", "pods", "out", "-d")
WAYS = (OWN_IN, OWN_OUT, POD_IN, POD_OUT)
# The kernel's own chains, and ours that each leads to.
JUMPS = {"INPUT": OWN_IN.chain, "OUTPUT": OWN_OUT.chain, "FORWARD": POD}
# A chain's name has 28 characters at most (iptables, XT_EXTENSION_MAXNAMELEN), of which MUSTER-POD-OUT- takes 15.
_OURS = re.compile(r"MUSTER-POD|MUSTER-(?:POD-)?(?:IN|OUT)(?:-[a-z][a-z0-9-]{0,11})?")
_LINE = re.compile(r"\[(?P<packets>\d+):(?P<bytes>\d+)\] -A (?P<chain>\S+)(?: (?P<rule>.*))?")
# Where the kernel has no IPv6 at all.
_IPV6 = Path("/proc/sys/net/ipv6")


class TrafficError(Exception):
    """Something that cannot be read or set; the message names it and what to do."""


@dataclass(frozen=True)
class Config:
    """The configuration file. `classes` are the ranges of each class but `rest`, which has all others."""

    classes: Mapping[str, tuple[Network, ...]]
    rest: str
    pod_interface: str
    limits_bits_per_s: Mapping[str, float]
    textfile: Path

    @property
    def names(self) -> tuple[str, ...]:
        """All classes, the one of the rest last."""
        return (*self.classes, self.rest)


@dataclass(frozen=True)
class Rule:
    """A rule as iptables-save prints it behind its chain, with what it has counted."""

    text: str
    packets: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Table:
    """The rules of each chain of the table mangle, in their order."""

    chains: Mapping[str, tuple[Rule, ...]] = field(default_factory=dict)

    def texts(self, chain: str) -> tuple[str, ...] | None:
        """The rules of a chain without their counters; None where there is no such chain."""
        rules = self.chains.get(chain)
        return None if rules is None else tuple(rule.text for rule in rules)

    def jumps(self, parent: str) -> int:
        """How often a chain of the kernel's leads to ours."""
        return (self.texts(parent) or ()).count(f"-j {JUMPS[parent]}")


def parse_config(text: str, path: str) -> Config:
    """Read the configuration. Raises TrafficError that names file and key."""
    try:
        data: dict[str, Any] = json.loads(text)
        ranges = {name: said for name, said in data["classes"].items() if said != REST}
        [rest] = (name for name, said in data["classes"].items() if said == REST)
        return Config(
            classes={name: tuple(ipaddress.ip_network(item) for item in said) for name, said in ranges.items()},
            rest=rest,
            pod_interface=str(data["pod_interface"]),
            limits_bits_per_s={name: float(limit) for name, limit in data["limits_bits_per_s"].items()},
            textfile=Path(data["textfile"]),
        )
    except KeyError as error:
        raise TrafficError(f"{path}: {error.args[0]} is missing; apply the role node_traffic again") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise TrafficError(f"{path}: {error}; correct fleet_traffic and apply the role node_traffic") from error


def wanted_chains(config: Config, family: Family) -> dict[str, tuple[str, ...]]:
    """Our chains and their rules. Traffic that does not leave the node is let by uncounted.

    Of a class the chain has one rule without a target, which is its counter.
    """
    interface = config.pod_interface
    before = {
        OWN_IN: ("-i lo -j RETURN", f"-i {interface} -j RETURN"),
        OWN_OUT: ("-o lo -j RETURN", f"-o {interface} -j RETURN"),
    }
    chains: dict[str, tuple[str, ...]] = {
        POD: (
            f"-i {interface} -o {interface} -j RETURN",
            f"-i {interface} -g {POD_OUT.chain}",
            f"-o {interface} -g {POD_IN.chain}",
        )
    }
    for way in WAYS:
        # `goto`: what comes back goes on behind the jump, and meets no second class.
        ranges = tuple(
            f"{way.other_side} {network} -g {way.chain}-{name}"
            for name, networks in config.classes.items()
            for network in networks
            if network.version == family.version
        )
        chains[way.chain] = (*before.get(way, ()), *ranges, f"-g {way.chain}-{config.rest}")
        chains |= {f"{way.chain}-{name}": ("",) for name in config.names}
    return chains


def read_table(text: str) -> Table:
    """The table from `iptables-save --counters --table mangle`; empty where nobody has made one."""
    chains: dict[str, list[Rule]] = {}
    for line in text.splitlines():
        if line.startswith(":"):
            chains[line[1:].partition(" ")[0]] = []
        elif found := _LINE.fullmatch(line):
            rule = Rule(found["rule"] or "", int(found["packets"]), int(found["bytes"]))
            chains[found["chain"]].append(rule)
    return Table({name: tuple(rules) for name, rules in chains.items()})


def changes(wanted: Mapping[str, tuple[str, ...]], table: Table) -> list[str]:
    """What differs, in words. Nothing is wanted where all of ours is to go."""
    found = [f"chain {name}" for name, rules in wanted.items() if table.texts(name) != rules]
    found += [f"jump from {parent} to {ours}" for parent, ours in JUMPS.items() if table.jumps(parent) != bool(wanted)]
    return found + [f"chain {name} goes" for name in _left_over(wanted, table)]


def restore_input(wanted: Mapping[str, tuple[str, ...]], table: Table) -> str:
    """Input of `iptables-restore --noflush` that brings the table to what is wanted in one step.

    It names what differs alone: a chain that stays keeps its rules and their counters.
    """
    stale = [name for name, rules in wanted.items() if table.texts(name) != rules]
    lines = [f"*{TABLE}", *(f":{name} - [0:0]" for name in stale)]
    lines += [f"-A {name} {rule}".rstrip() for name in stale for rule in wanted[name]]
    for parent, ours in JUMPS.items():
        # A second jump would count each packet twice.
        surplus = table.jumps(parent) - bool(wanted)
        # First, so that what others drop behind it has been counted: it came.
        lines += [f"-I {parent} -j {ours}"] if surplus < 0 else [f"-D {parent} -j {ours}"] * surplus
    left_over = _left_over(wanted, table)
    lines += [f"-F {name}" for name in left_over] + [f"-X {name}" for name in left_over]
    return "\n".join([*lines, "COMMIT", ""])


def page(config: Config, tables: Mapping[Family, Table]) -> str:
    """The counters of these families and the limits, in Prometheus' text format (0.0.4)."""
    counted = {
        f'{{class="{name}",direction="{way.direction}",path="{way.path}",family="{family.name}"}}': rule
        for family, table in tables.items()
        for way in WAYS
        for name in config.names
        for rule in table.chains[f"{way.chain}-{name}"]
    }
    limits = {f'{{class="{name}"}}': limit for name, limit in config.limits_bits_per_s.items()}
    return "".join(
        f"# HELP muster_node_traffic_{name} {text}\n# TYPE muster_node_traffic_{name} {kind}\n"
        + "".join(f"muster_node_traffic_{name}{labels} {value}\n" for labels, value in samples.items())
        for name, kind, text, samples in (
            (
                "bytes_total",
                "counter",
                "Bytes of IP packets by the class of the other side, since the chains were made.",
                {labels: rule.bytes for labels, rule in counted.items()},
            ),
            (
                "packets_total",
                "counter",
                "These packets; what the kernel handles as one is one.",
                {labels: rule.packets for labels, rule in counted.items()},
            ),
            (
                "limit_bits_per_second",
                "gauge",
                "Most traffic of a class that the inventory accepts, each direction by itself.",
                limits,
            ),
        )
        if samples
    )


def run(command: Sequence[str], stdin: str = "") -> str:
    """What a command prints. Raises TrafficError when it is missing or fails."""
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise TrafficError(f"{command[0]} is not installed; apply the role node_traffic") from error
    if done.returncode != 0:
        raise TrafficError(f"`{' '.join(command)}` failed: {done.stderr.strip()}")
    return done.stdout


def families() -> tuple[Family, ...]:
    """The versions of IP that this kernel speaks."""
    return tuple(family for family in FAMILIES if family.version == 4 or _IPV6.exists())


def saved(family: Family) -> Table:
    """The table as it is. Raises TrafficError."""
    return read_table(run([f"{family.tool}-save", "--counters", "--table", TABLE]))


def bring(family: Family, wanted: Mapping[str, tuple[str, ...]], check: bool) -> tuple[list[str], Table]:
    """Bring the table to what is wanted; what differed, one line each, and the table as it then is."""
    table = saved(family)
    found = [f"{family.name}: {change}" for change in changes(wanted, table)]
    if found and not check:
        run([f"{family.tool}-restore", "--wait", "--noflush"], restore_input(wanted, table))
        table = saved(family)
    return found, table


def apply(config: Config, check: bool) -> list[str]:
    """Bring the chains to the configuration and write their numbers; what differed, one line each."""
    found: list[str] = []
    tables: dict[Family, Table] = {}
    for family in families():
        differed, tables[family] = bring(family, wanted_chains(config, family), check)
        found += differed
    # Where node_exporter reads them, if it is there.
    if not check and config.textfile.parent.is_dir():
        write_whole(config.textfile, page(config, tables))
    return found


def remove(check: bool) -> list[str]:
    """Take our chains away; what was there, one line each."""
    return [line for family in families() for line in bring(family, {}, check)[0]]


def write_whole(path: Path, text: str) -> None:
    """Write a file whole or not at all, for everybody to read."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
            os.fchmod(file.fileno(), 0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise


@contextmanager
def alone(directory: Path) -> Iterator[None]:
    """One run at a time on this host; a second waits. Two that find the same jump missing would both make it."""
    handle = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; exit code 1 with one sentence on stderr when something cannot be set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("config", type=Path, help="the configuration file (JSON)")
    parser.add_argument("--check", action="store_true", help="only print what would change")
    parser.add_argument("--remove", action="store_true", help="take the chains away")
    options = parser.parse_args(arguments)
    path: Path = options.config
    try:
        with alone(path.parent):
            if options.remove:
                found = remove(options.check)
            else:
                found = apply(parse_config(path.read_text(), str(path)), options.check)
    except TrafficError as error:
        print(f"muster-traffic: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"muster-traffic: {error.filename or path}: {error.strerror}", file=sys.stderr)
        return 1
    for line in found:
        print(line)
    return 0


def _left_over(wanted: Mapping[str, tuple[str, ...]], table: Table) -> list[str]:
    return [name for name in table.chains if _OURS.fullmatch(name) and name not in wanted]


if __name__ == "__main__":
    sys.exit(main())
