"""The memory test of the cuda device without a GPU: its kernels compiled for the host against the CPU's memory, and
its host side (what is taken, in which pieces, and that all of it is given back) on a stand-in for CuPy.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gpu_burnin.checks.hbm import check as hbm
from gpu_burnin.checks.hbm import cuda as memory_cuda
from gpu_burnin.checks.hbm import kernels as layout
from gpu_burnin.checks.hbm.cuda import CudaHbm
from gpu_burnin.checks.hbm.faults import FAULTS
from gpu_burnin.checks.hbm.patterns import MAX_KEPT, Pattern
from gpu_burnin.checks.hbm.port import hbm_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.cuda_source import THREADS
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.cuda import CudaProducts
from gpu_burnin.exact.port import products_on
from gpu_burnin.types import Verdict
from tests.support.cuda_fakes import CudaError, FakeLt, use_fakes
from tests.support.engine_helpers import context, gpu
from tests.support.hbm_cases import HbmCases
from tests.support.hbm_fakes import PIECES, HbmCupy, compile_hbm_kernels
from tests.support.host_kernels import HOST_THREADS

# Two large pieces, three small ones, four of the smallest and an odd rest.
SIZE_BYTES = 2 * PIECES[0] + 3 * PIECES[1] + 4 * PIECES[2] + 48


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    """The kernels as a host library."""
    return compile_hbm_kernels()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces and a reserve that suit small memory."""
    monkeypatch.setattr(memory_cuda, "PIECES_BYTES", PIECES)
    monkeypatch.setattr(memory_cuda, "RESERVE_BYTES", 1000)


def _memory(cupy: HbmCupy) -> CudaHbm:
    return CudaHbm(cupy, DeviceErrors(cupy), cupy, 1)


@pytest.fixture
def cupy() -> HbmCupy:
    """CuPy whose kernels do nothing."""
    return HbmCupy()


class TestKernels(HbmCases):
    """All cases on the host."""

    @pytest.fixture
    def size_bytes(self) -> int:
        """All that is taken."""
        return SIZE_BYTES

    @pytest.fixture
    def memory(self, kernels: ctypes.CDLL) -> Iterator[CudaHbm]:
        """Memory in ten pieces."""
        made = _memory(HbmCupy(kernels))
        assert len(made.take(SIZE_BYTES).regions) == 10
        yield made
        made.give_back()


def _launch_order(kernels: ctypes.CDLL, downwards: bool) -> list[int]:
    """Byte offsets of the wrong words in the order in which one piece of 4,000 words was read."""
    cupy = HbmCupy(kernels)
    memory = _memory(cupy)
    memory.take(PIECES[0] * 6)
    memory.write(Pattern("solid"))
    memory.verify(Pattern("solid", inverted=True), downwards=downwards)
    result = memory._result.get()
    rows = result[layout.FIRST_RECORD :].reshape(-1, layout.RECORD_WORDS)
    return [int(row[0]) for row in rows[: min(int(result[layout.RECORDS]), MAX_KEPT)]]


def test_downwards_goes_from_the_last_word_to_the_first(kernels: ctypes.CDLL) -> None:
    upwards, downwards = (_launch_order(kernels, which) for which in (False, True))
    end = PIECES[0] * 6
    # By pieces and within the first piece that was read.
    assert max(upwards[:8]) < PIECES[0] < end - PIECES[0] < min(downwards[:8])
    assert min(upwards[:8]) < 4 * 16 and max(downwards[:8]) >= end - 4 * 16


