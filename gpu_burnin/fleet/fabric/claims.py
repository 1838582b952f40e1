"""What the results name: nodes, links, leaf switches, ways between leaves. Pure.

A claim has a subject, what speaks for it, and what else could be the cause. Nothing is named that failed only with
partners who are not proven themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_burnin.fleet.fabric.model import ALL, Found, Standing, State
from gpu_burnin.fleet.fabric.planner import crossing, failing_paths
from gpu_burnin.fleet.fabric.standing import named, proven, suspect, untested, whole
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count

_NEW = Standing()
# Of a leaf's nodes so many have to fail for the leaf to be the cause, and not each of them.
_MOST_OF_A_LEAF = 0.9
_GRAVITY = list(Found)


class Part(StrEnum):
    """What can be faulty."""

    NODE = "node"
    NIC = "NIC"
    CABLE = "cable"
    PORT = "leaf port"
    LEAF = "leaf switch"
    UPLINK = "uplinks"
    SPINE = "spine"
    PATH = "path"
    RULE = "firewall or route"


@dataclass(frozen=True)
class Cause:
    """One thing that may be faulty. `name` is a node's or a switch's, "a and b" of a path's ends; `rail` None: all."""

    part: Part
    name: str
    rail: int | None = None

    def __str__(self) -> str:
        rail = "" if self.rail is None else f" on rail {self.rail}"
        return f"{self.part} of {self.name}{rail}" if self.part in _OF else f"{self.part} {self.name}{rail}"


_OF = (Part.NIC, Part.CABLE, Part.PORT, Part.UPLINK)


@dataclass(frozen=True)
class Claim:
    """`causes`: the likeliest first; the others remain. `sure`: whether it is one thing, and the rest its parts.

    `nodes` are those that it keeps from work; `tests` the ids of those that failed.
    """

    found: Found
    causes: tuple[Cause, ...]
    evidence: tuple[str, ...]
    nodes: tuple[str, ...]
    sure: bool = True
    tests: tuple[int, ...] = ()

    @property
    def sentence(self) -> str:
        """It in one sentence."""
        first, *others = self.causes
        if not self.sure:
            return f"one of these, not told apart: {listed([str(cause) for cause in self.causes])}: {self.found}"
        return f"{first}: {self.found}" + (f"; or {listed([str(cause) for cause in others])}" if others else "")


def claims(state: State) -> tuple[Claim, ...]:
    """All of them: of nodes and leaves first, then of what is between leaves."""
    settings = state.settings
    hit = {name: scopes for name, one in state.nodes.items() if (scopes := named(one, settings))}
    of_leaves = list(_leaf_claims(state, hit))
    explained = {name for claim in of_leaves for name in claim.nodes}
    return (
        *of_leaves,
        *(
            claim
            for name, scopes in hit.items()
            if name not in explained
            for claim in _node_claims(state, name, scopes)
        ),
        *_unproven(state),
        *_load_claims(state, hit),
        *_crossing_claims(state),
        *_path_claims(state),
    )


def untested_nodes(state: State) -> dict[str, str]:
    """Nodes of which nothing can be told, each with the reason."""
    found = {}
    for name in state.fabric.by_name:
        standing = state.nodes.get(name, _NEW)
        if untested(standing, state.settings):
            found[name] = standing.why or "it had no partner"
    return found


def undecided_nodes(state: State) -> tuple[str, ...]:
    """Suspects that were neither named nor cleared."""
    return tuple(name for name, one in state.nodes.items() if suspect(one, state.settings))


# --- nodes and leaves ---


