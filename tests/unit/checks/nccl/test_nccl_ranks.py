"""Collectives of more ranks than one host has: sums that stay exact, what their errors show, and a ring of 70.

Only here: sums of up to 65,536 ranks in each type, in any order, and a ring of 70 ranks.
"""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from gpu_burnin.checks.nccl.cpu import CpuNccl, added
from gpu_burnin.checks.nccl.operations import (
    COLLECTIVES,
    KINDS,
    MOST_RECORDED,
    Operation,
    Wrong,
    addends,
    bits_of,
    element_type,
    expected_bits,
    explain,
    groups_of,
    operation,
    sent_bits,
    sum_of,
)
from gpu_burnin.exact.operands import I64, random_rows, random_words
from tests.support.clocks import PATIENCE_S
from tests.support.nccl_ring import ring

# What holds the elements of a type: those of the check, and two that NCCL adds as well.
_HOLD: dict[str, Any] = {
    "bf16": ml_dtypes.bfloat16, "fp16": np.float16, "fp32": np.float32, "fp64": np.float64, "int32": np.int32,
    "int64": np.int64,
}  # fmt: skip
_RANKS = (2, 62, 63, 64, 256, 257, 1000, 65536)


def _made(kind: str, ranks: int, collective: str = "all_reduce", rank: int = 0) -> Operation:
    """An operation of any type, also one that the check has not."""
    return Operation(collective, kind, 24, ranks, rank, 0xFEED)


def _column(op: Operation, place: int) -> tuple[NDArray[np.intp], I64]:
    """The ranks that have a part in one element of the whole array, by the words of the rule, and their parts."""
    ranks = np.arange(op.ranks)
    givers = ranks[(ranks + place) % op.groups == 0]
    words = random_rows(random_words(op.key, 0, op.ranks)[givers], place, 1)[:, 0]
    return givers, words.view(np.int64) >> np.int64(op.shift)


