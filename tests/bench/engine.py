"""What verification costs, as ratios measured in one run on this machine. Run: python -m tests.bench.engine

Compute on the CPU device, in a process with one BLAS thread like that of a worker: the verified rate of FP32
products against the plain one, at 2048 x 2048 x 4096; fresh seeds against golden ones; the time from a planted
fault to its detection; copies and collectives beside the comparison of every one. Then the machinery (machinery.py).
Exits with 1 when a figure misses its target.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_burnin.checks import CheckContext
from gpu_burnin.checks.gemm import check as gemm
from gpu_burnin.checks.nccl.cpu import CpuNccl
from gpu_burnin.checks.nccl.operations import operation
from gpu_burnin.checks.pcie.cpu import CpuPcie
from gpu_burnin.checks.pcie.port import Direction
from gpu_burnin.exact import operands as exact
from gpu_burnin.exact.expected import expected_digests
from gpu_burnin.exact.fresh import make_set
from gpu_burnin.exact.golden import fresh_seeds
from gpu_burnin.exact.product import ROUND, Expected, Pair, ProductUnit, Shape, Stream
from gpu_burnin.types import Gpu
from tests.support.devices import ComputingDevice

SHAPE = Shape(2048, 2048, 4096)
_ROUNDS = 4
_COPY_BYTES = 16 << 20


@dataclass(frozen=True)
class Figure:
    """One measured figure; `target` is the least (or with `at_most` the greatest) value that is good enough."""

    name: str
    value: float
    unit: str = ""
    target: float | None = None
    at_most: bool = False

    @property
    def met(self) -> bool:
        """Good enough, or without a target."""
        if self.target is None:
            return True
        return self.value <= self.target if self.at_most else self.value >= self.target

    def __str__(self) -> str:
        wanted = ""
        if self.target is not None:
            sign = "<=" if self.at_most else ">="
            wanted = f"  (wanted {sign} {self.target:g}: {'met' if self.met else 'MISSED'})"
        return f"{self.name:58} {self.value:10.4g} {self.unit}{wanted}"


def verification() -> list[Figure]:
    """Plain, verified and Freivalds products in turn, so that all see the same machine. The least processor time of
    each counts: with one thread it is the time on an idle machine, and other work only adds to it."""
    stream = Stream(ComputingDevice())
    golden_unit, fresh_unit = (ProductUnit(stream, "fp32", SHAPE) for _ in range(2))
    operands = exact.RANGES["square"]
    golden_unit.load(operands)
    golden = expected_digests({pair: golden_unit.case(pair) for pair in ROUND})
    started = time.process_time()
    made = make_set(operands, SHAPE, fresh_seeds(1))
    host_s = time.process_time() - started
    assert made is not None
    fresh_unit.load(operands, made.seeds_a, made.seeds_b)
    best = dict.fromkeys(("plain", "golden", "fresh"), float("inf"))
    for index in range(1 + _ROUNDS * len(ROUND)):
        pair = ROUND[index % len(ROUND)]
        seconds = {
            "plain": _plain(golden_unit, pair),
            "golden": _verified(golden_unit, pair, golden[pair]),
            "fresh": _verified(fresh_unit, pair, made.expected[pair]),
        }
        if index > 0:  # the first ones warm up
            best = {name: min(best[name], seconds[name]) for name in best}
    rate = SHAPE.operations / best["plain"] / 1e12
    return [
        Figure("plain FP32 rate", rate, "TFLOP/s"),
        Figure("verified / unverified rate, golden digests", best["plain"] / best["golden"], target=0.93),
        Figure("verified / unverified rate, Freivalds on each product", best["plain"] / best["fresh"]),
        Figure("host work for a fresh set / time of its four products", host_s / (4 * best["plain"])),
    ]


def _plain(unit: ProductUnit, pair: Pair) -> float:
    started = time.process_time()
    unit.stream.gemm(unit.precision, unit.a[pair[0]], unit.b[pair[1]], unit.c)
    unit.device.synchronize()
    return time.process_time() - started


def _verified(unit: ProductUnit, pair: Pair, expected: Expected) -> float:
    started = time.process_time()
    outcome = unit.run((pair,), (expected,)).outcomes[0]
    seconds = time.process_time() - started
    assert outcome.right
    return seconds


class _Watched(ComputingDevice):
    """Notes when a fault is written into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.planted_s: float | None = None

    def write_raw(self, buffer: Any, start: int, bits: Any) -> None:
        self.planted_s = self.planted_s or time.perf_counter()
        super().write_raw(buffer, start, bits)