def _leaf_claims(state: State, hit: dict[str, tuple[int, ...]]) -> Iterator[Claim]:
    for leaf, names in state.fabric.leaves.items():
        known = [name for name in names if not untested(state.nodes.get(name, _NEW), state.settings)]
        bad = [name for name in known if name in hit]
        if len(bad) < 2 or len(bad) < _MOST_OF_A_LEAF * len(known):
            continue
        rails = _common([hit[name] for name in bad], _rails_of(state, bad))
        if rails is None:
            continue
        standings = [state.nodes[name] for name in bad]
        found = _gravest(standings, (ALL, *rails))
        rail = rails[0] if len(rails) == 1 else None
        causes = [Cause(Part.LEAF, leaf, rail)]
        if found in (Found.UNREACHABLE, Found.MTU):
            causes.append(Cause(Part.RULE, leaf))
        if len(bad) <= 3:
            causes += [Cause(Part.NODE, name) for name in bad]
        evidence = [
            f"{len(bad)} of its {count(len(known), 'node')} failed with proven partners outside it"
            + (f", on rail {listed([str(one) for one in rails])} alone" if rails else ""),
            "no two of its nodes passed with each other" if not any(one.passes for one in standings) else "",
            _of_one_place(state, bad),
        ]
        yield Claim(found, tuple(causes), _texts(evidence), tuple(bad), tests=_tests(standings))


def _common(scopes: Sequence[tuple[int, ...]], rails: tuple[int, ...]) -> tuple[int, ...] | None:
    """The rails that nearly all have in common, () for the whole of each; None where they differ."""
    if all(whole(one, rails) for one in scopes):
        return ()
    shared = [rail for rail in rails if sum(rail in one for one in scopes) >= _MOST_OF_A_LEAF * len(scopes)]
    return tuple(shared) or None


def _node_claims(state: State, name: str, scopes: tuple[int, ...]) -> Iterator[Claim]:
    standing, node = state.nodes[name], state.fabric.by_name[name]
    rails = _rails_of(state, [name])
    outside = _alone_in_leaf(state, name)
    if whole(scopes, rails):
        found = _gravest([standing], scopes)
        only_together = len(rails) > 1 and not set(scopes) & set(rails)
        yield Claim(
            found,
            (
                *_whole_node(name, rails, standing),
                *([Cause(Part.LEAF, node.leaf), Cause(Part.UPLINK, node.leaf)] if outside else []),
                *([Cause(Part.RULE, node.leaf)] if outside and found is Found.UNREACHABLE else []),
            ),
            _texts([*_probe_words(state, standing, ALL), "seen only with all rails together" * only_together]),
            (name,),
            tests=standing.tests,
        )
        return
    for rail in (scope for scope in scopes if scope != ALL):
        yield Claim(
            _gravest([standing], (rail,)),
            _link(name, rail, standing),
            _texts(
                [*_probe_words(state, standing, rail), f"its other rails passed with them: {_others(rails, scopes)}"]
            ),
            (name,),
            tests=standing.tests,
        )


def _whole_node(name: str, rails: tuple[int, ...], standing: Standing) -> list[Cause]:
    causes = [Cause(Part.NODE, name)]
    if len(rails) <= 1:
        # One rail is the whole of it: the link is not told from the node.
        causes += _link(name, rails[0] if rails else 0, standing)
    return causes


def _link(name: str, rail: int, standing: Standing) -> tuple[Cause, ...]:
    """NIC, cable and port of the switch, which a test through all three does not tell apart; a loopback does."""
    nic, cable, port = (Cause(part, name, rail) for part in (Part.NIC, Part.CABLE, Part.PORT))
    loopback = standing.loopback.get(rail)
    if loopback is None:
        return (cable, nic, port)
    return (cable, port) if loopback else (nic,)


def _probe_words(state: State, standing: Standing, scope: int) -> Iterator[str]:
    passes, failures = standing.probes[scope]
    partners = tuple(dict.fromkeys(partner for partner in standing.partners if partner))
    yield f"failed {failures} of {passes + failures} tests with proven partners: {listed(partners, 5)}"
    if len(partners) < state.settings.enough:
        yield f"only {count(len(partners), 'proven partner')} could be had"
    if standing.why:
        yield standing.why
    if (loopback := standing.loopback.get(scope)) is not None:
        yield f"its NIC {'passed' if loopback else 'failed'} alone, in loopback"


def _others(rails: Iterable[int], scopes: Sequence[int]) -> str:
    return listed([str(rail) for rail in rails if rail not in scopes], 8)


