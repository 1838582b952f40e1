"""Claims of leaf switches under load, uplinks, spines and paths between leaves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from gpu_burnin.fabric.claim import (
    OF_RULES,
    Cause,
    Claim,
    Part,
    gravest,
    link,
    one_rail,
    tests_of,
    texts,
)
from gpu_burnin.fabric.model import ALL, Found, Standing, State
from gpu_burnin.fabric.standing import NEARLY_ALL, named, proven
from gpu_burnin.fleet.fabric.claims_of_nodes import doubtful_nodes
from gpu_burnin.fleet.fabric.planner import crossing, failing_paths
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count

_NEW = Standing()
_NAMELESS = "without a name"
_Parts = Sequence[tuple[tuple[str, ...], Found]]


def claims_of_ways(state: State, hit: Iterable[str]) -> Iterator[Claim]:
    """Leaves by themselves, then what is between them. `hit` are nodes that are named, and explain what they are in."""
    yield from _load_claims(state, set(hit))
    yield from _crossing_claims(state)
    yield from _path_claims(state)


def _load_claims(state: State, hit: set[str]) -> Iterator[Claim]:
    for leaf, standing in state.groups.items():
        scopes, parts = named(standing, state.settings), state.parts.get((leaf,), ())
        if not scopes or any(name in hit for members, _ in parts for name in members):
            continue
        evidence = ["all its nodes failed together, and passed in pairs"]
        if parts:
            halves = "both halves of it passed: it carries a part of the load, and not all"
            evidence.append(halves if _all_passed(parts) else f"by halves: {_parts_words(parts)}")
        failed = [members for members, found in parts if found is not Found.PASS]
        members = tuple(name for part, _ in parts for name in part) or state.fabric.leaves[leaf]
        causes: tuple[Cause, ...] = (Cause(Part.LEAF, leaf, one_rail(scopes)),)
        found = gravest([standing], scopes)
        if len(failed) == 1:
            # It may be one of that half, which passed when it was tested alone.
            causes += tuple(Cause(Part.NODE, name) for name in failed[0])
            yield Claim(found, causes, tuple(evidence), members, sure=False, tests=standing.tests)
            continue
        yield _or_nodes(state, (leaf,), standing, Claim(found, causes, tuple(evidence), members, tests=standing.tests))


def _or_nodes(state: State, leaves: Sequence[str], standing: Standing, claim: Claim) -> Claim:
    """The claim, with nodes that may be the cause as well, where it failed and passed too."""
    # Of all rails together, where that is what failed: of many rails, one passes by chance soon enough.
    hit = {scope: standing.probes[scope][0] for scope in named(standing, state.settings)}
    passes = hit.get(ALL, min(hit.values()))
    nodes = doubtful_nodes(state, leaves)
    words = f"it passed as well, and {listed(nodes)} failed before and passed then"
    if not nodes and passes > 1:
        nodes = _nodes_of(state, leaves)
        words = "it passed nearly as often as it failed: what comes and goes may be in any of its nodes"
    if not nodes or not passes:
        return claim
    causes = (*claim.causes, *(Cause(Part.NODE, name) for name in nodes))
    evidence = (*claim.evidence, words)
    return replace(claim, causes=causes, evidence=evidence, sure=False)


def _crossing_claims(state: State) -> Iterator[Claim]:
    hit = {leaf: scopes for leaf, one in state.leaves.items() if (scopes := named(one, state.settings))}
    spines: dict[str, list[str]] = {}
    for leaf in crossing(state):
        spines.setdefault(state.fabric.spine_of[leaf], []).append(leaf)
    for spine, leaves in spines.items():
        bad = [leaf for leaf in leaves if leaf in hit]
        if len(bad) > 1 and len(bad) >= NEARLY_ALL * len(leaves):
            yield _spine_claim(state, spine, bad, len(leaves), hit[bad[0]])
        else:
            # A spine of one leaf is not told from its uplinks.
            alone = len(leaves) == 1 and len(spines) > 1
            yield from (_leaf_end_claim(state, leaf, hit[leaf], alone=alone) for leaf in bad)


def _spine_claim(state: State, spine: str, bad: Sequence[str], leaves: int, scopes: Sequence[int]) -> Claim:
    standings = [state.leaves[leaf] for leaf in bad]
    found = gravest(standings, scopes)
    causes = [Cause(Part.SPINE, spine or _NAMELESS, one_rail(scopes))]
    causes += [Cause(Part.RULE, spine or _NAMELESS)] if found in OF_RULES else []
    evidence = [f"{len(bad)} of its {leaves} leaves failed with proven leaves, and passed by themselves"]
    return Claim(found, tuple(causes), tuple(evidence), _nodes_of(state, bad), tests=tests_of(standings))


def _leaf_end_claim(state: State, leaf: str, scopes: Sequence[int], *, alone: bool) -> Claim:
    standing, names = state.leaves[leaf], state.fabric.leaves[leaf]
    found = gravest([standing], scopes)
    causes = list(_ends(state, leaf, one_rail(scopes)))
    causes += [Cause(Part.SPINE, state.fabric.spine_of[leaf] or _NAMELESS)] if alone else []
    causes += [Cause(Part.RULE, leaf)] if found in OF_RULES else []
    partners = tuple(dict.fromkeys(standing.partners))
    passes, failures = max(standing.probes.values(), key=lambda both: both[1])
    evidence = [
        f"it failed {failures} of {passes + failures} tests with proven leaves: {listed(partners, 5)}",
        f"{names[0]} is its only node" if len(names) == 1 else "it passed by itself",
    ]
    made = Claim(found, tuple(causes), texts([*evidence, standing.why]), names, tests=standing.tests)
    return _or_nodes(state, (leaf,), standing, made)


def _ends(state: State, leaf: str, rail: int | None) -> Iterator[Cause]:
    """What of a leaf others are reached through: its uplinks; of a leaf of one node, all that the node hangs on."""
    names = state.fabric.leaves[leaf]
    if len(names) == 1:
        rails = state.fabric.by_name[names[0]].rails
        only = rails[0] if len(rails) == 1 else rail
        yield from (Cause(Part.NODE, names[0]),) if rail is None else ()
        yield from link(names[0], only, None) if only is not None else ()
        yield Cause(Part.LEAF, leaf, rail)
    yield Cause(Part.UPLINK, leaf, rail)


def _path_claims(state: State) -> Iterator[Claim]:
    bad = [pair for pair in failing_paths(state) if named(state.paths[pair], state.settings)]
    clean = any(proven(state.leaves.get(leaf, _NEW), state.settings) for leaf in crossing(state))
    if bad and not clean:
        yield _everything_between(state, bad)
        return
    for pair in bad:
        standing, parts = state.paths[pair], state.parts.get(pair, ())
        scopes, ends = named(standing, state.settings), " and ".join(pair)
        found = gravest([standing], scopes)
        causes = [Cause(Part.PATH, ends, one_rail(scopes))]
        if found in OF_RULES:
            causes.insert(0, Cause(Part.RULE, f"between {ends}"))
        evidence = ["the two failed with each other, and each passed with other leaves"]
        if parts:
            halves = "their halves passed with each other: the path carries a part of the load, and not all"
            evidence.append(halves if _all_passed(parts) else f"by halves: {_parts_words(parts)}")
        made = Claim(found, tuple(causes), tuple(evidence), _nodes_of(state, pair), tests=standing.tests)
        yield _or_nodes(state, pair, standing, made)


def _everything_between(state: State, bad: Sequence[tuple[str, str]]) -> Claim:
    """No leaf passed with another one: what is between them is not told apart from the leaves' own ends."""
    leaves = tuple(dict.fromkeys(leaf for pair in bad for leaf in pair))
    standings = [state.paths[pair] for pair in bad]
    scopes = sorted({ALL, *(scope for one in standings for scope in named(one, state.settings))})
    found = gravest(standings, scopes)
    spines = tuple(dict.fromkeys(state.fabric.spine_of[leaf] for leaf in leaves))
    causes = [Cause(Part.SPINE, spine or _NAMELESS) for spine in spines]
    causes += [cause for leaf in leaves for cause in _ends(state, leaf, None)]
    if found in OF_RULES:
        causes.insert(0, Cause(Part.RULE, f"between {' and '.join(leaves) if len(leaves) == 2 else 'all leaves'}"))
    whole = any(len(state.fabric.leaves[leaf]) > 1 for leaf in leaves)
    evidence = [
        f"none of {count(len(leaves), 'leaf', 'leaves')} passed with another",
        "those of several nodes passed by themselves" if whole else "",
    ]
    return Claim(found, tuple(causes), texts(evidence), _nodes_of(state, leaves), sure=False, tests=tests_of(standings))


def _nodes_of(state: State, leaves: Iterable[str]) -> tuple[str, ...]:
    return tuple(name for leaf in leaves for name in state.fabric.leaves[leaf])


def _all_passed(parts: _Parts) -> bool:
    return all(found is Found.PASS for _, found in parts)


def _parts_words(parts: _Parts) -> str:
    return "; ".join(f"{members[0]} to {members[-1]}: {found}" for members, found in parts)