@pytest.mark.parametrize("units", [1, 2, 3, 5, 15, 16, 17, 63, 64, 65, 127, 257])
@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_any_number_of_accesses_is_covered_once(kernels: ctypes.CDLL, units: int, blocks: int) -> None:
    """Below, at and above whole rounds of the unrolled loop; what lies behind the end is not touched."""
    cupy = HbmCupy(kernels)
    memory = _memory(cupy)
    monkey = Pattern("random", units)
    memory.take(16 * 16 * 7 * 5)
    guard = np.full(64, 0x77, dtype=np.uint64)
    memory.poke(16 * units, guard)
    pointer, zero = memory._pieces[0].pointer, np.uint64(0)
    common = (np.uint64(pointer), np.uint64(units), zero, np.uint64(monkey.parameter), zero)
    memory._kernels["write_random"]((blocks,), (THREADS,), common)
    assert np.array_equal(memory.peek(0, 2 * units), monkey.words(0, 2 * units))
    for downwards in (0, 1):
        result = np.zeros(layout.RESULT_WORDS, dtype=np.uint64)
        flipped = (*common[:4], np.uint64((1 << 64) - 1 if downwards == 0 else 0))
        more = (np.int32(1), np.int32(downwards), np.uint64(result.ctypes.data))
        memory._kernels["verify_random"]((blocks,), (THREADS,), (*flipped, *more))
        assert result[layout.FOUND] == (2 * units if downwards == 0 else 0)
        assert np.array_equal(
            memory.peek(0, 2 * units), (monkey if downwards == 0 else monkey.complement()).words(0, 2 * units)
        )
    assert np.array_equal(memory.peek(16 * units, 64), guard)


def test_more_wrong_words_than_there_is_room_for_are_counted_and_leave_the_rest_alone(
    kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_cuda, "PIECES_BYTES", (1 << 17,))
    memory = _memory(HbmCupy(kernels))
    memory.take(1 << 17)
    memory.write(Pattern("solid"))
    result = np.zeros(layout.RESULT_WORDS + 9000, dtype=np.uint64)
    units, ones = (1 << 17) // 16, np.uint64((1 << 64) - 1)
    arguments = (np.uint64(memory._pieces[0].pointer), np.uint64(units), np.uint64(0), np.uint64(0), ones)
    more = (np.int32(0), np.int32(0), np.uint64(result.ctypes.data))
    memory._kernels["verify_solid"]((256,), (THREADS,), (*arguments, *more))
    found = memory_cuda.faults_of(result)
    assert found.count == 2 * units
    assert found.lane_words == int(result[layout.RECORDS]) == 256 * HOST_THREADS * layout.LANE_WORDS_PER_THREAD
    assert found.lane_words > len(found.words) == MAX_KEPT
    assert not result[layout.RESULT_WORDS :].any()


@pytest.mark.parametrize("pieces", [0, 1, 10])
def test_a_comparison_that_did_not_happen_is_no_clean_memory(kernels: ctypes.CDLL, pieces: int) -> None:
    """Of ten launches so many come; with all of them the memory is clean."""
    memory = _memory(HbmCupy(kernels))
    memory.take(SIZE_BYTES)
    memory.write(Pattern("random", 4))
    launch, launched = memory._kernels["verify_random"], iter(range(10))
    memory._kernels["verify_random"] = lambda *call: launch(*call) if next(launched) < pieces else None
    if pieces == 10:
        assert memory.verify(Pattern("random", 4)).count == 0
        return
    words = PIECES[0] // 8 * pieces
    with pytest.raises(DeviceError, match=rf"of random looked at {words} of {SIZE_BYTES // 8} words: .*did not run"):
        memory.verify(Pattern("random", 4))


@pytest.mark.parametrize("size_bytes", [1 << 16, 1 << 20, 2 << 20])
def test_little_memory_is_read_by_both_loops_of_the_kernel(size_bytes: int) -> None:
    """Most of it UNROLL accesses at a time, as all of a GPU's memory is, and the rest one by one."""
    units = size_bytes // layout.ACCESS_BYTES
    together = layout.UNROLL * THREADS * memory_cuda.few_blocks(units, THREADS, layout.UNROLL)
    assert 0 < units % together < units / 2 < units // together * together


