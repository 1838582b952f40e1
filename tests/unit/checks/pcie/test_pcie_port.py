"""Copies between host and device, without a device: what belongs where, what each fault leaves, the CPU link."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gpu_burnin.checks.pcie import numa as pcie_numa
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.ledger import Ledger, SlotComparison
from gpu_burnin.checks.pcie.numa import cpu_list, near_device
from gpu_burnin.checks.pcie.port import (
    FAULTS,
    MOST_LOCATED,
    POISON_WORD,
    STRIDE_BYTES,
    Direction,
    Geometry,
    Kind,
    Moved,
    Verified,
    geometry,
    pcie_port,
)
from gpu_burnin.checks.pcie.slots import fill_words, slot_comparer
from gpu_burnin.device.cpu import CpuDevice
from gpu_burnin.device.port import DeviceError

SIZE = 16 << 10


@pytest.fixture
def link() -> CpuPcie:
    """An open, filled link."""
    made = CpuPcie()
    made.open(SIZE)
    made.fill(5)
    return made


def batch(link: CpuPcie, direction: Direction, copies: int) -> Verified:
    """One verified batch."""
    link.begin(direction, copies)
    link.finish()
    return link.verify()


# --- sizes ---


@pytest.mark.parametrize("size_bytes", [8, 4096, 64 << 10, 256 << 20])
def test_what_lies_in_a_slot_is_never_the_data_that_comes_next(size_bytes: int) -> None:
    made = geometry(size_bytes)
    assert made.slots >= 2
    assert made.source_bytes == size_bytes + (made.windows - 1) * STRIDE_BYTES
    recent = 2 * made.slots  # what lies there, and a whole batch on top of it
    for copy in range(recent, recent + made.windows):
        assert made.offset_bytes(copy) not in {made.offset_bytes(copy - back) for back in range(1, recent)}


def test_small_copies_have_many_slots_and_large_ones_few() -> None:
    assert geometry(4096).slots == 256
    assert geometry(256 << 20).slots == 4


def test_a_rate_needs_time() -> None:
    assert Moved(100, 0.5).bytes_per_s == 200.0
    assert Moved(100, 0.0).bytes_per_s == 0.0


# --- right copies ---


@pytest.mark.parametrize(("direction", "ways"), [("h2d", 1), ("d2h", 1), ("duplex", 2)])
def test_right_copies_are_all_verified(link: CpuPcie, direction: Direction, ways: int) -> None:
    slots = geometry(SIZE).slots
    link.begin(direction, slots)
    moved = link.finish()
    assert moved.bytes == ways * slots * SIZE
    assert moved.seconds > 0
    assert link.verify() == Verified(ways * slots, ways * slots * SIZE)
    assert link.verify() == Verified()


def test_of_copies_that_are_only_load_the_last_are_verified(link: CpuPcie) -> None:
    slots = geometry(SIZE).slots
    link.begin("h2d", 3 * slots + 1, load=True)
    link.finish()
    assert link.verify() == Verified(slots, slots * SIZE)
    assert batch(link, "h2d", 3) == Verified(3, 3 * SIZE)


def test_no_copy_comes_over_one_that_nobody_looked_at(link: CpuPcie) -> None:
    slots = geometry(SIZE).slots
    with pytest.raises(DeviceError, match=f"{slots + 1} copies have no room beside 0 that were not verified"):
        link.begin("d2h", slots + 1)
    link.begin("d2h", slots - 2)
    link.finish()
    with pytest.raises(DeviceError, match=f"3 copies have no room beside {slots - 2} that were not verified"):
        link.begin("d2h", 3)
    link.begin("d2h", 2)
    link.finish()
    assert link.verify() == Verified(slots, slots * SIZE)


def test_new_data_starts_anew(link: CpuPcie) -> None:
    batch(link, "duplex", 7)
    link.fill(6)
    assert link.verify() == Verified()
    assert batch(link, "duplex", 7) == Verified(14, 14 * SIZE)


# --- wrong copies, by kind ---


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("before", [0, 1, 40])
@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_by_its_kind(
    link: CpuPcie, fault: Kind, direction: Direction, before: int, seed: int
) -> None:
    if before:
        assert not batch(link, direction, before).wrong
    link.inject(fault, seed)
    found = batch(link, direction, 5)
    assert found.copies == 5
    assert [wrong.kind for wrong in found.wrong] == [fault] * (2 if fault is Kind.REORDERED else 1)
    for wrong in found.wrong:
        assert (wrong.direction, before <= wrong.copy < before + 5) == (direction, True)
        assert wrong.expected != wrong.got
    first = found.wrong[0]
    words = SIZE // 8
    expected = {Kind.CORRUPTED: 1, Kind.STALE: words // 2}.get(fault, words)
    assert first.wrong_words == expected
    if fault is Kind.CORRUPTED:
        assert (first.expected ^ first.got).bit_count() == 1
    if fault is Kind.STALE:
        assert first.offset_bytes == SIZE // 2
    if fault in (Kind.STALE, Kind.DROPPED) and before == 0:
        assert first.got == POISON_WORD
    if fault is Kind.REORDERED:
        assert [wrong.came_from for wrong in found.wrong] == [found.wrong[1].copy, first.copy]
    assert (first.came_from is not None) == (fault in (Kind.DUPLICATED, Kind.REORDERED))
    assert not batch(link, direction, 5).wrong


def test_a_fault_hits_both_ways_of_a_duplex_batch_and_several_one_batch_each(link: CpuPcie) -> None:
    for fault in (Kind.DROPPED, Kind.CORRUPTED):
        link.inject(fault, 3)
    for fault in (Kind.DROPPED, Kind.CORRUPTED):
        assert [(wrong.direction, wrong.kind) for wrong in batch(link, "duplex", 4).wrong] == [
            ("h2d", fault),
            ("d2h", fault),
        ]


def test_copies_that_change_places_need_two(link: CpuPcie) -> None:
    link.inject(Kind.REORDERED, 1)
    with pytest.raises(DeviceError, match="batch of two"):
        link.begin("h2d", 1)


def test_many_wrong_copies_are_all_counted() -> None:
    """Three are looked into, until there is new data; the others are compared in the shortest way."""
    made = Geometry(64, 100, 400)
    ledger = Ledger("h2d", made)
    source = np.zeros(made.source_bytes // 8, dtype=np.uint64)
    ring = np.zeros(made.ring_bytes // 8, dtype=np.uint64)
    fill_words(source, 9)
    ledger.start(9)
    ledger.batch(100)
    looks: list[bool] = []

    def noting(slot: int, offset: int, old: int | None, poison: bool, brief: bool = False) -> SlotComparison:
        looks.append(brief)
        return slot_comparer(ring, source, 8)(slot, offset, old, poison, brief)

    found = ledger.judge(noting)
    assert (found.copies, len(found.wrong)) == (100, 100)
    assert [wrong.kind for wrong in found.wrong] == [Kind.CORRUPTED] * MOST_LOCATED + [None] * (100 - MOST_LOCATED)
    assert sorted(wrong.copy for wrong in found.wrong) == list(range(100))
    assert looks == [False] * MOST_LOCATED + [True] * (100 - MOST_LOCATED)
    ledger.batch(100)
    assert {wrong.kind for wrong in ledger.judge(noting).wrong} == {None}, "enough is known of this data"


def test_part_of_another_copy_is_no_copy_of_it() -> None:
    """One right word at the first wrong place is not yet a duplicate, nor is one old word yet a stale part."""
    made = geometry(SIZE)
    words = SIZE // 8
    source = np.zeros(made.source_bytes // 8, dtype=np.uint64)
    fill_words(source, 9)
    for strange in (source[made.offset_bytes(1) // 8], POISON_WORD):
        ledger = Ledger("h2d", made)
        ledger.start(9)
        ring = np.full(made.ring_bytes // 8, POISON_WORD, dtype=np.uint64)
        for step in ledger.batch(2).copies:
            ring[step.slot * words : (step.slot + 1) * words] = source[step.offset_bytes // 8 :][:words]
        ring[0], ring[1] = strange, 12345
        (wrong,) = ledger.judge(slot_comparer(ring, source, words)).wrong
        assert (wrong.kind, wrong.wrong_words, wrong.copy) == (Kind.CORRUPTED, 2, 0)


def test_an_entry_of_the_report_has_the_place_and_the_words() -> None:
    link = CpuPcie()
    link.open(SIZE)
    link.fill(5)
    link.inject(Kind.DUPLICATED, 1)
    (wrong,) = batch(link, "d2h", 4).wrong
    entry = wrong.to_json()
    assert entry["kind"] == "duplicated"
    assert entry["direction"] == "d2h"
    assert entry["offset_bytes"] == 0
    assert entry["came_from"] != entry["copy"]
    assert str(entry["expected"]).startswith("0x")


# --- use out of order, memory ---


def test_the_order_of_calls_is_checked(link: CpuPcie) -> None:
    with pytest.raises(DeviceError, match="no batch"):
        link.finish()
    link.begin("h2d", 1)
    with pytest.raises(DeviceError, match="under way"):
        link.begin("h2d", 1)
    link.close()
    link.close()
    with pytest.raises(DeviceError, match="not open"):
        link.begin("h2d", 1)


def test_memory_that_is_refused_is_one_sentence_with_the_limit_and_the_fix() -> None:
    class Refusing(CpuPcie):
        def _pin(self, size_bytes: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint64]]:
            raise OSError(12, "Cannot allocate memory")

    with pytest.raises(DeviceError, match=r"RLIMIT_MEMLOCK is .*LimitMEMLOCK=infinity in the unit or ulimit -l") as e:
        Refusing().open(SIZE)
    assert "\n" not in str(e.value)


def test_no_memory_at_all_names_the_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(np, "zeros", none)
    with pytest.raises(DeviceError, match=r"lower shapes\.transfer_bytes"):
        CpuPcie().open(SIZE)


def test_the_cpu_device_offers_a_simulated_link() -> None:
    link = pcie_port(CpuDevice())
    assert link.simulated
    link.open(SIZE)
    assert link.pinned().numa_node is None


# --- NUMA ---


def _node(root: Path, node: str, cpus: str) -> None:
    device = root / "bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text(node + "\n")
    folder = root / "devices/system/node/node1"
    folder.mkdir(parents=True)
    (folder / "cpulist").write_text(cpus + "\n")


def test_memory_is_taken_on_the_gpu_s_node_and_the_process_moves_back(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    one = min(before)
    _node(tmp_path, "1", f"{one},4000-4002")
    with near_device("0000:01:00.0", tmp_path) as place:
        assert place.node == 1
        assert os.sched_getaffinity(0) == {one}
    assert os.sched_getaffinity(0) == before
    with pytest.raises(ValueError, match="spoiled"), near_device("0000:01:00.0", tmp_path):
        raise ValueError("spoiled")
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize(
    ("node", "cpus", "note"),
    [
        ("-1", "0", "names no NUMA node"),
        ("1", "4000", "may not run on a CPU of NUMA node 1"),
        ("x", "0", "does not tell"),
        ("1", "a-b", "does not tell"),
    ],
)
def test_a_node_that_cannot_be_used_is_said(tmp_path: Path, node: str, cpus: str, note: str) -> None:
    before = os.sched_getaffinity(0)
    _node(tmp_path, node, cpus)
    with near_device("0000:01:00.0", tmp_path) as place:
        assert place.node is None
        assert note in place.note
        assert os.sched_getaffinity(0) == before
    with near_device("0000:02:00.0", tmp_path) as place:
        assert "does not tell" in place.note


def test_cpus_that_the_kernel_refuses_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _node(tmp_path, "1", str(min(os.sched_getaffinity(0))))

    def refuse(pid: int, cpus: set[int]) -> None:
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(pcie_numa.os, "sched_setaffinity", refuse)
    with near_device("0000:01:00.0", tmp_path) as place:
        assert (place.node, "refused the CPUs of NUMA node 1" in place.note) == (None, True)


def test_cpu_lists_of_the_kernel() -> None:
    assert cpu_list("0-2,8,10-11\n") == {0, 1, 2, 8, 10, 11}
    assert cpu_list("\n") == set()
