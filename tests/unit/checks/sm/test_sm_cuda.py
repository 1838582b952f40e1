"""The CUDA kernels of the sm check, compiled for the host, and the launches around them. No GPU is used."""

from __future__ import annotations

import ctypes
import platform
import re
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from gpu_burnin.checks.sm import cuda as sm_cuda
from gpu_burnin.checks.sm.cuda import CudaSm
from gpu_burnin.checks.sm.faults import make_fault
from gpu_burnin.checks.sm.golden import expected
from gpu_burnin.checks.sm.judge import judge
from gpu_burnin.checks.sm.kernels import FUNCTIONS, KERNELS, MOVED, THREADS, UNWRITTEN, words
from tests.support import sm_host_gpu as host
from tests.support.sm_host_gpu import HostGpu, compile_kernels

ROUNDS = {"fp32": 20, "fp64": 20, "int": 20, "special": 3, "shuffle": 40, "shared": 15, "atomic": 5}
SEED = 0xBEEF


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compile_kernels()


@pytest.fixture
def gpu(library: ctypes.CDLL) -> HostGpu:
    return HostGpu(library)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_give_the_row_that_the_host_expects(library: ctypes.CDLL, kernel: str) -> None:
    gpu, rounds = HostGpu(library, sms=2), ROUNDS[kernel]
    run = CudaSm(gpu, nullcontext, gpu).run(kernel, SEED, rounds)
    golden = expected(kernel, SEED, rounds)
    assert run.rows.shape == (run.smid.size, words(kernel, rounds))
    assert [int(golden.wrong(row).sum()) for row in run.rows] == [0] * run.smid.size
    assert judge(run, golden).covered == frozenset(range(2))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sets the x86 mode that takes subnormals for 0")
@pytest.mark.parametrize("kernel", ["fp32", "special"])
def test_taking_subnormals_for_zero_changes_no_row(library: ctypes.CDLL, kernel: str) -> None:
    """The goldens are those of IEEE 754, and hold under -ftz=true too."""
    mode = ctypes.c_int.in_dll(library, "flushing")
    gpu = HostGpu(library, sms=1)
    rows = []
    for mode.value in (1, 0):
        rows.append(CudaSm(gpu, nullcontext, gpu).run(kernel, SEED, 64).rows[0])
    assert np.array_equal(*rows)
    assert not expected(kernel, SEED, 64).wrong(rows[0]).any()


@pytest.mark.parametrize("shared_kib", [32, 99, 163, 227])
def test_shared_memory_is_tested_to_its_end_with_the_same_result(library: ctypes.CDLL, shared_kib: int) -> None:
    gpu = HostGpu(library, sms=1, shared_bytes=shared_kib << 10)
    run = CudaSm(gpu, nullcontext, gpu).run("shared", SEED, 9)
    assert not expected("shared", SEED, 9).wrong(run.rows[0]).any()
    memory = (ctypes.c_uint32 * (64 << 10)).in_dll(library, "dynamic_memory")
    untouched = np.frombuffer(memory, dtype=np.uint32)[: shared_kib << 8] == 0xEEEEEEEE
    assert untouched.sum() == 0


def test_each_launch_has_a_block_for_every_sm_and_all_shared_memory(gpu: HostGpu) -> None:
    runner = CudaSm(gpu, nullcontext, gpu)
    for kernel in KERNELS:
        runner.run(kernel, SEED, 1)
    assert gpu.compiled == [sm_cuda.SOURCE]
    expected_calls = [(f"sm_{kernel}", (4,), (THREADS,), 48 << 10) for kernel in KERNELS for _ in range(2)]
    assert gpu.launches == expected_calls


def test_launches_go_on_until_every_sm_was_seen(gpu: HostGpu) -> None:
    gpu.place = lambda launch, blocks: [launch % 4] * blocks
    run = CudaSm(gpu, nullcontext, gpu).run("int", SEED, 1)
    assert (run.launches, len(gpu.launches)) == (4, 4)
    assert judge(run, expected("int", SEED, 1)).covered == frozenset(range(4))


def test_an_sm_that_never_comes_ends_the_launches_at_a_bound(gpu: HostGpu) -> None:
    gpu.place = lambda launch, blocks: [b % 3 for b in range(blocks)]
    run = CudaSm(gpu, nullcontext, gpu).run("int", SEED, 1)
    assert run.launches == 16
    assert judge(run, expected("int", SEED, 1)).covered == frozenset(range(3))