def detection() -> list[Figure]:
    """From a planted fault to the message that says so, in a running check of the default CPU shape."""
    return [_detect("low_mantissa", "the fault"), _detect("skipped_launch", "the check's start")]


def _detect(fault: str, since: str) -> Figure:
    seen: list[float] = []

    def note(message: Mapping[str, Any]) -> None:
        if message["errors"]:
            seen.append(time.perf_counter())

    device = _Watched()
    gpu = Gpu(0, "GPU-0", "S0", "0000:01:00.0", "Bench", "bench", 1 << 30, "1.0")
    ctx = CheckContext(
        seed=1, level="quick", budget_s=0.0, gpus=(gpu,), gpu=gpu, device=device,
        shapes={"gemm_m": 256, "gemm_n": 256, "gemm_k": 256}, inject=(fault,), progress=note,
    )  # fmt: skip
    started = time.perf_counter()
    assert gemm.Check().run(ctx).reasons and seen
    begun = device.planted_s if since == "the fault" and device.planted_s is not None else started
    return Figure(f"first detection of {fault}, from {since}", seen[0] - begun, "s", 2.0, at_most=True)


def transfers() -> list[Figure]:
    """Copies and collectives of which every one is compared: the part of the processor time that is not comparing."""
    return [
        _link_share("h2d"),
        _link_share("d2h"),
        _row_share(),
    ]


def _link_share(direction: Direction) -> Figure:
    link = CpuPcie()
    slots = link.open(_COPY_BYTES).slots
    link.fill(1)
    copying = comparing = 0.0
    for index in range(1 + _ROUNDS):
        began_s = time.process_time()
        link.begin(direction, slots)
        link.finish()
        copied_s = time.process_time()
        assert not link.verify().wrong
        if index > 0:  # the first one warms up
            copying, comparing = copying + copied_s - began_s, comparing + time.process_time() - copied_s
    link.close()
    return Figure(f"copying / copying and verifying every copy, {direction}", copying / (copying + comparing))


def _row_share() -> Figure:
    """One rank, whose all_reduce is a copy: with more the operation takes longer beside the same comparison."""
    port = CpuNccl()
    port.open(_COPY_BYTES)
    port.join([port.offer(0, 1)], 0, "ring", 10.0)
    op = operation("all_reduce", "fp32", _COPY_BYTES, 1, 0, 1)
    port.fill(op)
    began_s = time.perf_counter()
    port.begin(op, _ROUNDS, 10.0)
    seconds = port.finish(10.0)
    assert not port.verify(op).wrong
    whole_s = time.perf_counter() - began_s
    port.close()
    return Figure("operating / operating and verifying each all_reduce of a row", seconds / whole_s)


def compute() -> int:
    """Print the figures of the compute core; 1 when one misses its target."""
    figures = verification() + detection() + transfers()
    for figure in figures:
        print(figure, flush=True)
    return int(not all(figure.met for figure in figures))


def main() -> int:
    """Print all figures; 1 when one misses its target."""
    from tests.bench import machinery

    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", "import sys; from tests.bench import engine; sys.exit(engine.compute())"]
    missed = subprocess.run(command, env=environment, check=False).returncode
    return max(missed, machinery.main())


if __name__ == "__main__":
    sys.exit(main())
