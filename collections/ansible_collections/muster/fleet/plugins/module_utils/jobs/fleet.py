"""What the fleet has for its teams: GPUs by model, and the levels of its places. Pure functions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ansible_collections.muster.fleet.plugins.module_utils.fleet_module import FleetError
from ansible_collections.muster.fleet.plugins.module_utils.host.places import levels_of

from gpu_burnin.hardware import load_skus

TEAMS, USERS, PLACE, EXPECT = "fleet_teams", "fleet_users", "fleet_place", "gpu_burnin_expect"
# The tree of places, from the top; Kueue puts the nodes themselves below.
TREE = ("leaf", "rack")


@dataclass(frozen=True)
class Mistake:
    """One thing that is wrong in the inventory, what to do, the variable ("" for none), and the hosts it is of."""

    message: str
    fix: str
    variable: str = TEAMS
    hosts: tuple[str, ...] = ()

    def sentence(self) -> str:
        """The mistake for people who see no file and line beside it."""
        where = f"{', '.join(self.hosts)}: " if self.hosts else ""
        return f"{where}{self.message}; {self.fix}"


@dataclass(frozen=True)
class Machine:
    """The GPUs of one node; where it stands is in `levels`, by leaf, rack and feed."""

    gpus: int
    model: str
    levels: Mapping[str, str]


@dataclass(frozen=True)
class Fleet:
    """GPUs by model, the sizes of the nodes that have them, and the levels of the tree of places."""

    gpus: Mapping[str, int]
    sizes: Mapping[str, frozenset[int]]
    levels: tuple[str, ...] = ()

    @property
    def models(self) -> str:
        """The models in words."""
        return ", ".join(self.gpus)


def place_mistakes(places: Mapping[str, Any]) -> list[Mistake]:
    """Places of hosts that cannot be labels of Nodes; hosts with the same mistake are one."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for host, place in places.items():
        if problem := _place(host, place)[1]:
            found[problem].append(host)
    return [Mistake(message, fix, PLACE, tuple(hosts)) for (message, fix), hosts in found.items()]


def read_fleet(expects: Mapping[str, Any], places: Mapping[str, Any]) -> tuple[Fleet, list[Mistake]]:
    """The GPU nodes, by what the burn-in expects of each (`expects`, every GPU node) and where each stands.

    What hosts lack that teams need is a mistake; places that cannot be read are those of `place_mistakes`.
    """
    machines: dict[str, Machine] = {}
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    known = load_skus().skus if expects else {}
    for host, expect in expects.items():
        if problem := _machine_problem(expect, known):
            found[problem].append(host)
        else:
            levels = _place(host, places.get(host) or {})[0]
            machines[host] = Machine(int(expect["gpus"]), str(expect["model"]), levels)
    mistakes = [Mistake(message, fix, EXPECT, tuple(hosts)) for (message, fix), hosts in found.items()]
    gpus: Counter[str] = Counter()
    sizes: dict[str, set[int]] = defaultdict(set)
    for one in machines.values():
        gpus[one.model] += one.gpus
        sizes[one.model].add(one.gpus)
    tree = tuple(level for level in TREE if all(level in one.levels for one in machines.values()))
    fleet = Fleet(dict(gpus), {model: frozenset(counts) for model, counts in sizes.items()}, tree)
    return fleet, [*mistakes, *_tree_mistakes(machines)]


def _machine_problem(expect: Any, known: Collection[str]) -> tuple[str, str] | None:
    said = expect if isinstance(expect, Mapping) else {}
    model, gpus = said.get("model"), said.get("gpus")
    if not model:
        return (
            f"has no {EXPECT}.model, and {TEAMS} needs the model of every GPU node",
            f"give a key of hardware/skus.yaml, such as {EXPECT}: {{model: h100-sxm5-80gb}}",
        )
    if model not in known:
        return f"{EXPECT}.model is {model}, which is no known model", f"choose from {', '.join(known)}"
    if isinstance(gpus, bool) or not isinstance(gpus, int) or gpus < 1:
        return f"has no {EXPECT}.gpus, and {TEAMS} counts the GPUs of every GPU node", "give how many it has"
    if said.get("mig"):
        return f"{EXPECT}.mig is true, and {TEAMS} shares whole GPUs alone", "set it to false, or leave the teams out"
    return None


def _place(host: str, place: object) -> tuple[dict[str, str], tuple[str, str] | None]:
    """A host's levels, and what is wrong with them."""
    try:
        return levels_of(host, place), None
    except FleetError as error:
        message, _, fix = str(error).removeprefix(f"{host}: ").partition("; ")
        return {}, (message, fix)


def _tree_mistakes(machines: Mapping[str, Machine]) -> Iterator[Mistake]:
    for level in TREE:
        without = tuple(host for host, one in machines.items() if level not in one.levels)
        if 0 < len(without) < len(machines):
            yield Mistake(
                f"has no {PLACE}.{level}, which {len(machines) - len(without):,} of the {len(machines):,} GPU nodes "
                "have, and jobs are placed by levels that every GPU node has",
                f"give {level} for every GPU node, or for none",
                "",  # What is wrong stands nowhere: the host's own line is shown.
                without,
            )
    leaves: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for host, one in machines.items():
        if "rack" in one.levels and "leaf" in one.levels:
            leaves[one.levels["rack"]][one.levels["leaf"]].append(host)
    for rack, hosts in leaves.items():
        if len(hosts) > 1:
            yield Mistake(
                f"rack {rack} is on {len(hosts)} leaf switches, {_some(sorted(hosts))}, and in the tree of places a "
                "rack is below one",
                f"correct {PLACE}, or give the racks names of their own",
                PLACE,
                tuple(host for _, members in sorted(hosts.items()) for host in members),
            )


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