def test_ids_with_holes_are_known_by_nsmid(library: ctypes.CDLL) -> None:
    gpu = HostGpu(library, sms=4, ids=9)
    gpu.place = lambda launch, blocks: [0, 3, 5, 8]
    verdicts = judge(CudaSm(gpu, nullcontext, gpu).run("int", SEED, 1), expected("int", SEED, 1))
    assert verdicts.clean and verdicts.covered == frozenset({0, 3, 5, 8})


def test_an_id_beyond_nsmid_is_noticed(gpu: HostGpu) -> None:
    gpu.place = lambda launch, blocks: [0, 1, 2, 4]
    assert judge(CudaSm(gpu, nullcontext, gpu).run("int", SEED, 1), expected("int", SEED, 1)).unknown_ids == (4,)


def test_a_block_that_changes_its_sm_counts_for_none(gpu: HostGpu) -> None:
    gpu.place = lambda launch, blocks: list(range(blocks))
    gpu.leaves = lambda launch, blocks: [1, 1, 2, 3]
    run = CudaSm(gpu, nullcontext, gpu).run("shared", SEED, 1)  # it waits at barriers, so it can move
    assert (run.smid == MOVED).sum() == run.launches
    assert judge(run, expected("shared", SEED, 1)).covered == frozenset({1, 2, 3})


def test_a_launch_that_does_not_run_leaves_nothing_of_an_earlier_one(
    gpu: HostGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = CudaSm(gpu, nullcontext, gpu)
    launch = gpu.library.launch
    monkeypatch.setattr(gpu, "library", _OnlyFirst(gpu.library, launch))
    run = runner.run("int", SEED, 1)
    assert (run.smid[:4] >= 0).all() and (run.smid[4:] == UNWRITTEN).all()
    assert judge(run, expected("int", SEED, 1)).silent == run.smid.size - 4


class _OnlyFirst:
    """A library whose launches do nothing but for the first."""

    def __init__(self, library: ctypes.CDLL, launch: object) -> None:
        self._library, self._launch = library, launch

    def __getattr__(self, name: str) -> object:
        return getattr(self._library, name)

    def launch(self, *arguments: object) -> None:
        launch, self._launch = self._launch, lambda *_: None
        launch(*arguments)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        *(("bitflip", kernel) for kernel in KERNELS if kernel != "special"),
        ("stuck_bit", "fp32"), ("dropped_lane", "shuffle"), ("lost_atomic", "atomic"), ("wrong_special", "special"),
    ],
)  # fmt: skip
def test_faults_in_the_devices_buffers_name_their_sm(gpu: HostGpu, name: str, kernel: str) -> None:
    fault = make_fault(name, 5, kernel)
    verdicts = judge(CudaSm(gpu, nullcontext, gpu).run(kernel, SEED, 2, fault), expected(kernel, SEED, 2))
    assert [wrong.sm for wrong in verdicts.wrong] == [fault.sm % 4]


def test_faults_of_all_sms_of_ids_and_of_launches(gpu: HostGpu) -> None:
    runner = CudaSm(gpu, nullcontext, gpu)
    golden = expected("special", SEED, 1)
    assert judge(runner.run("special", SEED, 1, make_fault("special_everywhere", 5)), golden).common is not None
    golden = expected("int", SEED, 1)
    assert judge(runner.run("int", SEED, 1, make_fault("bad_smid", 5)), golden).unknown_ids == (21,)
    assert len(judge(runner.run("int", SEED, 1, make_fault("absent_sm", 5)), golden).covered) == 3
    before = len(gpu.launches)
    assert judge(runner.run("int", SEED, 1, make_fault("skipped_launch", 5)), golden).silent > 0
    assert len(gpu.launches) == before


def test_what_only_a_gpu_has_is_in_the_primitives_alone() -> None:
    assert "asm" not in host.KERNELS and "extern __shared__" not in host.KERNELS
    made = re.findall(r"APPROXIMATE\((\w+)\)", host.PRIMITIVES)[1:]
    assert tuple(made) == FUNCTIONS[:8]
    assert set(re.findall(r"sp_(\w+)\(", host.KERNELS)) == set(made)
    assert 'asm(#name ".approx.f32 %0, %1;" : "=f"(y) : "f"(x))' in host.PRIMITIVES
    for kernel in KERNELS:
        assert f"KERNEL(sm_{kernel})" in host.KERNELS


def test_nothing_is_imported_or_compiled_before_it_is_needed(gpu: HostGpu) -> None:
    runner = CudaSm(gpu, nullcontext, gpu)
    assert (runner.multiprocessors, runner.shared_bytes, gpu.compiled) == (4, 48 << 10, [])
    assert "import cupy" not in Path(sm_cuda.__file__).read_text()
