"""What the results name. Pure.

Nothing is named that failed only with partners who are not proven themselves.
"""

from __future__ import annotations

from gpu_burnin.fabric.claim import Claim
from gpu_burnin.fabric.model import Standing, State, Through
from gpu_burnin.fabric.standing import untested
from gpu_burnin.fleet.fabric.claims_of_nodes import claims_of_nodes, cleared_nodes, hit_nodes, undecided_nodes
from gpu_burnin.fleet.fabric.claims_of_ways import claims_of_ways

__all__ = ("claims", "cleared_nodes", "undecided_nodes", "untested_nodes")
_NEW = Standing()


def claims(state: State) -> tuple[Claim, ...]:
    """All of them: of nodes and leaves first, then of what is between leaves."""
    return (*claims_of_nodes(state), *claims_of_ways(state, hit_nodes(state)))


def untested_nodes(state: State) -> dict[str, str]:
    """Nodes of which nothing can be told, each with the reason."""
    found = {}
    for leaf, names in state.fabric.leaves.items():
        alone = len(names) == 1
        for name in names:
            standing = (state.leaves.get(leaf) if alone else state.nodes.get(name)) or _NEW
            if untested(standing, state.settings) and not (alone and standing.passes):
                found[name] = standing.why or _why_not(state, alone=alone)
    return found


def _why_not(state: State, *, alone: bool) -> str:
    if len(state.fabric.nodes) == 1:
        return "there is no other node"
    if alone and state.settings.through is not Through.SPINES:
        return "it is alone in its leaf, and is tested with other leaves"
    if not state.nodes:
        return "no test has been run yet"
    return "it had no partner"
