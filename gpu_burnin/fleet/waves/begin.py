"""Which roll a call is for: one that has not ended, or a new one."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet.waves import plan
from gpu_burnin.fleet.waves.book import Book
from gpu_burnin.fleet.waves.frozen import Given
from gpu_burnin.fleet.waves.kinds import Kind
from gpu_burnin.fleet.waves.model import HostResult, Node, Order, Outcome, Part, Roll
from gpu_burnin.system.clock import rfc3339_s

# Nobody has to go over these again.
_OVER = (Outcome.DONE, Outcome.HELD)


def unended(book: Book, order: Order, sha256: str) -> Roll | None:
    """The roll that this order goes on with, None for a new one. Raises GpuBurninError where another one is open."""
    roll = book.roll()
    if roll is None or book.ended:
        return None
    plan.refuse_twice(roll)
    if _asked(roll.order) != _asked(order):
        raise GpuBurninError(
            f"roll {roll.id} has not ended; go on with it: {command(roll.order)}; or leave it and begin anew: --again"
        )
    if roll.sha256 != sha256:
        raise GpuBurninError(
            f"the inventory is not what it was when roll {roll.id} began, and some nodes would get the old one and "
            "some the new one; take the change back and go on, or begin anew over all nodes: --again"
        )
    return roll


def new(
    book: Book,
    order: Order,
    given: Given,
    sha256: str,
    kind: Kind,
    workers: int,
    now: datetime,
    *,
    again: bool = False,
) -> Roll:
    """A new roll: over those nodes that calls for the same work have not got done yet, or over all where they have, or
    `again` says so. Raises GpuBurninError.
    """
    plan.most_failed(order.most_failed)
    over = frozenset[str]() if again else _over(book, order, given, sha256, kind)
    nodes = [node for node in given.nodes if node.name not in over] or list(given.nodes)
    first = _canaries(nodes, order, given)
    return Roll(
        id=rfc3339_s(now),
        started_at=rfc3339_s(now),
        order=order,
        sha256=sha256,
        waves=plan.waves(nodes, first, order.shard_hosts, workers),
        canaries={node.name: node.model for node in first},
        before=len(given.nodes) - len(nodes),
    )


def results(book: Book, roll: Roll, kind: Kind) -> dict[str, HostResult]:
    """What became of each host so far: of its shard, and of the wait for its admission. Raises GpuBurninError."""
    found: dict[str, HostResult] = {}
    for step in itertools.chain.from_iterable(plan.stages(roll, kind)):
        result = book.result(step) if step.part in (Part.NODES, Part.ADMIT) else None
        if result is not None:
            merge(found, result.hosts, admission=step.part is Part.ADMIT)
    return found


def merge(found: dict[str, HostResult], more: Mapping[str, HostResult], *, admission: bool) -> None:
    """Take in a step's results. What kept a node out of its own gate is the better reason of two."""
    for host, result in more.items():
        if not admission or found.get(host, result).outcome is Outcome.DONE:
            found[host] = result


def command(order: Order) -> str:
    """How a roll is called."""
    order = _asked(order)
    words = ["muster", "roll", order.playbook]
    words += [word for source in order.inventory for word in ("-i", source)]
    usual = Order(order.playbook, order.inventory)
    for option, value, default in (
        ("--limit", order.limit, usual.limit),
        ("--canary", order.canary, usual.canary),
        ("--canary-group", order.canary_group, usual.canary_group),
        ("--shard", order.shard_hosts, usual.shard_hosts),
        ("--most-failed", order.most_failed, usual.most_failed),
    ):
        words += [option, str(value)] if value != default else []
    return shlex.join([*words, *(["--", *order.arguments] if order.arguments else [])])


def _canaries(nodes: Sequence[Node], order: Order, given: Given) -> Sequence[Node]:
    """Those of the group that are to be done; of models of which the group has none left the first that are.

    Raises GpuBurninError where the group has not each model of the order.
    """
    if given.canary is None:
        return plan.canaries(nodes, order.canary, None)
    named = plan.canaries(given.nodes, order.canary, frozenset(given.canary)) if given.nodes else ()
    names = {node.name for node in named}
    first = [node for node in nodes if node.name in names]
    tried = {node.model for node in first}
    return (*first, *plan.canaries([node for node in nodes if node.model not in tried], order.canary, None))


def _over(book: Book, order: Order, given: Given, sha256: str, kind: Kind) -> frozenset[str]:
    """The hosts that the rolls before were done with, where this one goes on from them.

    The last one had all that those before it had not got done.
    """
    last = book.roll()
    if last is None or _work(last.order) != _work(order) or last.sha256 != sha256:
        return frozenset()
    done = {host for host, result in results(book, last, kind).items() if result.outcome in _OVER}
    return frozenset(done | ({node.name for node in given.nodes} - set(last.hosts)))


def _asked(order: Order) -> Order:
    """As a call gives it: a group of canaries without a number beside it, which earlier versions took and let be."""
    return replace(order, canary=Order.canary) if order.canary_group else order


def _work(order: Order) -> Order:
    """What is to be done, without how many at a time and when it stops: who stops at 2 % goes on with 5 %."""
    return Order(order.playbook, order.inventory, order.limit, order.arguments)
