"""NCCL on real GPUs: one rank alone, kernels against the host, planted faults, and all GPUs where there are several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from gpu_burnin.checks.nccl import library as nccl
from gpu_burnin.checks.nccl.check import Check
from gpu_burnin.checks.nccl.cuda import CudaNccl
from gpu_burnin.checks.nccl.operations import (
    COLLECTIVES,
    KINDS,
    Operation,
    Wrong,
    expected_bits,
    operation,
    sent_bits,
)
from gpu_burnin.checks.nccl.port import nccl_port
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.types import Verdict
from tests.support.engine_helpers import context

_SIZE, _LIMIT_S = 16 << 20, 60.0


@pytest.fixture
def port(device: CudaDevice) -> Iterator[CudaNccl]:
    """A port with open buffers."""
    made = nccl_port(device)
    assert isinstance(made, CudaNccl)
    made.open(_SIZE)
    yield made
    made.close()


def _put(port: CudaNccl, op: Operation, bits: NDArray[Any]) -> None:
    """Write a receive buffer."""
    port._recv[: op.recv_bytes].set(bits.view(np.uint8))


@pytest.mark.parametrize(("ranks", "size"), [(8, _SIZE), (63, _SIZE), (700, 64 << 10)])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_the_kernels_make_and_expect_what_the_host_does(
    port: CudaNccl, collective: str, kind: str, ranks: int, size: int
) -> None:
    op = operation(collective, kind, size, ranks, 5, 0xFEED)
    port.fill(op)
    sent = port._send[: op.send_bytes].get().view(f"u{KINDS[kind].size_bytes}")
    assert (sent == sent_bits(op, 5, 0, op.send_elements)).all()
    assert port.verify(op).wrong > 0.99 * op.recv_elements, "nothing has been received yet"
    right = expected_bits(op, 0, op.recv_elements)
    _put(port, op, right)
    assert port.verify(op).wrong == 0
    place = op.recv_elements - 3
    port.flip(op, place, 1)
    assert port.verify(op).recorded == (Wrong(place, int(right[place]) ^ 1),)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_rank_gets_what_it_sends(port: CudaNccl, collective: str, kind: str) -> None:
    port.join([port.offer(0, 1)], 0, "default", _LIMIT_S)
    op = operation(collective, kind, _SIZE, 1, 0, 5)
    port.fill(op)
    port.begin(op, 3, _LIMIT_S)
    assert port.finish(_LIMIT_S) > 0
    assert port.verify(op).wrong == 0
    port.leave(_LIMIT_S)


# An abort that does not come back ends the process it is in, as it should end a worker: not that of the tests.
_NEVER_COMES = """
from gpu_burnin.checks.nccl.port import NcclTimeout, nccl_port
from gpu_burnin.device.cuda import CudaDevice
device = CudaDevice()
device.open(None)
port = nccl_port(device)
port.open(16 << 20)
try:
    port.join([port.offer(0, 2), None], 0, "default", 3.0)
except NcclTimeout:
    print("timeout", flush=True)
port.close()
"""


def test_a_rank_that_never_comes_ends_in_a_timeout() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NEVER_COMES], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout == "timeout\n", done.stderr
    assert done.returncode in (0, os.EX_SOFTWARE), done.stderr


def test_the_log_says_what_was_done(port: CudaNccl) -> None:
    port.join([port.offer(0, 1)], 0, "default", _LIMIT_S)
    assert port.transports().read
    port.leave(_LIMIT_S)


def test_the_library_is_that_of_its_package(port: CudaNccl) -> None:
    assert port.version() == port.expected_version() or nccl.installed_wheel() is None


@pytest.mark.parametrize("fault", ["", "wrong_element", "stale"])
def test_the_check_passes_alone_and_sees_planted_faults(device: CudaDevice, fault: str) -> None:
    inject = (fault,) if fault else ()
    ctx = replace(context(inject, collective_bytes=64 << 20), device=device, level="standard")
    result = Check().run(ctx)
    assert result.verdict is (Verdict.FAIL if fault else Verdict.PASS)
    assert {reason.code for reason in result.reasons} == ({"NCCL_DATA"} if fault else set())


def test_the_selftest_sees_everything(device: CudaDevice) -> None:
    results = Check().selftest(replace(context(), device=device, selftest_full=True))
    assert len(results) == 32 and all(test.detected for test in results)


def test_all_gpus_of_this_machine_together(tmp_path: Path) -> None:
    if len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2:
        pytest.skip("one GPU")
    command = [
        sys.executable,
        "-m",
        "gpu_burnin",
        "run",
        "--level",
        "standard",
        "--backend",
        "cuda",
        "--checks",
        "nccl",
    ]
    done = subprocess.run([*command, "--out", str(tmp_path)], capture_output=True, text=True, check=False)
    (path,) = tmp_path.rglob("report.json")
    checks = [check for check in json.loads(path.read_text())["checks"] if check["name"] == "nccl"]
    assert len(checks) > 1, done.stderr
    assert [check["coverage"]["wrong_elements"] for check in checks] == [0] * len(checks)
    assert all(check["coverage"]["ranks"] == len(checks) for check in checks)
