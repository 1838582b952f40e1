"""The inventory's rules for the classes of traffic (`fleet_traffic`) and their limits. Pure functions."""

from __future__ import annotations

import ipaddress
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.preflight.inventory_data import Inventory, Network
from ansible_collections.muster.fleet.plugins.module_utils.preflight.problems import Problem

TRAFFIC, LIMITS = "fleet_traffic", "fleet_traffic_limits"
REST = "rest"
# The value of a label, and the end of the name of an iptables chain: 28 characters, of which MUSTER-POD-OUT- takes 15.
NAME = re.compile(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?")
_EXAMPLE = "such as {cluster: [10.20.0.0/16], internet: rest}"


def traffic(inventory: Inventory) -> Iterator[Problem]:
    """Classes of traffic that no packet can be told by, and limits of classes that are none."""
    classes = inventory.fleet.get(TRAFFIC)
    if classes is None:
        return  # It cannot be resolved, which is told where variables are checked.
    if not isinstance(classes, Mapping):
        yield _problem(f"{TRAFFIC} is {classes!r}, not a dictionary of classes", f"write one, {_EXAMPLE}")
        return
    if classes:
        yield from _classes(classes)
    yield from _limits(inventory.fleet.get(LIMITS) or {}, classes)


def _classes(classes: Mapping[Any, Any]) -> Iterable[Problem]:
    for name in classes:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            yield _problem(
                f"{TRAFFIC} has a class {name!r}, which cannot be a label and the end of a chain's name",
                "use at most 12 lower-case letters, digits and -, with a letter first and no - last",
            )
    rest = [str(name) for name, said in classes.items() if said == REST]
    if len(rest) != 1:
        had = (
            f"the classes {' and '.join(rest)} for all other addresses" if rest else "no class for all other addresses"
        )
        yield _problem(f"{TRAFFIC} has {had}", f"give exactly one class the word {REST}, {_EXAMPLE}")
    found: list[tuple[str, Network]] = []
    for name, said in classes.items():
        if said == REST:
            continue
        if not isinstance(said, list) or not said:
            yield _problem(
                f"{TRAFFIC}.{name} is {said!r}, neither ranges of addresses nor {REST}", f"give it a list, {_EXAMPLE}"
            )
            continue
        for value in said:
            try:
                found.append((str(name), _network(value)))
            except ValueError as error:
                message, _, fix = str(error).partition("; ")
                yield _problem(f"{TRAFFIC}.{name}: {message}", fix)
    yield from _overlaps(found)


def _network(value: object) -> Network:
    """A range of a class. Raises ValueError: what is wrong; what to do."""
    if not isinstance(value, str) or "/" not in value:
        raise ValueError(f"{value!r} is no range of addresses; write it with its prefix, like 10.20.0.0/16 or fd00::/8")
    try:
        network = ipaddress.ip_network(value, strict=False)
    except ValueError:
        raise ValueError(
            f"{value!r} is a range of neither IPv4 nor IPv6; write one like 10.20.0.0/16 or fd00::/8"
        ) from None
    if ipaddress.ip_interface(value).ip != network.network_address:
        raise ValueError(f"{value} has bits behind its prefix; write {network}, or the prefix that was meant")
    if network.prefixlen == 0:
        raise ValueError(f"{value} is every address; give the class the word {REST} instead")
    return network


def _overlaps(found: Iterable[tuple[str, Network]]) -> Iterable[Problem]:
    for (one, first), (other, second) in itertools.combinations(found, 2):
        if first.version == second.version and first.overlaps(second):
            yield _problem(
                f"{TRAFFIC}: {first} of {one} and {second} of {other} share addresses",
                "a packet has one class: divide the larger range, or take one of them away",
            )


def _limits(limits: object, classes: Mapping[Any, Any]) -> Iterable[Problem]:
    if not isinstance(limits, Mapping):
        yield Problem(
            f"{LIMITS} is {limits!r}, not a dictionary of bits per second by class",
            "write one, such as {internet: 10e9}",
            variable=LIMITS,
        )
        return
    for name, limit in limits.items():
        if name not in classes:
            known = f"it has {', '.join(map(str, classes))}" if classes else "it is empty"
            yield Problem(
                f"{LIMITS} has {name!r}, which is no class of {TRAFFIC}",
                f"{known}: correct the name, or take the limit away",
                variable=LIMITS,
            )
        if not _is_rate(limit):
            yield Problem(
                f"{LIMITS}.{name} is {limit!r}, no number of bits per second above 0",
                "write one, such as 10000000000 or 10.0e+9",
                variable=LIMITS,
            )


def _is_rate(limit: object) -> bool:
    """Also a number in words: YAML takes 10e9, without a point and a sign, for a string."""
    if isinstance(limit, bool) or not isinstance(limit, int | float | str):
        return False
    try:
        rate = float(limit)
    except ValueError:
        return False
    return math.isfinite(rate) and rate > 0


def _problem(message: str, fix: str) -> Problem:
    return Problem(message, fix, variable=TRAFFIC)