def _halved(rows: NDArray[Any]) -> NDArray[Any]:
    """Sums of pairs of rows; one that has no other stays."""
    pairs = rows[: len(rows) // 2 * 2]
    return np.concatenate([pairs[0::2] + pairs[1::2], rows[len(pairs) :]])


# --- sums ---


@pytest.mark.parametrize(("kind", "bits"), [
    ("bf16", 8), ("fp16", 11), ("fp32", 24), ("fp64", 53), ("int32", 31), ("int64", 63),
])  # fmt: skip
def test_the_bound_is_that_of_the_type(kind: str, bits: int) -> None:
    found = element_type(kind)
    hold = np.dtype(_HOLD[kind])
    assert (found.exact_bits, found.size_bytes) == (bits, hold.itemsize)
    largest = hold.type(2**bits - 1)
    assert int(largest) == 2**bits - 1
    with np.errstate(over="ignore"):
        one = largest + hold.type(1)
        beyond = int(one + hold.type(1))
    assert beyond != 2**bits + 1, "one more is not exact"
    assert [groups_of(kind, 2**bits + more) for more in (-1, 0, 1)] == [1, 1, 2]


@pytest.mark.parametrize("ranks", _RANKS)
@pytest.mark.parametrize("kind", _HOLD)
def test_sums_of_any_number_of_ranks_are_exact_in_any_order(kind: str, ranks: int) -> None:
    op, hold, bound = _made(kind, ranks), _HOLD[kind], 2 ** element_type(kind).exact_bits
    random = np.random.default_rng(ranks)
    assert op.groups == -(-ranks // bound)
    for place in (0, 1, op.groups - 1, op.groups, int(random.integers(24 * ranks)), 24 * ranks - 1):
        givers, parts = _column(op, place)
        assert 0 < len(parts) <= op.summands <= bound
        # No sum of some of them leaves what the type holds; nothing here wraps in 64 bits either.
        assert max(abs(int(part)) for part in (parts.min(), parts.max())) * len(parts) <= bound
        assert sum_of(op, place, 1).tolist() == [sum(parts.tolist())]
        for giver in random.choice(givers, min(len(givers), 9)).tolist():
            assert addends(op, giver, place, 1)[0] == parts[givers.searchsorted(giver)]
        mixed = random.permutation(parts)
        typed = mixed.astype(hold)
        assert (typed.astype(np.int64) == mixed).all()
        one_by_one = np.add.accumulate(typed, dtype=hold)
        assert (one_by_one.astype(np.int64) == np.add.accumulate(mixed)).all()
        while len(mixed) > 1:
            typed, mixed = _halved(typed), _halved(mixed)
            assert (typed.astype(np.int64) == mixed).all()


def test_without_groups_they_are_not() -> None:
    """The test above sees a sum that is rounded on its way."""
    ones = np.full(257, -1).astype(ml_dtypes.bfloat16)
    assert np.add.accumulate(ones, dtype=ml_dtypes.bfloat16)[-1] == -256


@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize("ranks", [257, 1000, 65536])
def test_every_rank_has_a_part_in_each_row_of_groups(kind: str, ranks: int) -> None:
    op = _made(kind, ranks)
    for rank in (0, 1, ranks // 3, ranks - 1):
        given = np.flatnonzero(addends(op, rank, 5, 40 * op.groups)) + 5
        assert ((given + rank) % op.groups == 0).all()
        assert 5 < given.size <= 40


@pytest.mark.parametrize("collective", ["all_reduce", "reduce_scatter"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_expected_is_what_the_ranks_send(collective: str, kind: str) -> None:
    op = operation(collective, kind, 600 * 64, 600, 599, 7)
    sent = np.zeros(op.send_elements, dtype=f"u{KINDS[kind].size_bytes}")
    for rank in range(op.ranks):  # in the arithmetic of the type
        sent = added(sent, sent_bits(op, rank, 0, op.send_elements), kind)
    right = expected_bits(op, 0, op.recv_elements)
    assert (right == sent[op.offset : op.offset + op.recv_elements]).all()
    assert (expected_bits(op, 2, 5) == right[2:7]).all(), "any part can be made alone"
    assert (sent_bits(op, 3, 11, 9) == sent_bits(op, 3, 0, 20)[11:]).all()


def test_words_of_one_host_are_those_of_earlier_versions() -> None:
    """Digests made by the version that had 62 ranks at most."""
    found = {}
    for kind in KINDS:
        digest = hashlib.sha256()
        for ranks in (1, 2, 3, 8, 33, 62):
            for collective in COLLECTIVES:
                op = operation(collective, kind, 1 << 14, ranks, ranks - 1, 0xFEED)
                for rank in (0, ranks // 2, ranks - 1):
                    digest.update(sent_bits(op, rank, 3, 100).tobytes())
                digest.update(expected_bits(op, 0, op.recv_elements).tobytes())
        found[kind] = digest.hexdigest()[:16]
    assert found == {
        "int32": "f8ba7ca1a3651154", "int64": "e1df5d8e0d515b0b", "fp32": "ce8dc47bbe245eaf",
        "bf16": "c74c24b22cde23a3",
    }  # fmt: skip


# --- what an error shows ---


def _lacking(op: Operation, rank: int, sign: int, count: int) -> list[Wrong]:
    """Sums that lack the part of a rank (-1), or have it twice (1): the first that differ."""
    parts = addends(op, rank, op.offset, 100 * op.groups)
    places = np.flatnonzero(parts)[:count]
    sums = [int(sum_of(op, int(place), 1)[0]) + sign * int(parts[place]) for place in places]
    return [Wrong(int(p), int(bits_of(np.array([s]), op.kind)[0])) for p, s in zip(places, sums, strict=True)]


_LEAST = [
    ("int64", 65536, 1), ("int32", 512, 1), ("int32", 1000, 2), ("fp32", 64, 1), ("fp32", 65, 2), ("fp32", 1000, 2),
    ("fp32", 65536, 4), ("bf16", 2, 2), ("bf16", 62, 7), ("bf16", 256, 21), ("bf16", 257, 21), ("bf16", 1000, 21),
    ("bf16", 65536, 21),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "ranks", "least"), _LEAST)
def test_a_lost_or_doubled_part_names_its_rank_once_chance_does_not(kind: str, ranks: int, least: int) -> None:
    op = operation("reduce_scatter", kind, 1 << 20, ranks, ranks // 2, 9)
    for sign, word in ((-1, "missing"), (1, "doubled")):
        wrong = _lacking(op, ranks - 2, sign, least)
        assert explain(op, wrong) == [(word, ranks - 2)] * least
        assert explain(op, wrong[1:]) == [("corrupted", None)] * (least - 1)


def test_what_is_kept_of_a_result_is_enough() -> None:
    assert max(least for _, _, least in _LEAST) <= MOST_RECORDED


def test_chance_names_a_rank_as_seldom_as_is_said() -> None:
    """Errors of four elements that no rank has made, in sums of so many ranks that a part alone would fit most."""
    op = operation("all_reduce", "fp32", 1, 4096, 0, 9)
    random = np.random.default_rng(3)
    named = 0
    for _ in range(60):
        places = random.choice(op.recv_elements, 4, replace=False)
        errors = random.integers(1, 1 << (63 - op.shift), 4)
        sums = [int(sum_of(op, int(p), 1)[0]) + int(e) for p, e in zip(places, errors, strict=True)]
        wrong = [Wrong(int(p), int(bits_of(np.array([s]), "fp32")[0])) for p, s in zip(places, sums, strict=True)]
        named += explain(op, wrong) != [("corrupted", None)] * 4
    assert named == 0


# --- a ring of more ranks than had a place ---


def _wrong_of(port: CpuNccl, rank: int, ranks: int, collectives: Sequence[str]) -> int:
    """Wrong elements of small operations, and one for each that did not see a bit that was turned."""
    wrong = 0
    for index, collective in enumerate(collectives):
        op = operation(collective, "bf16", 1, ranks, rank, index)
        port.fill(op)
        port.begin(op, 1, PATIENCE_S)
        port.finish(PATIENCE_S)
        wrong += port.verify(op).wrong
        port.flip(op, 3, 1)
        wrong += port.verify(op).wrong != 1
    port.leave(PATIENCE_S)
    return wrong


@pytest.mark.parametrize("ranks", [63, 64, 70])
def test_a_ring_of_many_ranks_is_exact(ranks: int) -> None:
    """The counters of rank 63 and above lie behind the first page of a block."""
    assert ring(ranks, lambda port, rank: _wrong_of(port, rank, ranks, ("all_reduce",)), 1 << 14) == [0] * ranks


def _member(rank: int, ranks: int, line: Connection) -> None:
    port = CpuNccl()
    port.open(1 << 16)
    line.send(port.offer(rank, ranks))
    port.join(line.recv(), rank, "ring", PATIENCE_S)
    line.send(_wrong_of(port, rank, ranks, ("all_reduce", "all_to_all")))
    line.recv()  # nobody takes its memory away before all are done
    port.close()


@pytest.mark.soak
@pytest.mark.slow
def test_a_ring_of_processes_is_exact() -> None:
    ranks = 70
    process = multiprocessing.get_context("forkserver")
    lines, members = [], []
    for rank in range(ranks):
        here, there = process.Pipe()
        members.append(process.Process(target=_member, args=(rank, ranks, there), daemon=True))
        members[-1].start()
        there.close()
        lines.append(here)
    offers = [line.recv() for line in lines]
    for line in lines:
        line.send(offers)
    assert [line.recv() for line in lines] == [0] * ranks
    for line in lines:
        line.send(None)
    for member in members:
        member.join(PATIENCE_S)
        assert member.exitcode == 0
