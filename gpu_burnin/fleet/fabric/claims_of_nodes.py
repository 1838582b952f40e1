"""Claims of nodes, their links, and leaf switches with all that hangs on them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from gpu_burnin.fabric.claim import OF_RULES, Cause, Claim, Part, gravest, link, tests_of, texts
from gpu_burnin.fabric.model import ALL, Standing, State
from gpu_burnin.fabric.standing import (
    FEW,
    NEARLY_ALL,
    cleared,
    named,
    proven,
    suspect,
    untested,
    whole,
    whole_leaf,
)
from gpu_burnin.system.prose import listed
from gpu_burnin.system.quantities import count

_NEW = Standing()
_MANY_OF_A_LEAF = 0.5


def claims_of_nodes(state: State) -> Iterator[Claim]:
    """Leaves of which nearly all nodes failed, then nodes, then what could not be told apart."""
    hit = hit_nodes(state)
    of_leaves = list(_leaf_claims(state, hit))
    yield from of_leaves
    explained = {name for claim in of_leaves for name in claim.nodes}
    for name, scopes in hit.items():
        if name not in explained:
            yield _node_claim(state, name, scopes)
    yield from _unproven(state)


def hit_nodes(state: State) -> dict[str, tuple[int, ...]]:
    """The nodes that failed with proven partners, and in which scopes."""
    return {name: scopes for name, one in state.nodes.items() if (scopes := named(one, state.settings))}


def undecided_nodes(state: State) -> tuple[str, ...]:
    """Suspects that were neither named nor cleared."""
    return tuple(name for name, one in state.nodes.items() if suspect(one, state.settings))


def cleared_nodes(state: State) -> tuple[str, ...]:
    """Nodes that failed a test, and then passed with proven partners: chance, or a fault that comes and goes."""
    return tuple(name for name, one in state.nodes.items() if one.failures and cleared(one, state.settings))


def doubtful_nodes(state: State, leaves: Iterable[str]) -> tuple[str, ...]:
    """Cleared nodes that failed more often than chance does: a fault that comes and goes may be one of them."""
    known = ((name, state.nodes.get(name, _NEW)) for leaf in leaves for name in state.fabric.leaves[leaf])
    return tuple(
        name
        for name, one in known
        if cleared(one, state.settings) and one.failures + one.earlier + one.probes[ALL][1] > 1
    )


def _leaf_claims(state: State, hit: dict[str, tuple[int, ...]]) -> Iterator[Claim]:
    for leaf, names in state.fabric.leaves.items():
        known = [name for name in names if not untested(state.nodes.get(name, _NEW), state.settings)]
        bad = [name for name in known if name in hit]
        if not leaf or len(bad) < 2:
            continue
        rails = _common([hit[name] for name in bad], _rails_of(state, bad)) if whole_leaf(state, leaf) else None
        # So many of one leaf, and not all: hardly each by itself. What they share comes and goes, or is not all of it.
        some = len(bad) > FEW and len(bad) >= _MANY_OF_A_LEAF * len(known)
        if rails is None and not some:
            continue
        standings = [state.nodes[name] for name in bad]
        found = gravest(standings, (ALL, *(rails or ())))
        causes = [Cause(Part.LEAF, leaf, rails[0] if rails and len(rails) == 1 else None)]
        causes += [Cause(Part.RULE, leaf)] if found in OF_RULES else []
        causes += [Cause(Part.NODE, name) for name in bad] if len(bad) <= FEW or rails is None else []
        evidence = [
            f"{len(bad)} of its {count(len(known), 'node')} failed with proven partners"
            + (f", on rail {listed([str(one) for one in rails])} alone" if rails else ""),
            "" if any(one.passes for one in standings) else "no two of its nodes passed with each other",
            _of_one_place(state, bad),
        ]
        tests = tests_of(standings)
        yield Claim(found, tuple(causes), texts(evidence), tuple(bad), sure=rails is not None, tests=tests)


def _common(scopes: Sequence[tuple[int, ...]], rails: tuple[int, ...]) -> tuple[int, ...] | None:
    """The rails that nearly all have in common, () for the whole of each; None where they differ."""
    if all(whole(one, rails) for one in scopes):
        return ()
    shared = [rail for rail in rails if sum(rail in one for one in scopes) >= NEARLY_ALL * len(scopes)]
    return tuple(shared) or None


def _node_claim(state: State, name: str, scopes: tuple[int, ...]) -> Claim:
    standing, leaf = state.nodes[name], state.fabric.by_name[name].leaf
    rails = _rails_of(state, [name])
    hit = [rail for rail in rails if rail in scopes]
    failed = {rail: standing.probes.get(rail, (0, 0))[1] for rail in rails}
    # One failure is chance where others are named; where none is, it is all that there is.
    doubtful = [rail for rail in rails if failed[rail] > 1] or [rail for rail in rails if failed[rail]]
    links = tuple(cause for rail in doubtful for cause in link(name, rail, standing.loopback.get(rail)))
    if len(rails) > 1 and hit == doubtful and len(hit) == 1:
        others = listed([str(other) for other in rails if other not in hit], 8)
        evidence = (*_probe_words(state, standing, hit[0]), f"its rails {others} passed with them")
        # What comes and goes may have shown on this rail alone by chance.
        links += (Cause(Part.NODE, name),) if standing.probes[hit[0]][0] else ()
        return Claim(gravest([standing], hit), links, evidence, (name,), tests=standing.tests)
    causes: tuple[Cause, ...] = (Cause(Part.NODE, name),)
    if len(rails) == 1:
        # One rail is the whole of it: the link is not told from the node.
        causes += link(name, rails[0], standing.loopback.get(rails[0]))
    elif len(hit) < len(rails):
        causes += links
    if leaf and not _proven_in(state, leaf):
        causes += (Cause(Part.LEAF, leaf),)
    which = f"on rail {listed([str(rail) for rail in hit], 8)}, and not on all" if hit and len(hit) < len(rails) else ""
    together = "seen only with all rails together" if len(rails) > 1 and not hit else ""
    evidence = texts([*_probe_words(state, standing, ALL), which, together])
    return Claim(gravest([standing], scopes), causes, evidence, (name,), tests=standing.tests)


def _probe_words(state: State, standing: Standing, scope: int) -> Iterator[str]:
    passes, failures = standing.probes[scope if scope in standing.probes else ALL]
    partners = tuple(dict.fromkeys(partner for partner in standing.partners if partner))
    yield f"failed {failures} of {passes + failures} tests with proven partners: {listed(partners, 5)}"
    if len(partners) < state.settings.enough:
        yield f"only {count(len(partners), 'proven partner')} could be had"
    if standing.why:
        yield standing.why
    if (loopback := standing.loopback.get(scope)) is not None:
        yield f"its NIC {'passed' if loopback else 'failed'} alone, in loopback"


def _proven_in(state: State, leaf: str) -> bool:
    """Whether a node of a leaf is proven, so that the leaf cannot be the cause."""
    return any(proven(state.nodes.get(name, _NEW), state.settings) for name in state.fabric.leaves[leaf])


def _rails_of(state: State, names: Sequence[str]) -> tuple[int, ...]:
    """The rails that were tested one by one, or the only one."""
    found = {scope for name in names for scope in state.nodes[name].probes if scope != ALL}
    return tuple(sorted(found)) or state.fabric.by_name[names[0]].rails[:1]


def _of_one_place(state: State, names: Sequence[str]) -> str:
    """A rack or feed that has these nodes and no others: it may be what they have in common."""
    for key in ("rack", "feed"):
        place = getattr(state.fabric.by_name[names[0]], key)
        if place and {node.name for node in state.fabric.nodes if getattr(node, key) == place} == set(names):
            return f"they are also all nodes of {key} {place}"
    return ""


def _unproven(state: State) -> Iterator[Claim]:
    """Suspects where nobody is proven: what failed is narrowed to them and what they share."""
    left = undecided_nodes(state)
    if not left or any(proven(one, state.settings) for one in state.nodes.values()):
        return
    leaves = tuple(dict.fromkeys(state.fabric.by_name[name].leaf for name in left))
    standings = [state.nodes[name] for name in left]
    nodes = tuple(Cause(Part.NODE, name) for name in left)
    switches = tuple(Cause(Part.LEAF, leaf) for leaf in leaves if leaf)
    few = len(left) <= FEW
    yield Claim(
        gravest(standings, (ALL,)),
        (*nodes, *switches) if few else (*switches, *nodes),
        (
            f"{count(len(left), 'node')} failed with each other, and no node is proven that could test them",
            "a node stands for its NICs and cables too",
        ),
        left,
        # That so many are bad at once, and none is sound, is less likely than their switch.
        sure=not few and len(leaves) == len(switches) == 1,
        tests=tests_of(standings),
    )
