"""NCCL by ctypes and the kernels around it, without a GPU: layout, calls, deadlines, errors, payload bit for bit."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_burnin.checks.nccl import cuda as nccl_cuda
from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.check import Check
from gpu_burnin.checks.nccl.cuda import CudaNccl, Log
from gpu_burnin.checks.nccl.operations import (
    COLLECTIVES,
    KINDS,
    MOST_RECORDED,
    Operation,
    Wrong,
    expected_bits,
    operation,
    sent_bits,
)
from gpu_burnin.checks.nccl.port import NcclFailed, NcclMissing, NcclTimeout
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.port import DeviceError, DeviceFault
from gpu_burnin.types import Verdict
from tests.support import coverages
from tests.support.clocks import HandClock, use
from tests.support.cuda_fakes import STREAM
from tests.support.devices import DeviceWith
from tests.support.engine_helpers import context
from tests.support.nccl_fakes import COMM, LIMIT_S, SIZE_BYTES, FakeGpu, FakeNccl, join


def _bits(buffer: Any, op: Operation, count: int) -> np.ndarray[Any, Any]:
    size = KINDS[op.kind].size_bytes
    found: np.ndarray[Any, Any] = buffer.get()[: count * size].view(f"u{size}")
    return found


# --- kernels ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_kernels_make_and_expect_what_the_host_does(nccl_port: CudaNccl, collective: str, kind: str) -> None:
    op = operation(collective, kind, SIZE_BYTES, 5, 3, 0xFEED)
    nccl_port.fill(op)
    assert (_bits(nccl_port._send, op, op.send_elements) == sent_bits(op, 3, 0, op.send_elements)).all()
    assert (nccl_port._recv.get()[: op.recv_bytes] == 0xFF).all()
    right = expected_bits(op, 0, op.recv_elements)
    raw = np.zeros(SIZE_BYTES, dtype=np.uint8)
    raw[: op.recv_bytes] = right.view(np.uint8)
    nccl_port._recv.set(raw)
    assert nccl_port.verify(op).wrong == 0
    place = op.recv_elements - 2
    nccl_port.flip(op, place, 1)
    outcome = nccl_port.verify(op)
    assert (outcome.wrong, outcome.recorded) == (1, (Wrong(place, int(right[place]) ^ 1),))
    assert outcome.compared == op.recv_elements
    if op.adds:
        assert outcome.by_source == ()
    else:
        assert outcome.by_source == (0, 0, 0, 0, 1)
        nccl_port.flip(op, 0, 1)
        nccl_port.flip(op, op.chunk, 1)
        assert nccl_port.verify(op).by_source == (1, 1, 0, 0, 1)


def test_a_buffer_that_was_never_written_is_wrong_nearly_everywhere(nccl_port: CudaNccl) -> None:
    op = operation("all_reduce", "fp32", SIZE_BYTES, 4, 0, 1)
    nccl_port.fill(op)
    outcome = nccl_port.verify(op)
    assert outcome.wrong == op.recv_elements
    assert len(outcome.recorded) == MOST_RECORDED
    assert {wrong.got for wrong in outcome.recorded} == {0xFFFFFFFF}


def test_the_last_rank_of_many_is_counted(nccl_port: CudaNccl) -> None:
    op = operation("all_reduce", "int64", SIZE_BYTES, 16, 0, 9)
    raw = np.zeros(SIZE_BYTES, dtype=np.uint8)
    without_last = expected_bits(op, 0, op.recv_elements) - sent_bits(op, 15, 0, op.recv_elements)
    raw[: op.recv_bytes] = without_last.view(np.uint8)
    nccl_port._recv.set(raw)
    assert nccl_port.verify(op).wrong == op.recv_elements


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_kernels_do_so_for_ranks_of_many_hosts(nccl_port: CudaNccl, collective: str, kind: str) -> None:
    """In bf16 three groups of them; the last rank is the wrong one."""
    op = operation(collective, kind, SIZE_BYTES, 601, 400, 0xFEED)
    assert op.groups == (3 if kind == "bf16" and op.adds else 1)
    nccl_port.fill(op)
    assert (_bits(nccl_port._send, op, op.send_elements) == sent_bits(op, 400, 0, op.send_elements)).all()
    raw = np.zeros(SIZE_BYTES, dtype=np.uint8)
    raw[: op.recv_bytes] = expected_bits(op, 0, op.recv_elements).view(np.uint8)
    nccl_port._recv.set(raw)
    nccl_port.flip(op, op.recv_elements - 1, 1)
    outcome = nccl_port.verify(op)
    assert (outcome.wrong, outcome.recorded[0].position) == (1, op.recv_elements - 1)
    assert outcome.by_source == (() if op.adds else (*[0] * 600, 1))


# --- operations ---


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_gets_what_it_sends(nccl_port: CudaNccl, collective: str, kind: str) -> None:
    join(nccl_port)
    op = operation(collective, kind, SIZE_BYTES, 1, 0, 5)
    nccl_port.fill(op)
    nccl_port.begin(op, 3, LIMIT_S)
    assert nccl_port.finish(LIMIT_S) == pytest.approx(3e-3), "a tick of the stand-in for each, in seconds"
    outcome = nccl_port.verify(op)
    assert (outcome.wrong, outcome.compared) == (0, 3 * op.recv_elements)
    nccl_port.leave(LIMIT_S)


def test_what_came_before_does_not_pass_for_the_result(nccl_port: CudaNccl, nccl_library: FakeNccl) -> None:
    """A small operation goes before what is timed; a part of it would be right for the next one too."""
    join(nccl_port)
    op = operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5)
    nccl_port.fill(op)
    nccl_port.begin(operation("all_reduce", "fp32", 0, 1, 0, 5), 1, LIMIT_S)
    nccl_library._ncclAllReduce = lambda *_: None  # type: ignore[method-assign]  # the operation is lost
    nccl_port.begin(op, 1, LIMIT_S)
    nccl_port.finish(LIMIT_S)
    assert nccl_port.verify(op).wrong == op.recv_elements


_CODES = {"int32": 2, "int64": 4, "fp32": 7, "bf16": 9}


@pytest.mark.parametrize("kind", KINDS)
def test_arguments_are_those_of_the_header(nccl_port: CudaNccl, nccl_library: FakeNccl, kind: str) -> None:
    join(nccl_port)
    send, recv = nccl_port._send.data.ptr, nccl_port._recv.data.ptr
    communicator = nccl.Communicator(nccl.Nccl(nccl_library), "ab" * 128, 1, 4, time.monotonic() + LIMIT_S)
    item, code = KINDS[kind].size_bytes, _CODES[kind]
    for collective in COLLECTIVES:
        nccl_library.calls.clear()
        communicator.launch(collective, send, recv, 8, kind, item, STREAM, time.monotonic() + LIMIT_S)
        calls = [
            (name, tuple(getattr(x, "value", x) for x in arguments))
            for name, arguments in nccl_library.calls
            if name != "ncclCommGetAsyncError"
        ]
        assert (
            calls
            == {
                "all_reduce": [("ncclAllReduce", (send, recv, 32, code, 0, COMM, STREAM))],
                "reduce_scatter": [("ncclReduceScatter", (send, recv, 8, code, 0, COMM, STREAM))],
                "all_gather": [("ncclAllGather", (send, recv, 8, code, COMM, STREAM))],
                "all_to_all": [
                    ("ncclGroupStart", ()),
                    *(
                        call
                        for peer in range(4)
                        for call in (
                            ("ncclSend", (send + peer * 8 * item, 8 * item, 1, peer, COMM, STREAM)),
                            ("ncclRecv", (recv + peer * 8 * item, 8 * item, 1, peer, COMM, STREAM)),
                        )
                    ),
                    ("ncclGroupEnd", ()),
                ],
            }[collective]
        )


def test_events_stand_around_what_is_timed_and_nothing_waits_for_the_device(
    nccl_port: CudaNccl, nccl_gpu: FakeGpu, nccl_library: FakeNccl
) -> None:
    join(nccl_port)
    op = operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5)
    nccl_gpu.calls.clear()
    nccl_port.begin(op, 20, LIMIT_S)
    nccl_port.finish(LIMIT_S)
    one, between = ["record", "record"], ["nccl_keys", "nccl_verify"]  # poisoning is a copy of the stand-in's memory
    assert nccl_gpu.names() == [*one, *(between + one) * 19]
    assert nccl_library.names().count("ncclAllReduce") == 20


@pytest.mark.parametrize("spoiled", range(4))
def test_each_operation_of_a_row_is_compared_on_the_device(
    nccl_port: CudaNccl, nccl_library: FakeNccl, spoiled: int
) -> None:
    """A bit that only one of them brings wrong, and one that never came though the one before was right."""
    join(nccl_port)
    op = operation("all_gather", "int64", SIZE_BYTES, 1, 0, 5)
    gather, done = nccl_library._ncclAllGather, []

    def spoils(send: int, recv: int, *rest: Any) -> None:
        if len(done) != spoiled + 4:
            gather(send, recv, *rest)
        if len(done) == spoiled:
            ctypes.c_uint64.from_address(recv + 24).value ^= 1 << 40
        done.append(True)

    nccl_library._ncclAllGather = spoils  # type: ignore[method-assign]
    for wrong in (1, op.recv_elements):
        nccl_port.fill(op)
        nccl_port.begin(op, 4, LIMIT_S)
        nccl_port.finish(LIMIT_S)
        outcome = nccl_port.verify(op)
        assert (outcome.compared, outcome.wrong) == (4 * op.recv_elements, wrong)
        poison = {found.got for found in outcome.recorded} == {(1 << 64) - 1}
        assert poison if wrong > 1 else [found.position for found in outcome.recorded] == [3]


def test_a_comparison_within_a_row_that_did_not_run_is_noticed(
    nccl_port: CudaNccl, nccl_gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(nccl_port)
    op = operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5)
    nccl_port.fill(op)
    launch, launches = nccl_port._launch, []

    def loses(kernel: str, *arguments: Any) -> None:
        launches.append(kernel)
        if len(launches) != 2:
            launch(kernel, *arguments)

    monkeypatch.setattr(nccl_port, "_launch", loses)
    nccl_port.begin(op, 4, LIMIT_S)
    nccl_port.finish(LIMIT_S)
    with pytest.raises(DeviceError, match="a kernel did not run"):
        nccl_port.verify(op)


# --- communicators ---


def test_a_communicator_never_blocks_and_has_the_whole_config(nccl_port: CudaNccl, nccl_library: FakeNccl) -> None:
    join(nccl_port, ranks=8, rank=3)
    assert nccl_library.joined == (8, b"\xab" * 128, 3)
    config = nccl_library.config
    assert (config.size, config.magic, config.version, config.blocking) == (120, 0xCAFEBEEF, 23203, 0)
    rest = {name: getattr(config, name) for name, _ in nccl.Config._fields_[4:]}
    assert {value for name, value in rest.items() if not name.endswith("Name")} == {-(1 << 31)}
    assert rest["netName"] is None and rest["commName"] is None
    assert nccl.Config.netName.offset == 32 and nccl.Config.commName.offset == 48


def test_what_is_in_progress_is_waited_for_before_the_end_is_recorded(
    nccl_port: CudaNccl, nccl_gpu: FakeGpu, nccl_library: FakeNccl
) -> None:
    join(nccl_port)
    nccl_library.statuses["ncclAllReduce"] = 7
    nccl_library.states = [7, 7, 7, 7]
    seen: list[int] = []
    note = nccl_gpu.note
    nccl_gpu.note = lambda name, *rest: (seen.append(len(nccl_library.states)), note(name, *rest))[1]  # type: ignore[method-assign]
    nccl_port.begin(operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5), 1, LIMIT_S)
    assert seen == [4, 0], "the state was asked until it was no longer in progress, then the end recorded"


@pytest.mark.parametrize("algorithm", ["default", "ring", "nvls"])
def test_the_algorithm_is_set_when_the_communicator_is_made(
    nccl_port: CudaNccl, nccl_library: FakeNccl, algorithm: str
) -> None:
    os.environ["NCCL_ALGO"] = "tree"
    seen: list[str | None] = []
    nccl_library._ncclCommInitRankConfig = lambda *rest: seen.append(os.environ.get("NCCL_ALGO"))  # type: ignore[method-assign]
    join(nccl_port, algorithm=algorithm)
    assert seen == [None if algorithm == "default" else algorithm]
    nccl_port.close()
    assert "NCCL_ALGO" not in os.environ


def test_ranks_that_do_not_come_end_in_a_timeout_and_an_abort(nccl_port: CudaNccl, nccl_library: FakeNccl) -> None:
    nccl_library.stuck = True
    with pytest.raises(NcclTimeout, match="ncclCommInitRankConfig did not end"):
        nccl_port.join([nccl_port.offer(0, 2), None], 0, "default", 0.05)
    assert nccl_library.names()[-1] == "ncclCommAbort"


def test_a_device_that_hangs_ends_in_a_timeout_and_an_abort(
    nccl_port: CudaNccl, nccl_gpu: FakeGpu, nccl_library: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    join(nccl_port)
    nccl_gpu.hangs = True
    nccl_port.begin(operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5), 1, LIMIT_S)
    clock = HandClock()
    use(monkeypatch, clock, nccl, nccl_cuda)
    with pytest.raises(NcclTimeout, match="all_reduce did not end"):
        nccl_port.finish(0.05)
    assert 0.05 < clock.now_s < 0.1
    nccl_port.abort()
    nccl_port.abort()
    assert nccl_library.names().count("ncclCommAbort") == 1


def test_a_device_that_fails_is_not_taken_for_one_that_hangs(nccl_port: CudaNccl, nccl_gpu: FakeGpu) -> None:
    """It would be a timeout of all ranks, with nobody to blame."""
    join(nccl_port)
    nccl_port.begin(operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5), 1, LIMIT_S)
    nccl_gpu.status = 214  # cudaErrorECCUncorrectable
    with pytest.raises(
        DeviceFault, match=r"CUDA failed while running all_reduce .*uncorrectable memory error"
    ) as fault:
        nccl_port.finish(0.05)
    assert fault.value.reason_code == "ECC_UNCORRECTED"
    nccl_gpu.status = 0


def test_an_error_that_comes_later_is_told(nccl_port: CudaNccl, nccl_gpu: FakeGpu, nccl_library: FakeNccl) -> None:
    join(nccl_port)
    nccl_port.begin(operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5), 1, LIMIT_S)
    nccl_gpu.hangs = True
    nccl_library.states = [6]
    with pytest.raises(NcclFailed, match=r"status 6 \(remote process exited; Cuda failure 'out of memory'\)"):
        nccl_port.finish(LIMIT_S)


@pytest.mark.parametrize("name", ["ncclAllReduce", "ncclCommFinalize", "ncclCommDestroy", "ncclCommInitRankConfig"])
def test_every_status_but_success_and_in_progress_is_an_error(
    nccl_port: CudaNccl, nccl_library: FakeNccl, name: str
) -> None:
    if name != "ncclCommInitRankConfig":
        join(nccl_port)
    nccl_library.statuses[name] = 1
    with pytest.raises(NcclFailed, match=rf"^{name}: status 1 \(unhandled cuda error; .*XID"):
        join(nccl_port)
        nccl_port.begin(operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5), 1, LIMIT_S)
        nccl_port.leave(LIMIT_S)


def test_leaving_finalizes_before_it_destroys_and_close_gives_the_memory_back(
    nccl_port: CudaNccl, nccl_gpu: FakeGpu, nccl_library: FakeNccl
) -> None:
    join(nccl_port)
    nccl_library.states = [7, 0]
    nccl_port.leave(LIMIT_S)
    nccl_port.close()
    nccl_port.close()
    assert nccl_library.names()[-2:] == ["ncclCommFinalize", "ncclCommDestroy"]
    assert nccl_gpu.names().count("free_all_blocks") == 1
    assert nccl_port._send is None and nccl_port._recv is None


def test_what_is_still_joined_is_aborted_by_close(nccl_port: CudaNccl, nccl_library: FakeNccl) -> None:
    join(nccl_port)
    nccl_port.close()
    assert nccl_library.names()[-1] == "ncclCommAbort"


# --- the library ---


def test_only_the_first_rank_makes_an_id(nccl_port: CudaNccl, nccl_library: FakeNccl) -> None:
    assert nccl_port.offer(1, 2) is None
    assert nccl_port.offer(0, 2) == "ab" * 128
    assert nccl_library.names().count("ncclGetUniqueId") == 1


def test_version_and_the_oldest_one(nccl_port: CudaNccl, nccl_library: FakeNccl, nccl_gpu: FakeGpu) -> None:
    assert nccl_port.version() == "2.32.3"
    nccl_library.code = 21705
    with pytest.raises(NcclMissing, match=r"NCCL 2\.17\.5 is too old, 2\.18\.1 is the oldest"):
        CudaNccl(nccl_gpu, DeviceErrors(nccl_gpu), nccl_gpu, 1).version()


def test_the_log_is_kept_in_memory_and_read_from_where_a_communicator_starts(
    nccl_port: CudaNccl, nccl_library: FakeNccl
) -> None:
    def say(*rest: Any) -> None:
        with Path(os.environ["NCCL_DEBUG_FILE"]).open("a") as log:
            log.write(f"h:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> {len(nccl_library.calls)}[1] via P2P/CUMEM\n")

    nccl_library._ncclCommInitRankConfig = say  # type: ignore[method-assign]
    assert not nccl_port.transports().read
    join(nccl_port)
    first = nccl_port.transports().routes
    nccl_port.abort()
    join(nccl_port)
    second = nccl_port.transports().routes
    assert len(first) == len(second) == 1 and first != second
    assert os.environ["NCCL_DEBUG"] == "INFO"
    # The ranks of one node need no network.
    assert (os.environ["NCCL_SOCKET_IFNAME"], os.environ["NCCL_IB_DISABLE"]) == ("=lo", "1")
    assert {"INIT", "P2P", "SHM", "NET", "TUNING"} <= set(os.environ["NCCL_DEBUG_SUBSYS"].split(","))
    again = Log()
    again.start()
    assert again.size() > 0, "the library opens its file once, so a later port reads the same"


def test_a_process_that_inherits_the_log_of_its_parent_makes_one_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG_FILE", f"/proc/{os.getppid()}/fd/5")
    log = Log()
    log.start()
    assert log.size() == 0
    assert os.environ["NCCL_DEBUG_FILE"].startswith(f"/proc/{os.getpid()}/fd/")


def test_a_failing_device_is_a_device_error(nccl_port: CudaNccl, nccl_gpu: FakeGpu) -> None:
    nccl_gpu.failures["nccl_fill"] = nccl_gpu.runtime.CUDARuntimeError(700, "illegal address")
    with pytest.raises(DeviceError, match="launching nccl_fill"):
        nccl_port.fill(operation("all_reduce", "fp32", SIZE_BYTES, 1, 0, 5))


class _Real(DeviceWith):
    simulated = False


def _real(gpu: FakeGpu) -> _Real:
    """A device that is no simulation."""
    return _Real(nccl=lambda: CudaNccl(gpu, DeviceErrors(gpu), gpu, 1))


@pytest.mark.slow
def test_the_whole_check_runs_on_one_gpu_in_the_order_of_its_curves(nccl_gpu: FakeGpu, nccl_library: FakeNccl) -> None:
    ctx = replace(context(collective_bytes=1 << 16), device=_real(nccl_gpu), level="standard")
    result = Check().run(ctx)
    assert (result.verdict, result.reasons, result.errors) == (Verdict.PASS, (), ())
    curves = coverages.nccl(result).curves
    run = [(curve.algorithm, curve.collective) for curve in curves if curve.points]
    assert run == [
        *(("default", name) for name in COLLECTIVES), *(("ring", name) for name in COLLECTIVES[:3]),
    ]  # fmt: skip
    assert [curve.why for curve in curves if not curve.points] == ["not all GPUs have NVLS multicast"]
    assert nccl_library.names().count("ncclCommInitRankConfig") == nccl_library.names().count("ncclCommDestroy") == 2
    assert coverages.nccl(result).version == "2.32.3"


@pytest.mark.parametrize(("free_bytes", "largest"), [(1 << 40, 1 << 16), (1 << 16, 1 << 14), (1, 4096)])
def test_messages_are_as_large_as_there_is_room_for(
    nccl_gpu: FakeGpu, nccl_library: FakeNccl, free_bytes: int, largest: int
) -> None:
    nccl_gpu.free_bytes = free_bytes
    result = Check().run(replace(context(collective_bytes=1 << 16), device=_real(nccl_gpu)))
    assert result.verdict is Verdict.PASS
    curves = coverages.nccl(result).curves
    assert {curve.points[-1].size_bytes for curve in curves if curve.points} == {largest}
    assert "8 GPUs" in str(coverages.nccl(result).no_floor_why)


def test_what_is_timed_starts_behind_a_small_operation(nccl_gpu: FakeGpu, nccl_library: FakeNccl) -> None:
    Check().run(replace(context(collective_bytes=4096), device=_real(nccl_gpu)))
    counts = [arguments[2] for name, arguments in nccl_library.calls if name == "ncclAllReduce"]
    # One size: to connect, warm-up, a small one and the timed one; then a small one for each other collective.
    assert counts[:4] == [1024, 1024, 4, 1024]
    assert counts.count(4) == 4
