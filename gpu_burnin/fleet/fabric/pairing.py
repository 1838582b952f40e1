"""Who is tested with whom, as positions in a list. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

_T = TypeVar("_T")


def groups_of_two(members: Sequence[_T], turn: int) -> Iterator[tuple[_T, ...]]:
    """Neighbours in a ring that is turned by `turn`: two turns that differ by one share no pair, from four on.

    The last of an odd number makes a triple with the pair before it, so that none is left out; one alone is none.
    """
    count = len(members)
    if count < 2:
        return
    ring = [members[(index + turn) % count] for index in range(count)]
    pairs = count // 2
    for index in range(pairs):
        yield tuple(ring[2 * index :] if index == pairs - 1 else ring[2 * index : 2 * index + 2])


def everyone_with_everyone(members: Sequence[_T], turn: int) -> Iterator[tuple[_T, _T]]:
    """The round `turn` of the circle method: after as many rounds as there are members, each met each."""
    ring: list[_T | None] = [*members]
    if len(ring) % 2:
        ring.append(None)
    if len(ring) < 2:
        return
    steps = turn % (len(ring) - 1)
    rest = ring[1:]
    ring = [ring[0], *rest[len(rest) - steps :], *rest[: len(rest) - steps]]
    for index in range(len(ring) // 2):
        one, other = ring[index], ring[-1 - index]
        if one is not None and other is not None:
            yield one, other


def xor_keys(count: int, least: int, *, every_pair: bool = False) -> list[int]:
    """Keys of exclusive-or rounds: in round k, i meets i ^ k. Powers of two reach each dimension once.

    More follow until each of the `count` has `least` meetings; where there are too few to meet, keys come
    again. `every_pair`: all keys, as often.
    """
    if count < 2:
        return []
    bits = (count - 1).bit_length()
    most = 1 << bits
    if every_pair:
        return list(range(1, most)) * least
    keys = [1 << bit for bit in range(bits)]
    met = Counter(index for key in keys for index in range(count) if index ^ key < count)
    for key in [*(key for key in range(1, most) if key not in keys), *range(1, most)]:
        lacking = [index for index in range(count) if met[index] < least]
        if not lacking:
            break
        if any(index ^ key < count for index in lacking):
            keys.append(key)
            met.update(index for index in range(count) if index ^ key < count)
    return keys


def xor_pairs(members: Sequence[_T], key: int) -> Iterator[tuple[_T, _T]]:
    """The round `key`: each with the one whose position differs by it; who has none waits for another round."""
    for index, member in enumerate(members):
        other = index ^ key
        if index < other < len(members):
            yield member, members[other]