def _alone_in_leaf(state: State, name: str) -> bool:
    """Whether nothing of its leaf has passed, so that its leaf may be the cause as well."""
    leaf = state.fabric.by_name[name].leaf
    others = (state.nodes.get(other, _NEW) for other in state.fabric.leaves[leaf] if other != name)
    return not any(proven(one, state.settings) for one in others)


def _rails_of(state: State, names: Sequence[str]) -> tuple[int, ...]:
    found = {scope for name in names for scope in state.nodes[name].probes if scope != ALL}
    return tuple(sorted(found)) or state.fabric.by_name[names[0]].rails[:1]


def _gravest(standings: Iterable[Standing], scopes: Iterable[int]) -> Found:
    """What failed most often; the gravest of equals."""
    chosen, counted = set(scopes), dict.fromkeys(Found, 0)
    for standing in standings:
        for (scope, found), times in standing.causes.items():
            counted[found] += times * (scope in chosen)
    return max(counted, key=lambda found: (counted[found], -_GRAVITY.index(found)))


def _of_one_place(state: State, names: Sequence[str]) -> str:
    """A rack or feed that all nodes of a claim share, and no other node has: it may be what they have in common."""
    for key in ("rack", "feed"):
        places = {getattr(state.fabric.by_name[name], key) for name in names}
        (place, *more) = places
        all_there = {node.name for node in state.fabric.nodes if getattr(node, key) == place}
        if place and not more and all_there == set(names):
            return f"they are also all nodes of {key} {place}"
    return ""


def _unproven(state: State) -> Iterator[Claim]:
    """Suspects where nobody is proven: what failed is narrowed, and not named."""
    left = undecided_nodes(state)
    if not left or any(proven(one, state.settings) for one in state.nodes.values()):
        return
    leaves = tuple(dict.fromkeys(state.fabric.by_name[name].leaf for name in left))
    standings = [state.nodes[name] for name in left]
    found = _gravest(standings, (ALL,))
    causes = [Cause(Part.NODE, name) for name in left]
    switches = [Cause(Part.LEAF, leaf) for leaf in leaves if len(state.fabric.leaves[leaf]) > 1]
    causes = [*causes, *switches] if len(left) <= 3 else [*switches, *causes]
    evidence = [f"{count(len(left), 'node')} failed with each other, and no node is proven that could test them"]
    yield Claim(found, tuple(causes), tuple(evidence), left, sure=False, tests=_tests(standings))


# --- leaves under load, and between leaves ---


def _load_claims(state: State, hit: dict[str, tuple[int, ...]]) -> Iterator[Claim]:
    for leaf, standing in state.groups.items():
        scopes = named(standing, state.settings)
        parts = state.parts.get((leaf,), ())
        if not scopes or any(name in hit for members, _ in parts for name in members):
            continue
        rails = [scope for scope in scopes if scope != ALL]
        members = tuple(name for part, _ in parts for name in part) or state.fabric.leaves[leaf]
        halves = "both halves of it passed" if parts and _all_passed(parts) else f"by halves: {_parts_words(parts)}"
        evidence = ["all its nodes failed together, and passed in pairs", halves if parts else ""]
        cause = Cause(Part.LEAF, leaf, rails[0] if len(rails) == 1 else None)
        yield Claim(_gravest([standing], scopes), (cause,), _texts(evidence), members, tests=standing.tests)


