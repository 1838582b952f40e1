"""`python -m tests.bench.gpu.step NAME RESULT OUT`: one step, in a process of its own (run by the runner).

RESULT gets {"figures": ...} whenever there are more, so that a cut leaves what was measured until then, and at the end
"why" when it failed (exit status 1) or "nothing_to_do". What a step needs is imported by it alone.
"""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_burnin.errors import GpuBurninError
from gpu_burnin.system.children import die_with_parent
from gpu_burnin.system.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_burnin.device.cuda import CudaDevice

_SMI_LIMIT_S = 15.0


class NothingToDo(Exception):
    """The step has nothing to do on this machine, for a reason in words."""


class Report:
    """Where a step leaves its figures; written each time."""

    def __init__(self, path: Path, out: Path) -> None:
        self.path, self.out = path, out
        self.told: dict[str, Any] = {}
        # Compiled kernels are shared with the other steps: beside the results, in the session's own folder.
        self.kernel_dir = path.parent / "kernels"
        self.kernel_dir.mkdir(mode=0o700, exist_ok=True)

    def save(self, **figures: Any) -> None:
        """Add figures."""
        self.told["figures"] = {**self.told.get("figures", {}), **figures}
        self._write()

    def end(self, key: str, words: str) -> None:
        """Say "why" it failed, or that there is "nothing_to_do"; what is told is published, so it names no host."""
        self.told[key] = " ".join(words.split()).replace(f"{socket.gethostname()}: ", "")
        self._write()

    def _write(self) -> None:
        write_atomic(self.path, json.dumps(self.told).encode())


def versions(report: Report) -> None:
    """Versions of Python, kernel and packages; fails, naming them, when packages are missing."""
    from tests.bench.gpu.machine import missing, packages, system

    report.save(system=system(), packages=packages())
    if told := missing():
        raise GpuBurninError(told)


def node(report: Report) -> None:
    """All that NVML says, before anything touches CUDA."""
    from gpu_burnin.system.codec import to_json
    from gpu_burnin.telemetry.nvml import read_node

    found = read_node()
    unread = {gpu.label: {name: value.why for name, value in gpu.unread().items()} for gpu in found.gpus}
    report.save(node=to_json(found), unread=unread)


def nvidia_smi(report: Report) -> None:
    """What the vendor's tool says, for comparison."""
    if shutil.which("nvidia-smi") is None:
        raise NothingToDo("nvidia-smi is not installed")
    for name, arguments in (("q", ("-q",)), ("topo", ("topo", "-m"))):
        done = subprocess.run(
            ["nvidia-smi", *arguments], capture_output=True, text=True, timeout=_SMI_LIMIT_S, check=False
        )
        report.save(**{name: done.stdout, f"{name}_status": done.returncode})


def gpu_tests(report: Report, file: str) -> None:
    """One file of tests/gpu; fails when a test does, or when none was run."""
    from tests.bench.gpu.gpu_tests import run_file

    os.environ["MUSTER_GPU_TESTS_KERNELS"] = str(report.kernel_dir)
    run_file(report.save, file)


def quick(report: Report) -> None:
    """The whole burn-in, and what the test of it asks for."""
    from tests.bench.gpu.burnin import shortfalls

    ran = _burn_in(report, "quick")
    report.save(shortfalls=shortfalls(ran))


def standard(report: Report) -> None:
    """The whole burn-in."""
    _burn_in(report, "standard")


def _burn_in(report: Report, level: str) -> Any:
    from tests.bench.gpu.burnin import burn_in

    # Told to end, it waits for the burn-in, which is told too and writes its report.
    signal.signal(signal.SIGTERM, lambda *_: None)
    ran = burn_in("--level", level, keep=report.out, name=level)
    if ran.report is None:
        raise GpuBurninError(f"the burn-in left no report (exit status {ran.exit_code}): {ran.errors.strip()[-500:]}")
    checks = ran.report["checks"]
    report.save(
        exit_code=ran.exit_code,
        seconds=ran.seconds,
        verdict=ran.report["verdict"],
        reasons=ran.reasons,
        messages=[reason["message"] for reason in ran.report["reasons"]],
        check_seconds=[[check["name"], check["gpu"], check["seconds"]] for check in checks],
        left_out=ran.left_out,
    )
    return ran


