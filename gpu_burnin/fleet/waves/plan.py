"""Which nodes are in which wave and shard, and the steps of a roll in their order. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.roll.batches import batches
from gpu_burnin.fleet.waves.kinds import Kind
from gpu_burnin.fleet.waves.model import HostResult, Node, Outcome, Part, Roll, Step
from gpu_burnin.system.prose import listed

_COUNT = re.compile(r"\d+", re.ASCII)
# A process of Ansible costs as much as the work on a few nodes.
_FEW = 8
_SHARE = re.compile(r"(\d+(?:\.\d+)?)%", re.ASCII)


def canaries(nodes: Sequence[Node], count: int, group: Collection[str] | None) -> tuple[Node, ...]:
    """The first `count` nodes of each GPU model, or all of a group. Raises GpuBurninError where it has not each model.

    `group` has the names of the group's hosts, None where none was named.
    """
    models = list(dict.fromkeys(node.model for node in nodes))
    if group is None:
        first = (itertools.islice((node for node in nodes if node.model == model), count) for model in models)
        return tuple(itertools.chain.from_iterable(first))
    chosen = tuple(node for node in nodes if node.name in group)
    if not chosen:
        raise GpuBurninError("the canary group has none of the nodes of this roll; name another one, or leave it out")
    if lacking := [model or "no GPU model" for model in models if model not in {node.model for node in chosen}]:
        raise GpuBurninError(
            f"the canary group has no node with {listed(lacking)}, of which the roll has nodes; add one to it"
        )
    return chosen


def waves(
    nodes: Sequence[Node], first: Sequence[Node], shard_hosts: int, workers: int
) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Shards of at most `shard_hosts` by wave: the canaries, then twice as many nodes each time.

    A wave has no more shards than two for each of `workers`, so that what fails is seen while others wait. The nodes of
    a wave are dealt evenly to its shards.
    """
    if not nodes:
        raise GpuBurninError("no node of the inventory is in this roll; correct --limit")
    names = [node.name for node in first]
    chosen = set(names)
    rest = [node.name for node in nodes if node.name not in chosen]
    sizes = batches(0, len(rest), shard_hosts * workers * 2, len(names) * 2)
    found = [_dealt(names, shard_hosts, workers)]
    start = 0
    for size in sizes:
        found.append(_dealt(rest[start : start + size], shard_hosts, workers))
        start += size
    return tuple(found)


def stages(roll: Roll, kind: Kind) -> list[list[Step]]:
    """The steps: those of one stage may run beside each other, and each stage waits for the one before."""
    found = [[Step("control", Part.CONTROL, 0, ())]] if Part.CONTROL in kind.parts else []
    numbers = itertools.count(1)
    for number, wave in enumerate(roll.waves, 1):
        everyone = tuple(itertools.chain.from_iterable(wave))
        if Part.CONTACT in kind.parts:
            found.append([Step(f"wave-{number:02}-contact", Part.CONTACT, number, everyone)])
        found.append([Step(f"shard-{next(numbers):04}", Part.NODES, number, shard) for shard in wave])
        if Part.ADMIT in kind.parts:
            found.append([Step(f"wave-{number:02}-admit", Part.ADMIT, number, everyone)])
    return found


def refuse_twice(roll: Roll) -> None:
    """Raises GpuBurninError for a book in which a host is in two shards: nobody knows what became of it."""
    seen: set[str] = set()
    for host in roll.hosts:
        if host in seen:
            raise GpuBurninError(f"{host} is in two shards of roll {roll.id}: its book was changed; begin with --again")
        seen.add(host)


def most_failed(text: str) -> tuple[int | None, Fraction | None]:
    """The limit of an option: a count of nodes, or a share of those tried. Raises GpuBurninError."""
    if _COUNT.fullmatch(text) and int(text) >= 1:
        return int(text), None
    share = _SHARE.fullmatch(text)
    if share and 0 < Fraction(share[1]) <= 100:
        # 29 % of 100 nodes are 29 of them, and a little less as a float.
        return None, Fraction(share[1]) / 100
    raise GpuBurninError(f"--most-failed is {text!r}; give a count of 1 or more (5), or a share above 0% (2%, 100%)")


def stop(failed: Sequence[str], tried: int, limit: str) -> str:
    """Why no further shard begins, "" where one may. A share is reached by more than it, a count by as many."""
    count, share = most_failed(limit)
    if not failed or (count is not None and len(failed) < count):
        return ""
    if share is not None and len(failed) <= share * tried:
        return ""
    return (
        f"{len(failed)} of the {tried} nodes tried failed ({listed(failed)}), and --most-failed is {limit}: no further "
        "shard begins"
    )


def held_canaries(roll: Roll, results: Mapping[str, HostResult]) -> str:
    """Why the nodes of a model are not gone on with: none of its canaries may take work. "" where one may of each.

    Those that were left behind say nothing of their model. One without a result may still take work.
    """
    for model in dict.fromkeys(roll.canaries.values()):
        found = {host: results.get(host) for host, its in roll.canaries.items() if its == model}
        tried = {host: one for host, one in found.items() if one and one.outcome is not Outcome.LEFT}
        outcomes = {one.outcome for one in tried.values()}
        if outcomes and outcomes <= {Outcome.HELD, Outcome.FAILED} and None not in found.values():
            then = "has those that failed again" if Outcome.FAILED in outcomes else "goes on with other canaries"
            why = f"{listed(list(tried))}: {next(iter(tried.values())).why}"
            return (
                f"no canary of {model or 'nodes without a model'} may take work ({why}): look whether it is they, or "
                f"what the inventory asks of all; the same call {then}"
            )
    return ""


def _dealt(names: Sequence[str], shard_hosts: int, workers: int) -> tuple[tuple[str, ...], ...]:
    """Evenly, and to as many workers as there are where each still has a few of them."""
    least = -(-len(names) // shard_hosts)
    count = max(least, min(workers, len(names) // _FEW))
    return tuple(_chunks(names, max(1, count)))


def _chunks(names: Sequence[str], count: int) -> Iterator[tuple[str, ...]]:
    size, more = divmod(len(names), count)
    start = 0
    for number in range(count):
        end = start + size + (number < more)
        yield tuple(names[start:end])
        start = end
