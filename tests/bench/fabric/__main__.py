"""What the tests between nodes find, against faults that are known: `python -m tests.bench.fabric`.

- plan: how long the forecast and the first round of 7,500 nodes take.
- constant: faults that always show, one at a time in fleets of 2 to 511 nodes.
- large: 1 % of 7,500 nodes at once, and faults of switches.
- clean: 1,000 fleets without a fault; whatever is named there is a false name.
- flaky: faults that show in a share of their tests, with more pairings.
- power-cut: 7,500 nodes that come back at once, and are let in after a pass with another one.

Every test has noise: of sound ones 0.2 % fail, and of those through a fault 2 % pass; rates differ by 2 %. Node-minutes
are by the times that the settings assume; of flaky faults, they and the tests are those of each node. `--runs` scales
all but the plan; at 1 it takes some minutes. power-cut has no noise.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Iterable, Sequence

from gpu_burnin.fabric.claim import Part
from gpu_burnin.fabric.model import Fabric, Settings, State, Through
from gpu_burnin.fleet.fabric.cost import forecast
from gpu_burnin.fleet.fabric.planner import next_round
from tests.bench.fabric import power_cut as power_cuts
from tests.bench.fabric.draw import OF_A_LEAF, OF_A_NODE, fault, many
from tests.bench.fabric.simulate import Outcomes, simulate, site, usual_rates

LARGE = 7500
# Nodes, nodes of a leaf, rails, leaves of a spine.
SMALL = ((2, 32, 2, 8), (3, 32, 2, 8), (5, 4, 2, 8), (17, 8, 1, 2), (41, 1, 1, 8), (127, 16, 8, 4), (511, 32, 8, 4))
_RUNS_OF_ONE = 60
_HEAD = """| nodes | fault | planted | named | first | narrowed | missed | false | rounds | node tests | node-min |
|---|---|---|---|---|---|---|---|---|---|---|"""
# How often each size is run clean.
CLEAN = {2: 150, 3: 150, 5: 150, 17: 150, 41: 150, 127: 150, 511: 80, LARGE: 20}


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("phases", nargs="*", default=["plan", "constant", "large", "clean", "flaky", "power-cut"])
    parser.add_argument("--runs", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    phases: dict[str, Callable[[float, int], None]] = {
        "plan": plan,
        "constant": constant,
        "large": large,
        "clean": clean,
        "flaky": flaky,
        "power-cut": power_cut,
    }
    for name in arguments.phases:
        began_s = time.process_time()
        phases[name](arguments.runs, arguments.seed)
        print(f"({name}: {time.process_time() - began_s:.0f} s of processor)\n", flush=True)


def plan(_: float, __: int) -> None:
    """The time that a plan takes, and what it says."""
    began_s = time.process_time()
    fabric = site(LARGE)
    cost = forecast(fabric, Settings())
    made = next_round(State(fabric))
    took_s = time.process_time() - began_s
    print(
        f"plan of {LARGE:,} nodes: {took_s:.2f} s of processor, {cost.rounds} rounds, {cost.node_s / 60:,.0f} node-min"
    )
    print(f"first round: {len(getattr(made, 'tests', ()))} tests")


def constant(runs: float, seed: int) -> None:
    """Faults that always show."""
    print(_HEAD)
    for size, leaf, rails, of_spine in SMALL:
        fabric = site(size, leaf=leaf, rails=rails, leaves_of_spine=of_spine, odd=size % 2 == 1)
        for part in (*OF_A_NODE, *OF_A_LEAF):
            if part in (Part.UPLINK, Part.SPINE, Part.RULE) and len(fabric.leaves) < 2:
                continue
            settings = Settings(usual=usual_rates(rails), every_pair_of_leaves=part is Part.RULE)
            made = [_one(fabric, part, settings, f"{seed} {size} {part} {n}") for n in range(int(_RUNS_OF_ONE * runs))]
            print(_row(f"{size:,}", part, made), flush=True)


def large(runs: float, seed: int) -> None:
    """Faults that always show, many at once."""
    print(_HEAD)
    fabric = site(LARGE)
    for what, parts, count, through in (
        ("node, NIC or cable, --through nodes", OF_A_NODE, LARGE // 100, Through.NODES),
        ("node, NIC or cable", OF_A_NODE, LARGE // 100, Through.SPINES),
        ("leaf, uplinks or spine", OF_A_LEAF[:3], 3, Through.SPINES),
    ):
        settings = Settings(usual=usual_rates(8), through=through)
        made = []
        for number in range(max(1, int(20 * runs))):
            rng = random.Random(f"{seed} {what} {number}")
            made.append(simulate(fabric, list(many(rng, fabric, parts, count)), rng.getrandbits(32), settings))
        print(_row(f"{LARGE:,}", f"{count} at once: {what}", made), flush=True)


def clean(runs: float, seed: int) -> None:
    """Fleets without a fault."""
    print("| nodes | runs | false names | left open | rounds | node-min of a run |")
    print("|---|---|---|---|---|---|")
    shapes = {size: (leaf, rails, of_spine) for size, leaf, rails, of_spine in SMALL}
    for size, times in CLEAN.items():
        leaf, rails, of_spine = shapes.get(size, (32, 8, 8))
        fabric = site(size, leaf=leaf, rails=rails, leaves_of_spine=of_spine, odd=size % 2 == 1)
        made = [
            simulate(fabric, (), random.Random(f"{seed} clean {size} {number}").getrandbits(32))
            for number in range(max(1, int(times * runs)))
        ]
        false, left = sum(len(one.false) for one in made), sum(one.left for one in made)
        rounds = _mean(one.rounds for one in made)
        minutes = _mean(one.node_minutes for one in made)
        print(f"| {size:,} | {len(made):,} | {false} | {left} | {rounds:.1f} | {minutes:,.0f} |", flush=True)


def flaky(runs: float, seed: int) -> None:
    """Faults that come and go, against how many pairings there are."""
    print("| shows | pairings | through | planted | named | narrowed | cleared | missed | false | tests | node-min |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    fabric = site(512, rails=8)
    for share in (1.0, 0.7, 0.5, 0.3, 0.1):
        for pairings, through in (*((count, Through.NODES) for count in (2, 4, 8, 16)), (2, Through.SPINES)):
            settings = Settings(through=through, pairings=pairings)
            made = []
            for number in range(max(1, int(10 * runs))):
                rng = random.Random(f"{seed} flaky {share} {pairings} {number}")
                planted = list(many(rng, fabric, OF_A_NODE, 5, share))
                made.append(simulate(fabric, planted, rng.getrandbits(32), settings))
            total = sum(one.faults for one in made)
            named, narrowed, doubtful = (
                sum(getattr(one, name) for one in made) / total for name in ("named", "narrowed", "doubtful")
            )
            tests = _mean(one.node_tests for one in made) / len(fabric.nodes)
            minutes = _mean(one.node_minutes for one in made) / len(fabric.nodes)
            print(
                f"| {share:.0%} | {pairings} | {through} | {total} | {named:.0%} | {narrowed:.0%} | {doubtful:.0%} | "
                f"{abs(1 - named - narrowed - doubtful):.0%} | {sum(len(one.false) for one in made)} | {tests:.1f} | "
                f"{minutes:.1f} |",
                flush=True,
            )


def power_cut(runs: float, seed: int) -> None:
    """Nodes that all wait for a test with another one."""
    print(power_cuts.HEAD)
    print(power_cuts.row(int(LARGE * min(runs, 1.0)), seed), flush=True)


def _one(fabric: Fabric, part: Part, settings: Settings, key: str) -> Outcomes:
    rng = random.Random(key)
    return simulate(fabric, [fault(rng, fabric, part)], rng.getrandbits(32), settings)


def _row(nodes: str, what: str, made: Sequence[Outcomes]) -> str:
    total = sum(one.faults for one in made)
    cells = [sum(getattr(one, name) for one in made) for name in ("named", "first", "narrowed", "missed")]
    false = sum(len(one.false) for one in made)
    costs = [_mean(getattr(one, name) for one in made) for name in ("rounds", "node_tests", "node_minutes")]
    words = [f"{cell:,}" for cell in (total, *cells, false)] + [f"{cost:,.0f}" for cost in costs]
    return f"| {nodes} | {what} | {' | '.join(words)} |"


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return sum(known) / len(known)


if __name__ == "__main__":
    main()
