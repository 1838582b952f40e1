"""Copies between GPUs on real hardware. With one GPU: between two processes on it, and from it to itself. With several:
the whole check with a worker for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_burnin.checks.nvlink.check import Check
from gpu_burnin.checks.nvlink.port import DATA_FAULTS, DIRECTIONS, PIECES, Direction, nvlink_port, transfer_key
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.types import Verdict
from tests.support import coverages
from tests.support.engine_helpers import context

_SIZE = 8 << 20
_ROOT = Path(__file__).resolve().parents[2]
_OTHER = f"""
import json, sys
from gpu_burnin.device.cuda import CudaDevice
from gpu_burnin.checks.nvlink.port import nvlink_port, transfer_key
device = CudaDevice()
device.open(None)
port = nvlink_port(device)
handle = port.export("GPU-b", ["GPU-a"], {_SIZE})
port.fill("GPU-a", transfer_key(7, "GPU-b", "GPU-a", 1))
port.clear("GPU-a")
print(json.dumps(handle), flush=True)
for line in sys.stdin:
    found = port.verify("GPU-a", transfer_key(7, "GPU-a", "GPU-b", 1))
    print(json.dumps([fault.kind for fault in found]), flush=True)
port.close()
device.close()
"""


@pytest.fixture
def other() -> Iterator[subprocess.Popen[str]]:
    """Another process with a window on the second GPU where there is one, else on the same."""
    import cupy

    device = "1" if cupy.cuda.runtime.getDeviceCount() > 1 else "0"
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = seen.split(",")[int(device)] if seen else device
    process = subprocess.Popen(
        [sys.executable, "-c", _OTHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": chosen, "PYTHONPATH": str(_ROOT)},
    )
    yield process
    assert process.stdin is not None
    process.stdin.close()
    process.wait(timeout=60)


def _line(process: subprocess.Popen[str]) -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def _ask(process: subprocess.Popen[str]) -> Any:
    assert process.stdin is not None
    process.stdin.write("verify\n")
    return _line(process)


def test_memory_of_another_process_is_written_and_read(device: CudaDevice, other: subprocess.Popen[str]) -> None:
    port = nvlink_port(device)
    try:
        port.export("GPU-a", ["GPU-b"], _SIZE)
        port.attach("GPU-b", _line(other))
        port.fill("GPU-b", transfer_key(7, "GPU-a", "GPU-b", 1))
        port.clear("GPU-b")
        assert _ask(other) == ["dropped"] * PIECES
        port.begin("GPU-b", "write", 2)
        port.begin("GPU-b", "read", 2)
        moved = port.finish()
        assert moved.bytes == 4 * _SIZE and moved.seconds > 0
        assert _ask(other) == []
        assert port.verify("GPU-b", transfer_key(7, "GPU-b", "GPU-a", 1)) == ()
    finally:
        port.close()


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_each_fault_is_seen_on_the_device(device: CudaDevice, direction: Direction, fault: str) -> None:
    port, key = nvlink_port(device), transfer_key(7, "GPU-a", "GPU-a", 1)
    try:
        port.attach("GPU-a", port.export("GPU-a", ["GPU-a"], _SIZE))
        port.fill("GPU-a", key)
        port.clear("GPU-a")
        port.begin("GPU-a", direction, 1)
        port.finish()
        assert port.verify("GPU-a", key) == ()
        port.clear("GPU-a")
        port.inject("GPU-a", fault)
        port.begin("GPU-a", direction, 1)
        port.finish()
        assert {one.kind for one in port.verify("GPU-a", key)} == {fault}
    finally:
        port.close()


def test_the_check_has_no_pair_on_one_gpu_and_its_selftest_sees_everything(device: CudaDevice) -> None:
    ctx = replace(context(transfer_bytes=_SIZE), device=device, selftest_full=True)
    result = Check().run(ctx)
    assert (result.verdict, coverages.nvlink(result).pairs_total) == (Verdict.PASS, 0)
    tests = Check().selftest(ctx)
    assert tests and [test.fault for test in tests if not (test.injected and test.detected)] == []


def test_all_pairs_of_the_node_are_covered(tmp_path: Path) -> None:
    import cupy

    count = cupy.cuda.runtime.getDeviceCount()
    if count < 2:
        pytest.skip("one GPU: there is no pair")
    command = [sys.executable, "-m", "gpu_burnin", "run", "--level", "quick", "--backend", "cuda", "--checks", "nvlink"]
    done = subprocess.run(
        [*command, "--json", "--out", str(tmp_path)], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    report = json.loads(done.stdout)
    found = [check for check in report["checks"] if check["name"] == "nvlink"]
    assert len(found) == count and {check["verdict"] for check in found} == {"PASS"}, report["reasons"]
    for check in found:
        assert check["coverage"]["pairs_covered"] == check["coverage"]["pairs_total"]


def test_all_memory_is_given_back(device: CudaDevice) -> None:
    import cupy

    port = nvlink_port(device)
    port.export("GPU-a", ["GPU-b"], _SIZE)
    port.close()
    free = cupy.cuda.runtime.memGetInfo()[0]
    port.export("GPU-a", ["GPU-b"], 64 * _SIZE)
    assert cupy.cuda.runtime.memGetInfo()[0] < free
    port.close()
    assert cupy.cuda.runtime.memGetInfo()[0] >= free


def test_what_another_may_have_mapped_is_not_freed_when_it_goes_wrong(device: CudaDevice) -> None:
    import cupy

    port = nvlink_port(device)
    port.export("GPU-a", ["GPU-b"], _SIZE)
    free = cupy.cuda.runtime.memGetInfo()[0]
    port.abandon()
    port.close()
    assert cupy.cuda.runtime.memGetInfo()[0] <= free
