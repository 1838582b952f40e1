"""NCCL in trouble, without a GPU: calls that fail in a group, aborts that do not come back, kernels that do not run."""

from __future__ import annotations

import ctypes

import pytest
from nccl_fakes import FakeGpu, FakeNccl, compile_kernels

from gpu_burnin.compute import collectives_cuda, nccl
from gpu_burnin.compute.backend import BackendError
from gpu_burnin.compute.collectives import operation
from gpu_burnin.compute.collectives_cuda import CudaCollectives
from gpu_burnin.compute.collectives_port import CollectiveFailed, CollectiveTimeout
from gpu_burnin.compute.cuda_errors import DeviceErrors

_SIZE, _LIMIT_S = 20_000, 5.0


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels as a host library."""
    return compile_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    """libnccl; what the port sets in the environment goes with the test."""
    made = FakeNccl()
    monkeypatch.setattr(nccl, "load_library", lambda: made)
    for name in ("DEBUG", "DEBUG_SUBSYS", "DEBUG_FILE", "ALGO", "SOCKET_IFNAME", "IB_DISABLE"):
        monkeypatch.setenv(f"NCCL_{name}", "")
        monkeypatch.delenv(f"NCCL_{name}")
    return made


@pytest.fixture
def gpu(kernels: ctypes.CDLL) -> FakeGpu:
    """A GPU that computes."""
    return FakeGpu(kernels)


@pytest.fixture
def port(gpu: FakeGpu, library: FakeNccl) -> CudaCollectives:
    """A port with open buffers."""
    made = CudaCollectives(gpu, DeviceErrors(gpu), 1)
    made.open(_SIZE)
    return made


def _join(port: CudaCollectives, ranks: int = 1, rank: int = 0, algorithm: str = "default") -> None:
    offers = [port.offer(0, ranks), *[None] * (ranks - 1)]
    port.join(offers, rank, algorithm, _LIMIT_S)


def test_a_call_that_fails_in_a_group_does_not_leave_the_group_open(port: CudaCollectives, library: FakeNccl) -> None:
    _join(port)
    library.statuses["ncclRecv"] = 5
    with pytest.raises(CollectiveFailed, match=r"^ncclRecv: status 5"):
        port.begin(operation("all_to_all", "fp32", _SIZE, 1, 0, 5), 1, _LIMIT_S)
    port.abort()
    names = library.names()
    assert names.count("ncclGroupStart") == names.count("ncclGroupEnd") == 1
    assert names.index("ncclGroupEnd") < names.index("ncclCommAbort")


@pytest.mark.parametrize("when", ["joining", "running"])
def test_an_abort_that_waits_for_a_hung_rank_holds_up_nothing(
    port: CudaCollectives, gpu: FakeGpu, library: FakeNccl, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    monkeypatch.setattr(nccl, "_ABORT_S", 0.05)
    library.abort_may_end.clear()
    if when == "joining":
        library.stuck = True
        with pytest.raises(CollectiveTimeout):
            port.join([port.offer(0, 2), None], 0, "default", 0.05)
    else:
        _join(port)
        port.abort()
    library.abort_may_end.set()  # the hung rank was killed
    port.close()
    assert library.names().count("ncclCommAbort") == 1
    assert gpu.names().count("free_all_blocks") == 1


def test_a_worker_whose_abort_never_ends_makes_room_for_a_fresh_one(
    gpu: FakeGpu, library: FakeNccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Ended(BaseException):
        pass

    def end(why: str) -> None:
        raise Ended(why)

    monkeypatch.setattr(nccl, "_ABORT_S", 0.05)
    monkeypatch.setattr(collectives_cuda, "_GIVE_UP_S", 0.05)
    port = CudaCollectives(gpu, DeviceErrors(gpu), 1, end)
    port.open(_SIZE)
    _join(port)
    library.abort_may_end.clear()
    with pytest.raises(Ended, match="does not come back from ncclCommAbort"):
        port.close()
    library.abort_may_end.set()
    assert "free_all_blocks" not in gpu.names(), "which would wait for the device"


def test_a_comparison_that_did_not_run_is_no_good_result(
    port: CudaCollectives, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(port._kernels, "collective_verify", lambda *_: None)
    op = operation("all_gather", "fp32", _SIZE, 2, 0, 5)
    with pytest.raises(BackendError, match=rf"looked at 0 of {op.recv_elements} elements: a kernel did not run"):
        port.verify(op)