def test_a_pass_does_not_begin_in_the_cache(kernels: ctypes.CDLL) -> None:
    """Before a pass that begins where the last one ended, four caches of the other end are read."""
    cupy = HbmCupy(kernels)
    cupy.properties["l2CacheSize"] = 1024
    memory = _memory(cupy)
    memory.take(SIZE_BYTES)
    pattern, first, last = Pattern("random", 9), memory._pieces[0], memory._pieces[-1]

    def touched(invert: bool, downwards: bool, wanted: Pattern) -> list[tuple[int, int]]:
        """Address and bytes of what was read before the first comparison."""
        cupy.calls.clear()
        assert memory.verify(wanted, invert, downwards).count == 0
        before = cupy.names().index("verify_random")
        assert "touch" not in cupy.names()[before:]
        return [(int(call[2]), 16 * int(call[3])) for name, call in cupy.calls[:before] if name == "touch"]

    memory.write(pattern)
    assert touched(True, False, pattern) == []
    assert touched(True, True, pattern.complement()) == [(first.pointer, 4096)]
    upper = touched(False, False, pattern)
    assert upper[0] == (last.pointer, 48)
    assert sum(size for _, size in upper) == 4096
    assert upper[-1][0] + upper[-1][1] in {piece.pointer + piece.size_bytes for piece in memory._pieces}


