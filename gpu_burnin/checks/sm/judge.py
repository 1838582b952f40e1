"""Which SMs computed wrong: the rows of one run against the expected row and against each other. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_burnin.checks.sm.expected import Expected
from gpu_burnin.checks.sm.kernels import MOVED, UNWRITTEN, SmRun, place
from gpu_burnin.exact.operands import U64
from gpu_burnin.types import JSON, word_text

_MAX_KINDS = 64


@dataclass(frozen=True)
class WrongSm:
    """One SM whose row cannot be right. `sm` None: the block moved between SMs, so none can be named.

    `row` is what it gave, `words` the positions that are wrong and `first` the one to show. `against` says what
    they were compared with: "expected" (the host) or "peers" (most other SMs of this GPU).
    """

    sm: int | None
    blocks: int
    row: U64
    words: NDArray[Any]
    first: int
    expected: str
    against: str

    @property
    def got(self) -> int:
        """The word that is shown."""
        return int(self.row[self.first])


@dataclass(frozen=True)
class Verdicts:
    """What one run of a kernel shows.

    `wrong` are SMs at fault, by id. `common` is set where every SM gave the same wrong row: not one SM, but
    the chip or the software. `divided` is set where rows differ and no row has a majority of SMs. `unknown_ids`
    are ids that this GPU cannot have, `silent` blocks that never wrote, `covered` the SMs that took part.
    """

    wrong: tuple[WrongSm, ...]
    common: WrongSm | None
    divided: bool
    unknown_ids: tuple[int, ...]
    silent: int
    covered: frozenset[int]

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong (coverage apart)."""
        return not (self.wrong or self.common or self.divided or self.unknown_ids or self.silent)


@dataclass(frozen=True)
class _Kind:
    """Blocks with one and the same row."""

    row: U64
    blocks: NDArray[Any]
    sms: frozenset[int]


def judge(run: SmRun, expected: Expected) -> Verdicts:
    """Compare every row with the expected one, and rows that are only bounded with each other as well.

    SMs of one GPU are alike, so the same instructions on the same data must give the same bits. A row outside its
    bounds is wrong by itself; of rows within them the one that most SMs gave is taken to be right.
    """
    wrote = run.smid != UNWRITTEN
    known = wrote & (run.smid < run.nsmid)
    covered = frozenset(int(i) for i in np.unique(run.smid[known & (run.smid >= 0)]))
    unknown = tuple(int(i) for i in np.unique(run.smid[wrote & ~known]))
    kinds = _kinds(run, np.flatnonzero(wrote))
    wrong: list[WrongSm] = []
    right: list[_Kind] = []
    common = None
    for kind in kinds:
        places = np.flatnonzero(expected.wrong(kind.row))
        if places.size == 0:
            right.append(kind)
        elif len(kinds) == 1 and len(covered) > 1:
            common = _entry(None, kind.blocks.size, kind, places, expected)
        else:
            wrong += [_entry(sm, count, kind, places, expected) for sm, count in _by_sm(kind, run)]
    leader = max(right, key=lambda kind: len(kind.sms), default=None)
    divided = len(right) > 1 and leader is not None and 2 * len(leader.sms) <= len(covered)
    if leader is not None and not divided:
        for kind in right:
            if kind is not leader:
                wrong += [_against(sm, count, kind, leader) for sm, count in _by_sm(kind, run)]
    wrong.sort(key=lambda entry: -1 if entry.sm is None else entry.sm)
    return Verdicts(tuple(wrong), common, divided, unknown, int((~wrote).sum()), covered)


def describe(kernel: str, wrong: WrongSm) -> dict[str, JSON]:
    """One wrong SM for the report."""
    return {
        "kernel": kernel,
        "sm": wrong.sm,
        "blocks": wrong.blocks,
        "word": wrong.first,
        **place(kernel, wrong.first),
        "expected": wrong.expected,
        "got": word_text(wrong.got),
        "compared_with": wrong.against,
        "wrong_words": int(wrong.words.size),
    }


def repeat_word(before: WrongSm, again: Verdicts) -> str:
    """How a repeat came out on the SM of `before`: "right", "same", "other" or "not reached"."""
    found = [entry for entry in (*again.wrong, *([again.common] if again.common else [])) if entry.sm == before.sm]
    if found:
        return "same" if any(np.array_equal(entry.row, before.row) for entry in found) else "other"
    return "right" if before.sm is None or before.sm in again.covered else "not reached"


def _kinds(run: SmRun, blocks: NDArray[Any]) -> list[_Kind]:
    """Blocks grouped by their rows, each kind with the SMs that it came from."""
    kinds: list[_Kind] = []
    left = blocks
    while left.size:
        row = run.rows[left[0]]
        chaos = len(kinds) >= _MAX_KINDS  # no need to pair the rest
        alike = np.arange(left.size) == 0 if chaos else (run.rows[left] == row).all(axis=1)
        own = left[alike]
        kinds.append(_Kind(row, own, frozenset(int(i) for i in run.smid[own])))
        left = left[~alike]
    return kinds


def _by_sm(kind: _Kind, run: SmRun) -> list[tuple[int | None, int]]:
    """The SMs of a kind, None for one that is not known, and how many blocks each gave."""
    ids, counts = np.unique(run.smid[kind.blocks], return_counts=True)
    return [(int(i) if i != MOVED else None, int(n)) for i, n in zip(ids, counts, strict=True)]


def _entry(sm: int | None, blocks: int, kind: _Kind, places: NDArray[Any], expected: Expected) -> WrongSm:
    first = int(places[0])
    return WrongSm(sm, blocks, kind.row, places, first, expected.word(first), "expected")


def _against(sm: int | None, blocks: int, kind: _Kind, leader: _Kind) -> WrongSm:
    places = np.flatnonzero(kind.row != leader.row)
    first = int(places[0])
    return WrongSm(sm, blocks, kind.row, places, first, word_text(int(leader.row[first])), "peers")
