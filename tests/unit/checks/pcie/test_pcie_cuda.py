"""The cuda device's link without a GPU: the order of calls against a recording stand-in, kernels run on the host."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from gpu_burnin.checks.pcie.cuda import CudaPcie
from gpu_burnin.checks.pcie.port import FAULTS, POISON_WORD, Direction, Kind, Verified, geometry, pcie_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.port import DeviceError
from gpu_burnin.exact.operands import MASK64, random_words
from tests.support.pcie_fakes import CudaError, FakePcieCupy, compile_pcie_kernels

SIZE = 16 << 10


@pytest.fixture(scope="module")
def kernels() -> ctypes.CDLL:
    """The kernels, compiled for the host."""
    return compile_pcie_kernels()


@pytest.fixture
def cupy(kernels: ctypes.CDLL) -> FakePcieCupy:
    return FakePcieCupy(kernels)


@pytest.fixture
def link(cupy: FakePcieCupy) -> CudaPcie:
    """An open, filled link; the calls so far are forgotten."""
    made = CudaPcie(cupy, DeviceErrors(cupy), cupy, 3)
    made.open(SIZE)
    made.fill(5)
    cupy.calls.clear()
    return made


def batch(link: CudaPcie, direction: Direction, copies: int) -> Verified:
    link.begin(direction, copies)
    link.finish()
    return link.verify()


# --- kernels ---


def test_the_source_is_filled_with_the_words_of_the_host(link: CudaPcie) -> None:
    words = random_words(link._key, 0, geometry(SIZE).source_bytes // 8)
    assert np.array_equal(link._device["source"].values, words)
    assert np.array_equal(link._pinned[0].words, words)
    assert set(link._device["ring"].values.tolist()) == {POISON_WORD}


def test_a_look_counts_and_finds_the_first_wrong_word(link: CudaPcie, cupy: FakePcieCupy) -> None:
    words = SIZE // 8
    ring, look = link._device["ring"].values, link._device_comparer(words)
    ring[words : 2 * words] = random_words(link._key, 512, words)
    assert look(1, 4096, None, False).wrong_words == 0
    ring[words + 100], ring[words + 1999] = 7, 8
    seen = look(1, 4096, None, False)
    assert (seen.wrong_words, seen.first_word, seen.got) == (2, 100, 7)
    ring[words + 100] = random_words(link._key, 1024 + 100, 1)[0]
    assert look(1, 4096, 8192, False).first_word == 1999
    ring[words + 1999] = POISON_WORD
    assert look(1, 4096, None, True).first_word == 100
    assert look(1, 4096, None, False).wrong_words == 2
    assert look(0, 0, None, False).wrong_words == words


def test_a_look_that_did_not_happen_is_no_right_copy(link: CudaPcie) -> None:
    look, kernel = link._kernels["pcie_look"], link._kernels
    link.begin("h2d", 2)
    link.finish()
    kernel["pcie_look"] = lambda *call: None
    with pytest.raises(DeviceError, match=rf"of a copy looked at 0 of {SIZE // 8} words: .*did not run"):
        link.verify()
    link.begin("h2d", 2)
    link.finish()
    kernel["pcie_look"] = lambda grid, block, a: look(grid, block, (a[0], np.uint64(int(a[1]) - 1), *a[2:]))
    with pytest.raises(DeviceError, match=rf"{SIZE // 8 - 1} of {SIZE // 8} words"):
        link.verify()


# --- all faults, as on the CPU device ---


@pytest.mark.parametrize("direction", ["h2d", "d2h"])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_told_by_its_kind(link: CudaPcie, fault: Kind, direction: Direction) -> None:
    assert batch(link, direction, 9) == Verified(9, 9 * SIZE)
    link.inject(fault, 11)
    found = batch(link, direction, 5)
    assert [wrong.kind for wrong in found.wrong] == [fault] * (2 if fault is Kind.REORDERED else 1)
    assert {wrong.direction for wrong in found.wrong} == {direction}
    assert batch(link, direction, 5) == Verified(5, 5 * SIZE)


# --- streams, events, memory ---


def test_a_duplex_batch_is_two_streams_from_one_event(link: CudaPcie, cupy: FakePcieCupy) -> None:
    link.begin("duplex", 3)
    assert cupy.names() == ["record", "wait_event", *["memcpyAsync"] * 6, "record", "record"]
    one, other = (stream.ptr for stream in link._streams.values())
    start = cupy.calls[0][1][1]
    assert cupy.calls[1][1] == (other, start)
    assert [arguments[3:] for name, arguments in cupy.calls if name == "memcpyAsync"] == [(1, one), (2, other)] * 3
    assert [arguments[0] for _, arguments in cupy.calls[-2:]] == [one, other]
    ends = [arguments[1] for _, arguments in cupy.calls[-2:]]
    cupy.calls.clear()
    moved = link.finish()
    assert [arguments for _, arguments in cupy.calls] == [(end,) for end in ends]
    assert moved.bytes == 6 * SIZE
    assert moved.seconds == pytest.approx(0.002)  # to the end of the later stream
    assert not link.verify().wrong


def test_copies_of_one_way_wait_for_nothing_of_the_other(link: CudaPcie, cupy: FakePcieCupy) -> None:
    link.begin("d2h", 2)
    assert cupy.names() == ["record", "memcpyAsync", "memcpyAsync", "record"]
    host, device = link._pinned, link._device
    (to, origin, size, kind, _), second = (arguments for name, arguments in cupy.calls if name == "memcpyAsync")
    assert (to, origin, size, kind) == (host[1].address, device["source"].data.ptr, SIZE, 2)
    assert second[:2] == (host[1].address + SIZE, device["source"].data.ptr + 4096)


def test_closing_gives_back_all_memory_even_with_a_batch_under_way(link: CudaPcie, cupy: FakePcieCupy) -> None:
    assert link.pinned().pinned_bytes == geometry(SIZE).source_bytes + geometry(SIZE).ring_bytes
    link.begin("h2d", 2)
    link.close()
    assert cupy.host == {}
    assert cupy.names()[-3:] == ["freeHost", "freeHost", "free_all_blocks"]
    assert "wait" in cupy.names()
    link.close()
    with pytest.raises(DeviceError, match="not open"):
        link.begin("h2d", 1)
    with pytest.raises(DeviceError, match="no batch"):
        link.finish()


@pytest.mark.parametrize("call", ["wait", "freeHost"])
def test_closing_goes_on_after_an_error_of_the_device(link: CudaPcie, cupy: FakePcieCupy, call: str) -> None:
    """What cannot be waited for or given back must not keep the rest, nor hide what went wrong first."""
    link.begin("h2d", 2)
    cupy.failures[call] = CudaError(719, "cudaErrorLaunchFailure")
    if call == "wait":
        with pytest.raises(DeviceError, match="while waiting for copies"):
            link.close()
        assert cupy.host == {}
    else:
        link.close()
    assert cupy.names().count("freeHost") == 2
    assert cupy.names()[-1] == "free_all_blocks"
    assert (link._pinned, link._device) == ([], {})


@pytest.mark.parametrize(
    ("status", "text"), [(2, "cudaErrorMemoryAllocation: out of memory"), (304, "cudaErrorOperatingSystem: OS call")]
)
def test_pinned_memory_that_is_refused_names_the_limit_and_the_fix(cupy: FakePcieCupy, status: int, text: str) -> None:
    cupy.failures["hostAlloc"] = CudaError(status, text)
    link = CudaPcie(cupy, DeviceErrors(cupy), cupy, 3)
    with pytest.raises(DeviceError, match=rf"refused \({text}.*RLIMIT_MEMLOCK .*LimitMEMLOCK=infinity.*ulimit -l"):
        link.open(SIZE)


def test_other_errors_of_pinning_are_not_blamed_on_the_limit(cupy: FakePcieCupy) -> None:
    cupy.failures["hostAlloc"] = CudaError(719, "cudaErrorLaunchFailure")
    with pytest.raises(DeviceError, match=r"CUDA failed while pinning host memory .*XID"):
        CudaPcie(cupy, DeviceErrors(cupy), cupy, 3).open(SIZE)


def test_what_was_pinned_is_given_back_when_device_memory_is_refused(cupy: FakePcieCupy) -> None:
    cupy.failures["empty"] = cupy.cuda.memory.OutOfMemoryError("Out of memory")
    with pytest.raises(DeviceError, match=f"no GPU memory while allocating device memory for copies of {SIZE} bytes"):
        CudaPcie(cupy, DeviceErrors(cupy), cupy, 3).open(SIZE)
    assert cupy.host == {}


def test_an_error_while_waiting_is_the_device_s(link: CudaPcie, cupy: FakePcieCupy) -> None:
    cupy.failures["wait"] = CudaError(214, "cudaErrorECCUncorrectable: uncorrectable ECC error encountered")
    link.begin("h2d", 1)
    with pytest.raises(DeviceError, match=r"while waiting for copies .*take the GPU out of use"):
        link.finish()


def test_a_fresh_look_has_clean_counters(link: CudaPcie) -> None:
    look = link._device_comparer(SIZE // 8)
    assert look(0, 0, None, False).wrong_words == SIZE // 8
    assert look(0, 0, None, False).wrong_words == SIZE // 8
    assert int(link._device["out"].values[1]) != MASK64


def test_the_device_s_link_uses_the_device_s_device(cupy: FakePcieCupy, monkeypatch: pytest.MonkeyPatch) -> None:
    device = CudaDevice()
    device.cupy, device.errors, device.loader = cupy, DeviceErrors(cupy), cupy
    link = pcie_port(device)
    assert not link.simulated
    assert link.open(SIZE) == geometry(SIZE)
    link.close()