def test_positions_beyond_32_bits_are_those_of_the_host(kernels: ctypes.CDLL) -> None:
    """The last words of a GPU of 288 GB, without 288 GB: the kernels are told where their piece begins."""
    cupy = HbmCupy(kernels)
    memory = _memory(cupy)
    memory.take(PIECES[0])
    count = PIECES[0] // 8
    for first in ((1 << 32) - 64, (288 << 27) - count, (1 << 40) + 6):
        for pattern in (Pattern("address"), Pattern("random", 77), Pattern("modulo", 7), Pattern("walking", 9)):
            arguments = (
                np.uint64(memory._pieces[0].pointer), np.uint64(count // 2), np.uint64(first),
                np.uint64(pattern.parameter), np.uint64(0),
            )  # fmt: skip
            memory._kernels[f"write_{pattern.kind}"]((2,), (THREADS,), arguments)
            assert np.array_equal(memory.peek(0, count), pattern.words(first, count)), (first, pattern)


def test_all_that_is_free_is_taken_in_large_pieces_first(cupy: HbmCupy) -> None:
    cupy.free_bytes = 3 * PIECES[0] + 2 * PIECES[1] + PIECES[2] + 1000 + 100
    taken = _memory(cupy).take(0)
    assert list(taken.regions) == cupy.sizes() == [PIECES[0]] * 3 + [PIECES[1]] * 2 + [PIECES[2]]
    assert taken.size_bytes == sum(taken.regions)
    assert (taken.total_bytes, taken.reserve_bytes, taken.cache_bytes) == (1 << 21, 1000, 4096)
    names = cupy.names()
    # An array made before would be cut out of a large block of the pool, which could not go back then.
    assert names.index("free_all_blocks") < names.index("zeros") < names.index("memGetInfo") < names.index("malloc")


def test_memory_in_fragments_is_taken_too(cupy: HbmCupy) -> None:
    cupy.largest_bytes = PIECES[1]
    taken = _memory(cupy).take(0)
    assert max(taken.regions) == PIECES[1]
    assert cupy.free_bytes < 1000 + 2 * PIECES[2]


def test_memory_that_is_not_there_is_said_and_nothing_is_kept(cupy: HbmCupy) -> None:
    memory = _memory(cupy)
    with pytest.raises(DeviceError, match=r"no GPU memory for the memory test: .* of 2097152 bytes .*nvidia-smi"):
        memory.take(1 << 21)
    cupy.free_bytes = 900
    with pytest.raises(DeviceError, match="0 of 0 bytes could be allocated, 900 of 2097152 are free"):
        memory.take(0)
    assert cupy.live == {}


def test_another_error_of_the_device_is_told_and_nothing_is_kept(cupy: HbmCupy) -> None:
    memory = _memory(cupy)
    cupy.failures["malloc"] = CudaError(214, "cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    with pytest.raises(DeviceError, match=r"while taking memory for the memory test .*take the GPU out of use"):
        memory.take(0)
    assert cupy.live == {}


def test_giving_back_goes_on_when_one_piece_fails(cupy: HbmCupy) -> None:
    memory = _memory(cupy)
    memory.take(0)
    cupy.failures["free"] = CudaError(719, "cudaErrorLaunchFailure")
    memory.give_back()
    assert cupy.live == {}
    cupy.calls.clear()
    memory.give_back()
    assert "free" not in cupy.names()


def test_taking_again_gives_back_first(cupy: HbmCupy) -> None:
    memory = _memory(cupy)
    memory.take(0)
    memory.take(PIECES[0])
    assert cupy.sizes() == [PIECES[0]]


# --- the whole check ---


@pytest.fixture
def opened(kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> tuple[CudaDevice, HbmCupy]:
    """The cuda device on a stand-in that computes."""
    fake = HbmCupy(kernels, free_bytes=40_000)
    use_fakes(monkeypatch, fake, FakeLt())
    device = CudaDevice()
    device.open(gpu())
    return device, fake


def test_a_healthy_gpu_passes_and_tells_what_was_not_reached(opened: tuple[CudaDevice, HbmCupy]) -> None:
    device, fake = opened
    result = hbm.Check().run(replace(context(hbm_bytes=0), device=device))
    assert (result.verdict, result.errors) == (Verdict.PASS, ())
    covered = result.coverage.covered_bytes
    assert isinstance(covered, int) and 38_000 < covered <= 39_000
    assert result.coverage.unreachable_bytes == gpu().memory_bytes - covered
    assert str(result.coverage.memory).startswith("device memory, in part from the cache of 4096 bytes")
    assert result.coverage.simulated is False
    assert fake.live == {}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_an_injected_fault_is_found_by_the_kernels(opened: tuple[CudaDevice, HbmCupy], fault: str) -> None:
    device, fake = opened
    result = hbm.Check().run(replace(context(inject=(fault,), hbm_bytes=0), device=device))
    assert [reason.code for reason in result.reasons] == ["HBM_BIT_ERROR"]
    assert fake.live == {}


@pytest.mark.slow
def test_the_selftest_finds_the_whole_table_with_the_kernels(opened: tuple[CudaDevice, HbmCupy]) -> None:
    device, fake = opened
    ctx = replace(context(hbm_bytes=8192), device=device, selftest_full=True)
    results = hbm.Check().selftest(ctx)
    assert [(r.fault.split(" ")[0], r.detected) for r in results] == [(name, True) for name in FAULTS]
    assert all(r.scope == "device buffers" and r.changed_bits for r in results)
    assert fake.live == {}


@pytest.mark.parametrize("act", ["run", "selftest"])
@pytest.mark.parametrize("call", ["verify_random", "write_checker"])
def test_memory_is_given_back_after_an_error(opened: tuple[CudaDevice, HbmCupy], call: str, act: str) -> None:
    device, fake = opened
    fake.failures[call] = CudaError(719, "cudaErrorLaunchFailure: unspecified launch failure")
    with pytest.raises(DeviceError, match="kernel log for an XID"):
        getattr(hbm.Check(), act)(replace(context(hbm_bytes=8192), device=device))
    assert "malloc" in fake.names()
    assert fake.live == {}


def test_what_products_left_is_free_for_the_memory_test(opened: tuple[CudaDevice, HbmCupy]) -> None:
    device, fake = opened
    fake.kernels = None
    with products_on(device) as products:
        assert isinstance(products, CudaProducts)
        products.enqueue_check(device.allocate("fp32", 16, 16), 1, None, 5)
        assert products._kept is not None
    assert products._kept is None


def test_a_closed_device_has_no_memory_to_test() -> None:
    with pytest.raises(DeviceError, match="not open"):
        hbm_port(CudaDevice())
