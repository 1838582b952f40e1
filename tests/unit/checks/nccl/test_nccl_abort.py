"""NCCL in trouble, without a GPU: calls that fail in a group, aborts that do not come back, kernels that do not run."""

from __future__ import annotations

import pytest

from gpu_burnin.checks.nccl import cuda as collectives_cuda
from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.cuda import CudaNccl
from gpu_burnin.checks.nccl.operations import operation
from gpu_burnin.checks.nccl.port import NcclFailed, NcclTimeout
from gpu_burnin.device.cuda_errors import DeviceErrors
from gpu_burnin.device.port import DeviceError
from tests.support.nccl_fakes import LIMIT_S, SIZE_BYTES, FakeGpu, FakeNccl, join


def test_a_call_that_fails_in_a_group_does_not_leave_the_group_open(
    nccl_port: CudaNccl, nccl_library: FakeNccl
) -> None:
    join(nccl_port)
    nccl_library.statuses["ncclRecv"] = 5
    with pytest.raises(NcclFailed, match=r"^ncclRecv: status 5"):
        nccl_port.begin(operation("all_to_all", "fp32", SIZE_BYTES, 1, 0, 5), 1, LIMIT_S)
    nccl_port.abort()
    names = nccl_library.names()
    assert names.count("ncclGroupStart") == names.count("ncclGroupEnd") == 1
    assert names.index("ncclGroupEnd") < names.index("ncclCommAbort")


@pytest.mark.parametrize("when", ["joining", "running"])
def test_an_abort_that_waits_for_a_hung_rank_holds_up_nothing(
    nccl_port: CudaNccl, nccl_gpu: FakeGpu, nccl_library: FakeNccl, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(nccl, "_ABORT_S", 0.05)
    nccl_library.abort_may_end.clear()
    if when == "joining":
        nccl_library.stuck = True
        with pytest.raises(NcclTimeout):
            nccl_port.join([nccl_port.offer(0, 2), None], 0, "default", 0.05)
    else:
        join(nccl_port)
        nccl_port.abort()
    nccl_library.abort_may_end.set()  # the hung rank was killed
    nccl_port.close()
    assert nccl_library.names().count("ncclCommAbort") == 1
    assert nccl_gpu.names().count("free_all_blocks") == 1


def test_a_worker_whose_abort_never_ends_makes_room_for_a_fresh_one(
    nccl_gpu: FakeGpu, nccl_library: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(why: str) -> None:
        raise Ended(why)

    monkeypatch.setattr(nccl, "_ABORT_S", 0.05)
    monkeypatch.setattr(collectives_cuda, "_GIVE_UP_S", 0.05)
    port = CudaNccl(nccl_gpu, DeviceErrors(nccl_gpu), nccl_gpu, 1, end)
    port.open(SIZE_BYTES)
    join(port)
    nccl_library.abort_may_end.clear()
    with pytest.raises(Ended, match="does not return from ncclCommAbort"):
        port.close()
    nccl_library.abort_may_end.set()
    assert "free_all_blocks" not in nccl_gpu.names(), "which would wait for the device"


def test_a_comparison_that_did_not_run_is_no_good_result(nccl_port: CudaNccl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(nccl_port._kernels, "nccl_verify", lambda *_: None)
    op = operation("all_gather", "fp32", SIZE_BYTES, 2, 0, 5)
    with pytest.raises(DeviceError, match=rf"looked at 0 of {op.recv_elements} elements: a kernel did not run"):
        nccl_port.verify(op)
