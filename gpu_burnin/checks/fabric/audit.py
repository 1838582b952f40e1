"""Where a wrong result came from. Pure.

A ring mixes what all have sent, so a wrong result says little by itself. But every member keeps what came to it at each
step, and each of these has one right value: the sum of known parts, or a known block. The first place on a chunk's way
at which it is wrong names who gave it: everybody before has shown it right.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Facts:
    """Chunks with wrong elements at one member: in the partial sums that came to it, and in its result."""

    partial: tuple[int, ...] = ()
    result: tuple[int, ...] = ()


@dataclass(frozen=True)
class Culprit:
    """Whose data was wrong, and who was the first to get it; the same one where its own memory or sum is wrong."""

    giver: int
    taker: int


def culprits(collective: str, ranks: int, facts: Sequence[Facts]) -> Iterator[tuple[int, Culprit]]:
    """Each chunk that is wrong anywhere, and where it first was. `facts` are those of each rank."""
    if collective == "all_to_all":
        for taker, own in enumerate(facts):
            yield from ((chunk, Culprit(chunk, taker)) for chunk in own.result)
        return
    for chunk in range(ranks):
        way = _way_of_sum(chunk, ranks) if collective == "all_reduce" else _way_of_block(chunk, ranks)
        culprit = _first(chunk, way, facts)
        if culprit is not None:
            yield chunk, culprit


def _first(chunk: int, way: Iterator[tuple[bool, Culprit]], facts: Sequence[Facts]) -> Culprit | None:
    for is_partial, hop in way:
        wrong = facts[hop.taker]
        if chunk in (wrong.partial if is_partial else wrong.result):
            return hop
    return None


def _way_of_sum(chunk: int, ranks: int) -> Iterator[tuple[bool, Culprit]]:
    """It is added up from its own rank on all around, and then goes around once more."""
    for step in range(ranks - 1):
        yield True, _hop(chunk + step, ranks)
    last = chunk + ranks - 1
    yield False, Culprit(last % ranks, last % ranks)
    for step in range(ranks - 1):
        yield False, _hop(last + step, ranks)


def _way_of_block(chunk: int, ranks: int) -> Iterator[tuple[bool, Culprit]]:
    yield False, Culprit(chunk, chunk)
    for step in range(ranks - 1):
        yield False, _hop(chunk + step, ranks)


def _hop(giver: int, ranks: int) -> Culprit:
    return Culprit(giver % ranks, (giver + 1) % ranks)