def _crossing_claims(state: State) -> Iterator[Claim]:
    settings, spine_of = state.settings, state.fabric.spine_of
    hit = {leaf: scopes for leaf, one in state.leaves.items() if (scopes := named(one, settings))}
    spines: dict[str, list[str]] = {}
    for leaf in crossing(state):
        spines.setdefault(spine_of[leaf], []).append(leaf)
    for spine, leaves in spines.items():
        bad = [leaf for leaf in leaves if leaf in hit]
        standings = [state.leaves[leaf] for leaf in bad]
        if len(bad) > 1 and len(bad) >= _MOST_OF_A_LEAF * len(leaves):
            scopes = hit[bad[0]]
            found = _gravest(standings, scopes)
            causes = [Cause(Part.SPINE, spine or "without a name", _one_rail(scopes))]
            if found in (Found.UNREACHABLE, Found.MTU):
                causes.insert(0, Cause(Part.RULE, spine or "between all leaves"))
            evidence = [f"{len(bad)} of its {len(leaves)} leaves failed with proven leaves, and passed by themselves"]
            yield Claim(found, tuple(causes), tuple(evidence), _nodes_of(state, bad), tests=_tests(standings))
            continue
        for leaf in bad:
            scopes, standing = hit[leaf], state.leaves[leaf]
            found = _gravest([standing], scopes)
            causes = [Cause(Part.UPLINK, leaf, _one_rail(scopes))]
            causes += [Cause(Part.SPINE, spine or "without a name")] if len(leaves) == 1 and len(spines) > 1 else []
            if found in (Found.UNREACHABLE, Found.MTU):
                causes.insert(0, Cause(Part.RULE, leaf))
            partners = tuple(dict.fromkeys(standing.partners))
            evidence = [f"it failed with proven leaves {listed(partners, 5)}, and passed by itself"]
            yield Claim(found, tuple(causes), tuple(evidence), _nodes_of(state, [leaf]), tests=standing.tests)


def _path_claims(state: State) -> Iterator[Claim]:
    settings = state.settings
    bad = [pair for pair in failing_paths(state) if named(state.paths[pair], settings)]
    clean = [leaf for leaf in crossing(state) if proven(state.leaves.get(leaf, _NEW), settings)]
    if bad and not clean:
        yield _everything_between(state, bad)
        return
    for pair in bad:
        standing, parts = state.paths[pair], state.parts.get(pair, ())
        scopes, ends = named(standing, settings), f"{pair[0]} and {pair[1]}"
        found = _gravest([standing], scopes)
        causes = [Cause(Part.PATH, ends, _one_rail(scopes))]
        if found in (Found.UNREACHABLE, Found.MTU):
            causes.insert(0, Cause(Part.RULE, f"between {ends}"))
        evidence = ["the two failed with each other, and each passed with other leaves"]
        if parts:
            congested = _all_passed(parts)
            evidence.append(
                "their halves passed with each other: the way carries a part of the load, and not all"
                if congested
                else f"by halves: {_parts_words(parts)}"
            )
        yield Claim(found, tuple(causes), tuple(evidence), _nodes_of(state, pair), tests=standing.tests)


def _everything_between(state: State, bad: Sequence[tuple[str, str]]) -> Claim:
    """No leaf passed with another one: what is between them is not told apart from the leaves' own ends."""
    leaves = tuple(dict.fromkeys(leaf for pair in bad for leaf in pair))
    standings = [state.paths[pair] for pair in bad]
    found = _gravest(standings, (ALL, *(scope for one in standings for scope in named(one, state.settings))))
    spines = tuple(dict.fromkeys(state.fabric.spine_of[leaf] for leaf in leaves))
    causes = [Cause(Part.SPINE, spine or "without a name") for spine in spines]
    causes += [Cause(Part.UPLINK, leaf) for leaf in leaves]
    if found in (Found.UNREACHABLE, Found.MTU):
        causes.insert(0, Cause(Part.RULE, f"between {' and '.join(leaves) if len(leaves) == 2 else 'all leaves'}"))
    evidence = (f"none of {count(len(leaves), 'leaf', 'leaves')} passed with another, and each passed by itself",)
    nodes = _nodes_of(state, leaves)
    return Claim(found, tuple(causes), evidence, nodes, sure=found is Found.UNREACHABLE, tests=_tests(standings))


def _one_rail(scopes: Sequence[int]) -> int | None:
    rails = [scope for scope in scopes if scope != ALL]
    return rails[0] if len(rails) == 1 else None


def _nodes_of(state: State, leaves: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for leaf in leaves for name in state.fabric.leaves[leaf])


def _all_passed(parts: Sequence[tuple[tuple[str, ...], Found]]) -> bool:
    return all(found is Found.PASS for _, found in parts)


def _parts_words(parts: Sequence[tuple[tuple[str, ...], Found]]) -> str:
    return "; ".join(f"{members[0]} to {members[-1]}: {found}" for members, found in parts)


def _tests(standings: Iterable[Standing]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(test for standing in standings for test in standing.tests))


def _texts(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(line for line in lines if line)
