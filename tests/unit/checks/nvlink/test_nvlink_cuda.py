"""Copies between GPUs: what the cuda device asks of CUDA, on a stand-in that records it."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from gpu_burnin.checks.nvlink.port import LinkFaults, NvlinkUnavailable
from gpu_burnin.device.port import DeviceError
from tests.support.nvlink_fakes import SIZE, A, B, Host, join, make_cuda


def _names(host: Host) -> list[str]:
    return [call[0] for call in host.calls]


def test_copies_go_whole_on_a_stream_of_their_own_between_events(nvlink_kernels: ctypes.CDLL) -> None:
    shared: dict[bytes, Any] = {}
    (host, one), (_, two) = make_cuda(nvlink_kernels, shared), make_cuda(nvlink_kernels, shared)
    join((one, two))
    host.calls.clear()
    one.begin(B, "write", 3)
    assert _names(host) == ["record", "copy", "copy", "copy", "record"]
    copies = [call for call in host.calls if call[0] == "copy"]
    # cudaMemcpyDefault (4), the whole outbox, on the stream that the events are in.
    assert {call[3:] for call in copies} == {(SIZE, 4, host.calls[0][2])}
    moved = one.finish()
    assert (moved.bytes, moved.seconds) == (3 * SIZE, 3e-3)
    assert _names(host)[-2:] == ["eventDestroy", "eventDestroy"]
    flags = [call[1] for call in host.calls if call[0] == "streamCreate"]
    assert set(flags) <= {1}


def test_several_begins_are_timed_from_the_first_to_the_last(nvlink_kernels: ctypes.CDLL) -> None:
    shared: dict[bytes, Any] = {}
    (host, one), (_, two), (_, three) = (make_cuda(nvlink_kernels, shared) for _ in range(3))
    one.export(A, [B, "GPU-c"], SIZE)
    one.attach(B, two.export(B, [A], SIZE))
    one.attach("GPU-c", three.export("GPU-c", [A], SIZE))
    one.begin(B, "write", 2)
    one.begin("GPU-c", "read", 3)
    assert (moved := one.finish()).bytes == 5 * SIZE and moved.seconds == pytest.approx(5e-3)
    streams = {call[5] for call in host.calls if call[0] == "copy"}
    assert len(streams) == 2
    assert one.finish().bytes == 0


def test_a_slow_link_repeats_each_copy_and_counts_it_once(nvlink_kernels: ctypes.CDLL) -> None:
    shared: dict[bytes, Any] = {}
    (_, one), (other, two) = make_cuda(nvlink_kernels, shared), make_cuda(nvlink_kernels, shared)
    join((one, two), LinkFaults(slow={B: 4}))
    two.begin(A, "read", 1)
    assert (moved := two.finish()).bytes == SIZE and moved.seconds == pytest.approx(4e-3)
    assert _names(other).count("copy") == 4


def test_all_that_was_taken_is_given_back_in_order(nvlink_kernels: ctypes.CDLL) -> None:
    shared: dict[bytes, Any] = {}
    (host, one), (_, two) = make_cuda(nvlink_kernels, shared), make_cuda(nvlink_kernels, shared)
    join((one, two))
    one.close()
    names = _names(host)
    assert names.index("close") < names.index("free")
    assert names.count("streamCreate") == names.count("streamDestroy") == 1
    assert names.count("malloc") == names.count("free") == 1


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (217, "does not allow peer access"),
        (205, "cannot be mapped"),
        (400, "no longer valid"),
        (704, "already in use"),
        (801, "no interprocess handles"),
        (999, "CUDA says an error"),
    ],
)
def test_why_a_handle_cannot_be_opened(nvlink_kernels: ctypes.CDLL, code: int, words: str) -> None:
    shared: dict[bytes, Any] = {}
    (host, one), (_, two) = make_cuda(nvlink_kernels, shared), make_cuda(nvlink_kernels, shared)
    one.export(A, [B], SIZE)
    host.failures["ipcOpenMemHandle"] = code
    with pytest.raises(NvlinkUnavailable, match=words) as caught:
        one.attach(B, two.export(B, [A], SIZE))
    assert caught.value.code == code and B in str(caught.value)
    assert caught.value.by_host is (code == 801)
    one.close()
    assert "close" not in _names(host)  # what was never mapped is not unmapped


def test_memory_that_cannot_be_shared_is_unavailable_and_given_back(nvlink_kernels: ctypes.CDLL) -> None:
    host, one = make_cuda(nvlink_kernels, {})
    host.failures["ipcGetMemHandle"] = 801
    with pytest.raises(NvlinkUnavailable, match="cannot be shared"):
        one.export(A, [B], SIZE)
    one.close()
    assert _names(host).count("free") == 1


def test_a_failing_copy_is_an_error_of_the_device(nvlink_kernels: ctypes.CDLL) -> None:
    shared: dict[bytes, Any] = {}
    (host, one), (_, two) = make_cuda(nvlink_kernels, shared), make_cuda(nvlink_kernels, shared)
    join((one, two))
    host.failures["copy"] = 220
    with pytest.raises(DeviceError, match="copying between GPU-a and GPU-b") as caught:
        one.begin(B, "write", 1)
    assert not isinstance(caught.value, NvlinkUnavailable)


def test_a_loop_on_one_gpu_needs_no_handle(nvlink_kernels: ctypes.CDLL) -> None:
    host, one = make_cuda(nvlink_kernels, {})
    host.failures["ipcGetMemHandle"] = 801  # as in some virtual machines
    one.attach(A, one.export(A, [A], SIZE))
    one.fill(A, 5)
    one.begin(A, "write", 1)
    one.finish()
    assert one.verify(A, 5) == ()
    one.close()


def test_what_went_wrong_unmaps_the_others_and_frees_nothing(nvlink_kernels: ctypes.CDLL) -> None:
    shared: dict[bytes, Any] = {}
    (host, one), (_, two) = make_cuda(nvlink_kernels, shared), make_cuda(nvlink_kernels, shared)
    join((one, two))
    one.abandon()
    one.close()
    names = _names(host)
    assert names.count("close") == 1 and names.count("free") == 0


def test_a_comparison_that_did_not_run_is_no_good_data(
    nvlink_kernels: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one = make_cuda(nvlink_kernels, {})
    one.attach(A, one.export(A, [A], SIZE))
    monkeypatch.setitem(one._kernels, "nvlink_compare", lambda *_: None)
    with pytest.raises(DeviceError, match=r"looked at 0 of 64 words: a kernel did not run"):
        one.verify(A, 5)
