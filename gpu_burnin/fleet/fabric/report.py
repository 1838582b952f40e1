"""A run as its reader needs it: claims first, then what nothing can be said of, what it cost, and the usual rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.fabric.claim import Claim
from gpu_burnin.fabric.model import End, State
from gpu_burnin.fleet.fabric.claims import claims, cleared_nodes, undecided_nodes, untested_nodes
from gpu_burnin.fleet.fabric.planner import next_round
from gpu_burnin.fleet.fabric.results import Run, state_of
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.prose import STANDARD_WIDTH, listed, wrap
from gpu_burnin.system.quantities import count, rate
from gpu_burnin.types import JSON

SCHEMA = "muster-fabric-report/v1"
_MANY = 8


@dataclass(frozen=True)
class Report:
    """All of it. `pairs_of_leaves` are those that were tested, of `all_pairs`; `why` says why it is not complete.

    `usual` are the medians of tests that no failure has chosen, by what is alike in them, in bytes per second.
    `refused` are the views that were not taken for their member's.
    """

    nodes: int
    rounds: int
    tests: int
    node_minutes: float
    complete: bool
    why: str
    claims: tuple[Claim, ...]
    cleared: tuple[str, ...]
    undecided: tuple[str, ...]
    untested: Mapping[str, str]
    pairs_of_leaves: int
    all_pairs: int
    usual: Mapping[str, float]
    refused: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """1 for a claim, 3 where something is open, 0 where all nodes were tested and nothing failed twice."""
        if self.claims:
            return EXIT_FAIL
        return EXIT_INCONCLUSIVE if self.undecided or self.untested or not self.complete else EXIT_PASS

    def to_json(self) -> dict[str, JSON]:
        """Plain data for programs."""
        document: dict[str, JSON] = {"schema": SCHEMA, **to_json(self)}
        document["claims"] = [{**to_json(claim), "sentence": claim.sentence} for claim in self.claims]
        return document


def report(state: State, left: Mapping[str, str] | None = None, refused: tuple[str, ...] = ()) -> Report:
    """What a run has shown so far. `left` are the nodes that it was not about, and why."""
    following = next_round(state)
    leaves = len([leaf for leaf in state.fabric.leaves if leaf])
    return Report(
        len(state.fabric.nodes),
        state.rounds,
        state.tests,
        state.node_s / 60,
        isinstance(following, End) and not following.why,
        following.why if isinstance(following, End) else f"round {following.number} has not been run",
        claims(state),
        cleared_nodes(state),
        undecided_nodes(state),
        {**(left or {}), **untested_nodes(state)},
        len(state.paths),
        leaves * (leaves - 1) // 2,
        usual_rates(state),
        refused,
    )


def of_run(made: Run) -> Report:
    """What the file of a run has shown so far."""
    return report(state_of(made), made.left, made.refused)


def usual_rates(state: State) -> dict[str, float]:
    """The medians that a later run can be held against."""
    return {key: median(rates) for key, rates in state.references.items() if len(rates) >= state.settings.least_peers}


def render(made: Report, width: int = STANDARD_WIDTH) -> str:
    """Lines of at most `width` characters; the claims last, where a terminal ends."""
    head = (
        f"{count(made.nodes, 'node')}, {count(made.rounds, 'round')} of {count(made.tests, 'test')}, "
        f"{made.node_minutes:,.0f} node-minutes as planned"
    )
    lines = wrap(head, width)
    if not made.complete:
        lines += wrap(f"not complete: {made.why}", width)
    if made.all_pairs:
        lines += wrap(f"{made.pairs_of_leaves:,} of {made.all_pairs:,} pairs of leaves were tested", width)
    lines += [line for key, value in made.usual.items() for line in wrap(f"usual: {key}: {rate(value, 'B/s')}", width)]
    if made.cleared:
        cleared = listed(made.cleared, _MANY)
        lines += wrap(f"failed, then passed with proven partners: {cleared}", width)
    for name, why in made.untested.items():
        lines += wrap(f"{name}: nothing can be told: {why}", width)
    lines += [line for why in made.refused[:_MANY] for line in wrap(f"not taken: {why}", width)]
    if len(made.refused) > _MANY:
        lines.append(f"not taken: {len(made.refused) - _MANY} more, which --json has")
    open_ = [name for name in made.undecided if not any(name in claim.nodes for claim in made.claims)]
    if open_:
        lines += wrap(f"failed, and could not be decided: {listed(open_, _MANY)}", width)
    if not made.claims:
        return "\n".join([*lines, "nothing is named"]) + "\n"
    lines += ["", f"{count(len(made.claims), 'claim')}:"]
    for claim in made.claims:
        lines += wrap(claim.sentence, width, "- ", "  ")
        lines += [line for text in claim.evidence for line in wrap(text, width, "    ", "    ")]
    return "\n".join(lines) + "\n"
