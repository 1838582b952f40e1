"""Payload and comparison of collective operations, and the ring of the CPU device. No GPU takes part."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks.nccl.cpu import CpuNccl, added, block_bytes
from gpu_burnin.checks.nccl.operations import (
    COLLECTIVES,
    KINDS,
    MOST_RECORDED,
    Operation,
    Wrong,
    bits_of,
    bus_factor,
    expected_bits,
    explain,
    operation,
    sent_bits,
    sum_of,
)
from gpu_burnin.checks.nccl.port import NcclFailed, NcclTimeout
from gpu_burnin.device import shared_memory
from gpu_burnin.device.port import DeviceError
from tests.support.clocks import PATIENCE_S
from tests.support.nccl_ring import ring

_SIZE, _LIMIT_S = 100_000, PATIENCE_S


def _values(bits: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    if kind == "bf16":
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return bits.view({"int32": np.int32, "int64": np.int64, "fp32": np.float32}[kind])


# --- payload ---


@pytest.mark.parametrize(("collective", "ranks", "factor"), [
    ("all_reduce", 8, 1.75), ("all_gather", 8, 0.875), ("reduce_scatter", 4, 0.75), ("all_to_all", 2, 0.5),
    ("all_reduce", 1, 0.0), ("all_to_all", 1, 0.0),
])  # fmt: skip
def test_bus_factors_are_those_of_nccl_tests(collective: str, ranks: int, factor: float) -> None:
    assert bus_factor(collective, ranks) == factor


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 16])
def test_every_partial_sum_is_exact_in_its_type(kind: str, ranks: int) -> None:
    op = operation("all_reduce", kind, 1 << 14, ranks, 0, 5)
    parts = [_values(sent_bits(op, rank, 0, 4096), kind).astype(object) for rank in range(ranks)]
    bound = 1 << KINDS[kind].exact_bits
    largest = max(abs(int(value)) for part in parts for value in part)
    assert largest * ranks <= bound
    assert largest * ranks > bound // 8, "the bound is made use of"
    running = np.zeros(4096, dtype=object)
    for part in parts:
        running = running + part
        exact = np.array([int(value) for value in running], dtype=np.int64)
        assert [int(value) for value in _values(bits_of(exact, kind), kind)] == [int(value) for value in running]
    assert (expected_bits(op, 0, 4096) == bits_of(exact, kind)).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_is_expected_is_what_the_ranks_send(collective: str, kind: str) -> None:
    ops = [operation(collective, kind, _SIZE, 3, rank, 77) for rank in range(3)]
    sent = [sent_bits(op, rank, 0, op.send_elements) for rank, op in enumerate(ops)]
    chunk = ops[0].chunk
    for rank, op in enumerate(ops):
        got = expected_bits(op, 0, op.recv_elements)
        mine = slice(rank * chunk, (rank + 1) * chunk)
        if collective == "all_gather":
            wanted = np.concatenate(sent)
        elif collective == "all_to_all":
            wanted = np.concatenate([part[mine] for part in sent])
        else:
            total = sum(_values(part, kind).astype(np.float64 if kind != "int64" else object) for part in sent)
            wanted = bits_of(np.array([int(x) for x in total], dtype=np.int64), kind)
            wanted = wanted[mine] if collective == "reduce_scatter" else wanted
        assert (got == wanted).all()
        assert (expected_bits(op, 1000, 2000) == wanted[1000:3000]).all(), "any part can be made alone"


def test_data_differ_by_key_rank_and_element() -> None:
    op = operation("all_gather", "int64", _SIZE, 4, 0, 1)
    rows = [sent_bits(op, rank, 0, 1000, key) for rank in range(4) for key in (1, 2)]
    assert np.unique(np.concatenate(rows)).size == 8000


@pytest.mark.parametrize(("size", "ranks", "chunk"), [(4096, 1, 1024), (4096, 3, 340), (10, 8, 4), (1 << 20, 8, 32768)])
def test_sizes_are_whole_vectors_for_each_rank(size: int, ranks: int, chunk: int) -> None:
    op = operation("all_reduce", "fp32", size, ranks, 0, 1)
    assert op.chunk == chunk
    assert op.size_bytes == 4 * ranks * chunk


# --- what an error shows ---


def _one(op: Operation, position: int, value: int) -> Wrong:
    return Wrong(position, int(bits_of(np.array([value], dtype=np.int64), op.kind)[0]))


def test_errors_are_explained() -> None:
    op = operation("all_reduce", "int32", _SIZE, 4, 2, 9, older=8)
    right = int(sum_of(op, 50, 1)[0])
    part = int(_values(sent_bits(op, 3, 50, 1), "int32")[0])
    cases = {
        ("missing", 3): _one(op, 50, right - part),
        ("doubled", 3): _one(op, 50, right + part),
        ("corrupted", None): _one(op, 50, right ^ 4),
        ("unwritten", None): Wrong(50, 0xFFFFFFFF),
        ("stale", None): Wrong(50, int(expected_bits(op, 50, 1, 8)[0])),
    }
    assert [explain(op, [wrong]) for wrong in cases.values()] == [[case] for case in cases]
    assert explain(op, [*cases.values()]) == [*cases], "each alone, where not all show the same"
    assert explain(op, []) == []


def test_moved_elements_tell_where_they_come_from() -> None:
    op = operation("all_to_all", "bf16", _SIZE, 4, 2, 9)
    wrong = [Wrong(op.chunk * 3 + 1, 0x1234), Wrong(0, 0xFFFF)]
    assert explain(op, wrong) == [("corrupted", 3), ("unwritten", 0)]


def test_a_part_of_bf16_fits_by_chance_and_names_nobody_alone() -> None:
    op = operation("reduce_scatter", "bf16", _SIZE, 4, 2, 9)
    parts = _values(sent_bits(op, 1, op.offset, 8), "bf16")
    wrong = [_one(op, i, int(sum_of(op, i, 1)[0]) - int(part)) for i, part in enumerate(parts) if part]
    assert explain(op, wrong[:1]) == [("corrupted", None)]
    assert explain(op, wrong) == [("missing", 1)] * len(wrong), "together they do"


# --- the ring ---


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_all_collectives_of_all_types_are_exact(ranks: int) -> None:
    def work(port: CpuNccl, rank: int) -> int:
        wrong = 0
        for index, (collective, kind) in enumerate((c, k) for c in COLLECTIVES for k in KINDS):
            op = operation(collective, kind, _SIZE, ranks, rank, index)
            port.fill(op)
            port.begin(op, 2, _LIMIT_S)
            assert port.finish(_LIMIT_S) > 0
            outcome = port.verify(op)
            assert outcome.compared == 2 * op.recv_elements
            wrong += outcome.wrong
        port.leave(_LIMIT_S)
        return wrong

    assert ring(ranks, work) == [0] * ranks


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("spoiled", range(3))
def test_each_operation_of_a_row_is_looked_at_before_the_next_comes_over_it(
    collective: str, spoiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: dict[int, int] = {0: 0, 1: 0}
    operate = getattr(CpuNccl, f"_{collective}")

    def spoils(self: CpuNccl, op: Operation, deadline_s: float) -> None:
        operate(self, op, deadline_s)
        if op.rank == 1 and done[1] == spoiled:
            self._recv_array(op)[5] ^= 4
        if op.rank == 0 and done[0] == spoiled:
            self.forget(op)  # nothing came, but the result of the one before was right
        done[op.rank] += 1

    monkeypatch.setattr(CpuNccl, f"_{collective}", spoils)

    def work(port: CpuNccl, rank: int) -> Any:
        op = operation(collective, "int32", _SIZE, 2, rank, 3)
        port.fill(op)
        port.begin(op, 3, _LIMIT_S)
        port.finish(_LIMIT_S)
        outcome = port.verify(op)
        again = port.verify(op)
        late = spoiled == 2  # what is in the buffer is wrong still
        assert (again.compared, again.wrong > 0) == (op.recv_elements, late)
        return outcome.compared // op.recv_elements, outcome.wrong, outcome.recorded[0].position

    whole = operation(collective, "int32", _SIZE, 2, 0, 3).recv_elements
    assert ring(2, work) == [(3, whole, 0), (3, 1, 5)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_found_where_it_is(kind: str) -> None:
    def work(port: CpuNccl, rank: int) -> Any:
        op = operation("reduce_scatter", kind, _SIZE, 2, rank, 3)
        port.fill(op)
        port.begin(op, 1, _LIMIT_S)
        port.finish(_LIMIT_S)
        if rank == 1:
            port.flip(op, 1234, 2)
        outcome = port.verify(op)
        return outcome.wrong, [wrong.position for wrong in outcome.recorded]

    assert ring(2, work) == [(0, []), (1, [1234])]


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_what_one_rank_sends_wrong_is_wrong_where_it_belongs(collective: str) -> None:
    def work(port: CpuNccl, rank: int) -> Any:
        op = operation(collective, "int32", _SIZE, 3, rank, 3)
        port.fill(op)
        if rank == 1:
            port._send_array(op)[7] ^= 1  # below the detector of all ranks
        port.begin(op, 1, _LIMIT_S)
        port.finish(_LIMIT_S)
        outcome = port.verify(op)
        return outcome.wrong, explain(op, outcome.recorded)

    chunk = operation(collective, "int32", _SIZE, 3, 0, 3).chunk
    assert chunk > 7
    moved, added_up = (1, [("corrupted", 1)]), (1, [("corrupted", None)])
    assert (
        ring(3, work)
        == {
            "all_reduce": [added_up] * 3,
            "all_gather": [moved] * 3,
            "reduce_scatter": [added_up, (0, []), (0, [])],
            "all_to_all": [moved, (0, []), (0, [])],
        }[collective]
    )


def test_a_result_that_never_came_is_seen_and_only_some_of_it_is_listed() -> None:
    def work(port: CpuNccl, rank: int) -> Any:
        op = operation("all_gather", "int64", _SIZE, 2, rank, 3)
        port.fill(op)
        outcome = port.verify(op)
        kinds = {kind for kind, _ in explain(op, outcome.recorded)}
        return outcome.wrong, len(outcome.recorded), kinds, outcome.by_source

    op = operation("all_gather", "int64", _SIZE, 2, 0, 3)
    assert ring(2, work) == [(op.recv_elements, MOST_RECORDED, {"unwritten"}, (op.chunk, op.chunk))] * 2


def test_a_rank_that_does_not_come_ends_the_others_before_their_deadline_is_long_over() -> None:
    given_up = threading.Barrier(3)

    def work(port: CpuNccl, rank: int) -> Any:
        if rank == 1:
            given_up.wait(_LIMIT_S)  # it hangs until the others have given up
            return "away"
        op = operation("all_reduce", "fp32", _SIZE, 3, rank, 3)
        port.fill(op)
        port.begin(op, 1, _LIMIT_S)
        try:
            return port.finish(0.5)
        except NcclTimeout as error:
            return str(error)
        finally:
            given_up.wait(_LIMIT_S)

    first, away, last = ring(3, work)
    assert (first, away) == ("rank 2 did not do its part before the deadline", "away")
    assert last == "rank 1 did not do its part before the deadline"


def test_who_gives_up_takes_the_others_along_at_once() -> None:
    def work(port: CpuNccl, rank: int) -> Any:
        if rank == 0:
            port.abort()
            return "given up"
        op = operation("all_reduce", "fp32", _SIZE, 3, rank, 3)
        port.fill(op)
        port.begin(op, 1, 60.0)
        return port.finish(60.0)

    answers = ring(3, work)
    assert answers[0] == "given up"
    assert [str(answer) for answer in answers[1:]] == ["another rank gave up the operation"] * 2


def test_a_worker_that_is_gone_cannot_be_joined() -> None:
    port = CpuNccl()
    mine = port.offer(0, 2)
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(NcclFailed, match=r"memory of process .* is gone"):
        port.join([mine, {"pid": child, "fd": 3}], 0, "ring", 1.0)
    port.close()


def test_nothing_is_left_open() -> None:
    def links() -> list[str]:
        found = []
        for fd in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):
                found.append(str(fd.readlink()))
        return [link for link in found if "gpu-burnin-nccl-ring" in link]

    def work(port: CpuNccl, rank: int) -> list[str]:
        seen = links()
        port.leave(_LIMIT_S)
        return seen

    gc.collect()  # errors of earlier tests still hold what they looked at
    assert links() == []
    assert all(ring(2, work))
    assert links() == []
    assert "gpu-burnin-nccl-ring" not in Path("/proc/self/maps").read_text()


def test_a_ring_without_memory_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(name: str, size_bytes: int) -> int:
        assert size_bytes == block_bytes(100)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(shared_memory, "create", full)
    with pytest.raises(DeviceError, match=r"ring of 100 ranks \(No space left"):
        CpuNccl().offer(0, 100)


def test_sums_of_what_was_corrupted_do_not_warn() -> None:
    bits = np.array([0x7F80, 0x7FC1, 0x3F80], dtype=np.uint16)
    assert added(bits, bits[::-1].copy(), "bf16")[2] & 0x7F80 == 0x7F80
    assert added(np.array([0xFFFFFFFF], np.uint32), np.array([2], np.uint32), "int32")[0] == 1