def nccl_all(report: Report) -> None:
    """Collectives of all GPUs."""
    from tests.bench.gpu.nccl import measure_all_gpus

    if len(list(Path("/dev").glob("nvidia[0-9]*"))) < 2:
        raise NothingToDo("fewer than two GPUs")
    report.save(**measure_all_gpus())


def bandwidth(report: Report) -> None:
    """Read bandwidth, and the digest kernels beside it."""
    from gpu_burnin.exact.port import products_on
    from tests.bench.gpu import measure

    with _opened(report) as (device, cupy), products_on(device) as products:
        read = measure.read_bandwidth(cupy, device)
        report.save(read_bandwidth=read)
        report.save(digest_shares=measure.digest_shares(products, cupy, read))


def rates(report: Report) -> None:
    """Rates of products, plain and verified."""
    from gpu_burnin.exact.port import products_on
    from tests.bench.gpu import measure

    with _opened(report) as (device, cupy), products_on(device) as products:
        read = measure.read_bandwidth(cupy, device)
        report.save(shape=asdict(measure.RATE_SHAPE), rates=[])
        found = []
        for precision in products.precisions:
            rate = measure.rate(products, cupy, precision, read)
            found.append({**asdict(rate), "ratio": rate.ratio})
            report.save(rates=found)
            cupy.get_default_memory_pool().free_all_blocks()


def detection(report: Report) -> None:
    """Time from a planted fault to its detection."""
    from gpu_burnin.exact.port import products_on
    from tests.bench.gpu import measure

    with _opened(report) as (device, cupy), products_on(device) as products:
        found = []
        for precision in products.precisions:
            found.append(asdict(measure.detection(products, cupy, precision)))
            report.save(detection=found)
            cupy.get_default_memory_pool().free_all_blocks()


def hbm(report: Report) -> None:
    """Memory kernels beside a plain copy, and a round over all memory."""
    from tests.bench.gpu.hbm import measure_hbm

    with _opened(report) as (device, cupy):
        measure_hbm(device, cupy, report.save)


def pcie(report: Report) -> None:
    """PCIe."""
    from tests.bench.gpu.pcie import measure_pcie

    with _opened(report) as (device, cupy):
        report.save(**measure_pcie(device, cupy))


def nccl(report: Report) -> None:
    """Collectives of one GPU."""
    from tests.bench.gpu.nccl import measure_one_rank

    with _opened(report) as (device, _):
        report.save(**measure_one_rank(device))


def power(report: Report) -> None:
    """Waves and mixed load."""
    from tests.bench.gpu.power import measure_power

    with _opened(report) as (device, cupy):
        report.save(**measure_power(device, cupy))


@contextmanager
def _opened(report: Report) -> Iterator[tuple[CudaDevice, Any]]:
    """The first GPU that CUDA shows."""
    from gpu_burnin.device.cuda import CudaDevice
    from gpu_burnin.exact.port import products_on

    device = CudaDevice(report.kernel_dir)
    device.open(None)
    try:
        import cupy

        with products_on(device) as products:
            report.save(facts={**device.facts(), **products.facts()})
        yield device, cupy
    finally:
        device.close()


_STEPS: dict[str, Callable[[Report], None]] = {
    function.__name__: function
    for function in (
        versions, node, nvidia_smi, quick, standard, nccl_all, bandwidth, rates, detection, hbm, pcie, nccl,
        power,
    )
}  # fmt: skip


def do(name: str, report: Report) -> int:
    """Do one step; 0, or 1 with the reason in the report."""
    try:
        if name.startswith("test_"):
            gpu_tests(report, name)
        else:
            _STEPS[name](report)
    except NothingToDo as why:
        report.end("nothing_to_do", str(why))
        return 0
    except (GpuBurninError, ImportError) as error:
        report.end("why", str(error))
        return 1
    except Exception as error:
        traceback.print_exc()
        report.end("why", f"{type(error).__name__}: {error}")
        return 1
    return 0


def main() -> int:
    """Run the step that the arguments name."""
    die_with_parent()
    # A crash or a hang leaves in the log where it was.
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)
    name, result, out = sys.argv[1:]
    return do(name, Report(Path(result), Path(out)))


if __name__ == "__main__":
    sys.exit(main())
