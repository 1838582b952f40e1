"""Copies between GPUs, below the check: the CPU device between processes, and the kernels of the cuda device on a
stand-in that has the memory of two GPUs in one process. None of it replaces a GPU.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_burnin.checks.nvlink.cpu import CpuNvlink
from gpu_burnin.checks.nvlink.port import (
    DATA_FAULTS,
    DIRECTIONS,
    PIECES,
    Direction,
    LinkFaults,
    NvlinkPort,
    NvlinkUnavailable,
    copy_order,
    kind_of,
    piece_key,
    transfer_key,
)
from gpu_burnin.device.port import DeviceError
from tests.support.nvlink_fakes import SIZE, A, B, join, make_cuda

# --- data ---


def test_every_transfer_and_every_piece_has_a_key_of_its_own() -> None:
    keys = [transfer_key(7, s, d, r) for s in (A, B) for d in (A, B) for r in (1, 2)] + [transfer_key(8, A, B, 1)]
    pieces = [piece_key(key, piece) for key in keys for piece in range(PIECES)]
    assert len(set(pieces)) == len(keys) * PIECES


@pytest.mark.parametrize(
    ("found", "empty", "wrong", "kind"),
    [
        (None, True, {5: None}, "dropped"),
        (None, False, {5: None}, "corrupted"),
        (4, False, {5: 4}, "duplicated"),
        (4, False, {5: 4, 4: 5}, "reordered"),
    ],
)
def test_what_happened_to_a_piece(found: int | None, empty: bool, wrong: dict[int, int | None], kind: str) -> None:
    assert kind_of(found, empty, wrong) == kind


def test_a_fault_changes_where_pieces_go() -> None:
    whole = copy_order(None)
    assert whole == tuple((i, i) for i in range(PIECES)) == copy_order("corrupted")
    assert len(copy_order("dropped")) == PIECES - 1
    assert [s for s, p in copy_order("duplicated") if s != p] == [4]
    assert [(s, p) for s, p in copy_order("reordered") if s != p] == [(5, 4), (4, 5)]


# --- both devices ---


@pytest.fixture(params=["cpu", "cuda"])
def ends(request: pytest.FixtureRequest) -> Iterator[tuple[NvlinkPort, NvlinkPort]]:
    """Two GPUs, A and B."""
    if request.param == "cpu":
        made: tuple[NvlinkPort, NvlinkPort] = (CpuNvlink(), CpuNvlink())
    else:
        kernels, shared = request.getfixturevalue("nvlink_kernels"), dict[bytes, Any]()
        made = (make_cuda(kernels, shared)[1], make_cuda(kernels, shared)[1])
    yield made
    for end in made:
        end.close()


def _arrives(direction: Direction) -> tuple[int, str, int]:
    """For a copy of A with B: who verifies (0 for A, 1 for B), from whom, and the key of the data."""
    return (1, A, transfer_key(7, A, B, 1)) if direction == "write" else (0, B, transfer_key(7, B, A, 1))


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_a_copy_brings_the_data_of_its_source(ends: tuple[NvlinkPort, NvlinkPort], direction: Direction) -> None:
    join(ends)
    who, source, key = _arrives(direction)
    before = ends[who].verify(source, key)
    assert {fault.kind for fault in before} == {"dropped"} and len(before) == PIECES
    ends[0].begin(B, direction, 3)
    moved = ends[0].finish()
    assert moved.bytes == 3 * SIZE and moved.seconds > 0
    assert ends[who].verify(source, key) == ()
    # The data of another round is not taken for it.
    stale = ends[who].verify(source, transfer_key(7, source, (A, B)[who], 2))
    assert {fault.kind for fault in stale} == {"corrupted"} and len(stale) == PIECES


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_each_fault_is_seen_and_named(ends: tuple[NvlinkPort, NvlinkPort], direction: Direction, fault: str) -> None:
    join(ends)
    ends[0].inject(B, fault)
    ends[0].begin(B, direction, 2)
    ends[0].finish()
    who, source, key = _arrives(direction)
    found = ends[who].verify(source, key)
    assert {one.kind for one in found} == {fault}
    words = SIZE // PIECES // 8
    assert [one.piece for one in found] == ([4, 5] if fault == "reordered" else [5])
    last = found[-1]
    assert last.wrong_words == (1 if fault == "corrupted" else words)
    assert last.offset_bytes == 5 * words * 8 + (8 if fault == "corrupted" else 0)
    assert last.expected != last.got
    # The other way is untouched.
    ends[1].begin(A, direction, 1)
    ends[1].finish()
    other = 0 if direction == "write" else 1
    assert ends[other].verify((A, B)[1 - other], transfer_key(7, (A, B)[1 - other], (A, B)[other], 1)) == ()


def test_a_dead_link_refuses_both_ends(ends: tuple[NvlinkPort, NvlinkPort]) -> None:
    handles = [ends[0].export(A, [B], SIZE, LinkFaults(dead=(B,))), ends[1].export(B, [A], SIZE)]
    for i, end in enumerate(ends):
        with pytest.raises(NvlinkUnavailable, match="dead on purpose"):
            end.attach((B, A)[i], handles[1 - i])


def test_a_gpu_that_has_no_place_or_no_handle_is_unavailable(ends: tuple[NvlinkPort, NvlinkPort]) -> None:
    ends[0].export(A, [B], SIZE)
    with pytest.raises(NvlinkUnavailable, match="no place for GPU-a"):
        ends[0].attach(B, ends[1].export(B, ["GPU-c"], SIZE))
    with pytest.raises(NvlinkUnavailable, match="gave no handle"):
        ends[0].attach(B, None)


def test_calls_out_of_order_are_the_callers_fault(ends: tuple[NvlinkPort, NvlinkPort]) -> None:
    with pytest.raises(DeviceError, match="not a multiple of 64"):
        ends[0].export(A, [B], 100)
    with pytest.raises(DeviceError, match="no memory is exported"):
        ends[0].attach(B, {})
    ends[0].export(A, [B], SIZE)
    with pytest.raises(DeviceError, match="is not attached"):
        ends[0].begin(B, "write", 1)


def test_closing_twice_and_using_again_is_fine(ends: tuple[NvlinkPort, NvlinkPort]) -> None:
    for _ in range(2):
        join(ends)
        ends[0].begin(B, "write", 1)
        ends[0].finish()
        assert ends[1].verify(A, transfer_key(7, A, B, 1)) == ()
        for end in ends:
            end.detach_all()
        for end in ends:
            end.close()
            end.close()


def test_one_gpu_can_copy_to_itself(ends: tuple[NvlinkPort, NvlinkPort]) -> None:
    end = ends[0]
    end.attach(A, end.export(A, [A], SIZE))
    key = transfer_key(7, A, A, 1)
    end.fill(A, key)
    for direction in DIRECTIONS:
        end.clear(A)
        assert len(end.verify(A, key)) == PIECES
        end.begin(A, direction, 1)
        end.finish()
        assert end.verify(A, key) == ()


# --- CPU: other processes ---

_OTHER = """
import json, sys
from gpu_burnin.checks.nvlink.port import transfer_key
from gpu_burnin.checks.nvlink.cpu import CpuNvlink
port = CpuNvlink()
handle = port.export("GPU-b", ["GPU-a"], 4096)
port.fill("GPU-a", transfer_key(7, "GPU-b", "GPU-a", 1))
port.clear("GPU-a")
print(json.dumps(handle), flush=True)
for line in sys.stdin:
    found = port.verify("GPU-a", transfer_key(7, "GPU-a", "GPU-b", 1))
    print(json.dumps([fault.kind for fault in found]), flush=True)
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    yield process
    process.kill()
    process.communicate()


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def _ask(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None
    process.stdin.write("verify\n")
    return _line(process)


def test_data_goes_between_processes_both_ways(other: subprocess.Popen[str]) -> None:
    port = CpuNvlink()
    port.export(A, [B], SIZE)
    port.attach(B, _line(other))
    port.fill(B, transfer_key(7, A, B, 1))
    port.clear(B)
    assert _ask(other) == ["dropped"] * PIECES
    port.begin(B, "write", 1)
    port.begin(B, "read", 1)
    assert port.finish().bytes == 2 * SIZE
    assert _ask(other) == []
    assert port.verify(B, transfer_key(7, B, A, 1)) == ()
    port.inject(B, "corrupted")
    port.begin(B, "write", 1)
    port.finish()
    assert _ask(other) == ["corrupted"]
    port.close()


def test_a_process_that_dies_takes_nothing_down(other: subprocess.Popen[str]) -> None:
    """That no memory is left, which has no name: tests/campaign/cases/test_leftovers.py."""
    port = CpuNvlink()
    port.export(A, [B], SIZE)
    handle = _line(other)
    port.attach(B, handle)
    port.fill(B, transfer_key(7, A, B, 1))
    os.kill(other.pid, signal.SIGKILL)
    other.wait()
    port.begin(B, "write", 1)
    assert port.finish().bytes == SIZE
    late = CpuNvlink()
    late.export(A, [B], SIZE)
    with pytest.raises(NvlinkUnavailable, match="its worker died"):
        late.attach(B, handle)
    late.close()
    port.close()


def test_a_slow_link_takes_longer_at_both_ends() -> None:
    ends = (CpuNvlink(), CpuNvlink())
    join(ends)
    plain = min(_seconds(ends[0], B) for _ in range(5))
    join(ends, LinkFaults(slow={B: 40}))
    assert min(_seconds(ends[0], B) for _ in range(5)) > 3 * plain
    assert min(_seconds(ends[1], A) for _ in range(5)) > 3 * plain
    for end in ends:
        end.close()


def _seconds(end: NvlinkPort, uuid: str) -> float:
    end.begin(uuid, "write", 50)
    return end.finish().seconds
