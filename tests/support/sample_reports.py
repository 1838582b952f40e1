"""Whole reports with series, of nodes in different states, for the tests of everything that shows them."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from gpu_burnin.engine.plan import Plan, make_plan
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.judge.verdict import judge
from gpu_burnin.report import build, model
from gpu_burnin.report.series import RunSeries
from gpu_burnin.telemetry.findings import GpuSeries
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.types import JSON, CheckResult, Gpu, Measurement, Notice, Reason, SelftestResult, Series, Verdict
from tests.support.coverages import coverage
from tests.support.run_helpers import RUN
from tests.support.sample_parts import STARTED_S, part_results, verified
from tests.support.sample_telemetry import Course, series_of, telemetry_of

Sample = tuple[model.Report, RunSeries]
_PEAKS = {"fp64": 61.0, "fp32": 50.0, "tf32": 430.0, "bf16": 812.0, "fp16": 798.0, "int8": 1490.0, "fp8": 1420.0}
_PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "int8", "fp8_e4m3")


def gpus_of(count: int) -> tuple[Gpu, ...]:
    """H200s with identities like real ones."""
    return tuple(
        Gpu(
            index,
            f"GPU-{0xA1B2C300 + index * 0x1111:08x}-5d3e-4c1b-9f00-1234567890{index:02x}",
            f"165292401{index:04}",
            f"0000:{0x1B + 0x11 * index:02x}:00.0",
            "NVIDIA H200",
            "h200-sxm-141gb",
            150_754_820_096,
            "96.00.BC.00.01",
        )
        for index in range(count)
    )


def _rates(gpu: Gpu, start: float, seconds: float, sag: float) -> Iterator[Series]:
    """Each precision in turn, in ten rounds; `sag` is the share that is lost in the second half."""
    rng = random.Random(gpu.index)
    for place, (name, peak) in enumerate(_PEAKS.items()):
        t_s = [STARTED_S + start + seconds * (turn + (place + 0.5) / 7) / 10 for turn in range(10)]
        values = [
            peak * (1 - 0.004 * gpu.index - sag * (turn > 5)) * (1 + rng.uniform(-0.006, 0.006)) for turn in range(10)
        ]
        yield Series(f"gemm_{name}_throughput", "TOP/s" if name == "int8" else "TFLOP/s", tuple(t_s), tuple(values))


def _results(plan: Plan, seconds: float, sag: dict[int, float]) -> Iterator[CheckResult]:
    yield CheckResult(
        "state",
        None,
        Verdict.PASS,
        0.8,
        tuple(Measurement(f"gpu{gpu.index}_power_draw_w", 78.0 + gpu.index, "W") for gpu in plan.gpus),
        coverage("state", gpus=len(plan.gpus), rules=31),
        started_s=STARTED_S + 0.4,
    )
    sm_s, gemm_s, hbm_s = 0.04 * seconds, 0.52 * seconds, 0.18 * seconds
    for gpu in plan.gpus:
        start, lost = STARTED_S + 4 + 0.1 * gpu.index, sag.get(gpu.index, 0.0)
        sms = coverage("sm", sms_total=132, sms_covered=132, **verified(sm_s))
        yield CheckResult("sm", gpu.uuid, Verdict.PASS, sm_s, (), sms, started_s=start)
        rates = tuple(_rates(gpu, 5 + sm_s, gemm_s, lost))
        measured = tuple(
            Measurement(
                series.name,
                min(series.values),
                series.unit,
                0.8 * _PEAKS[series.name.split("_")[1]],
                "vendor data sheet",
                "derived",
            )
            for series in rates
        )
        products: dict[str, Any] = {
            "shape": [8192, 8192, 4096],
            "products": dict.fromkeys(_PRECISIONS, 900 + gpu.index),
            "ranges": {name: ["u63x63", "u255x16", "u16x255"] for name in _PRECISIONS},
            "data_path": {
                name: {"path": "tensor", "proven": True, "why": "", "rate": 1.0, "rate_floor": None}
                for name in _PRECISIONS
            },
            "precisions_not_covered": [],
            "bytes_moved": 91 << 40,
            **verified(gemm_s, *_PRECISIONS),
        }
        yield CheckResult(
            "gemm",
            gpu.uuid,
            Verdict.PASS,
            gemm_s,
            measured,
            coverage("gemm", **products),
            series=rates,
            started_s=start + 1 + sm_s,
        )
        covered = 149_100_000_000
        memory: dict[str, Any] = {
            "covered_bytes": covered,
            "gpu_memory_bytes": gpu.memory_bytes,
            "patterns": ["address", "random", "walking", "modulo"],
            "rounds": 2,
            "unreachable_bytes": gpu.memory_bytes - covered,
            "sweep_seconds": 8.6,
            "wrong_words": 0,
            "bytes_moved": 31 * covered,
            **verified(hbm_s),
        }
        yield CheckResult(
            "hbm",
            gpu.uuid,
            Verdict.PASS,
            hbm_s,
            (Measurement("hbm_rate", 4.1e12 - 1e10 * gpu.index, "B/s", 3.4e12, "vendor data sheet", "vendor"),),
            coverage("hbm", **memory),
            started_s=start + 4 + sm_s + gemm_s,
        )
    yield from part_results(plan, seconds)


def _selftests(plan: Plan) -> Iterator[SelftestResult]:
    for gpu in plan.gpus:
        for precision in _PEAKS:
            for fault, bits in (
                ("bitflip", 1),
                ("multibit", 3),
                ("nan", 17),
                ("stale", None),
                ("skipped_launch", None),
            ):
                yield SelftestResult(f"{precision} {fault}", "gemm", gpu.uuid, True, True, 0.11, "device buffers", bits)
        for fault in ("bitflip", "stuck"):
            yield SelftestResult(fault, "hbm", gpu.uuid, True, True, 0.4, "device buffers", 1)
        yield SelftestResult("stuck_bit", "sm", gpu.uuid, True, True, 0.05, "device buffers", 1)
        for check in ("pcie", "nvlink", "nccl", "power"):
            yield SelftestResult("corrupted", check, gpu.uuid, True, True, 0.02, "device buffers", 1)
    yield SelftestResult("XID line", "kernel_log", None, True, True, 0.001, "detector logic only")


def sample(
    count: int = 8,
    level: str = "standard",
    seconds: float = 290.0,
    hz: float = 2.0,
    hot: dict[int, float] | None = None,
    sag: dict[int, float] | None = None,
    brakes: dict[int, tuple[float, float]] | None = None,
    change: Callable[[Observations], Observations] = lambda seen: seen,
    notices: tuple[Notice, ...] = (),
    rename: Callable[[Gpu], Gpu] = lambda gpu: gpu,
) -> Sample:
    """A report and its series: healthy H200s unless `change` says otherwise.

    `hot` is degrees and `brakes` the stretch of a power brake by GPU.
    """
    gpus = tuple(rename(gpu) for gpu in gpus_of(count))
    plan = make_plan(level, backend="cuda", gpus=gpus, seed=1)
    course = Course(gpus, seconds, hz, frozenset((hot or {}).items()), frozenset((brakes or {}).items()))
    seen = change(
        Observations(
            plan=plan,
            gpus=gpus,
            results=tuple(_results(plan, seconds, sag or {})),
            selftests=tuple(_selftests(plan)),
            kernel_log=KernelLogFindings("journal,/dev/kmsg", alive=True),
            simulated=False,
            allow_simulated=False,
            telemetry=telemetry_of(course),
        )
    )
    finished = datetime.fromisoformat(RUN.started_at) + timedelta(seconds=seconds + 2)
    run = replace(
        RUN,
        node="gpu-node-042",
        finished_at=f"{finished:%Y-%m-%dT%H:%M:%SZ}",
        found=replace(RUN.found, gpus=gpus),
        facts={gpus[0].uuid: {"cupy": "14.2.0", "cublaslt": "13.0.2"}} if gpus else {},
    )
    judged = judge(seen)
    report = build.build(run, seen, replace(judged, notices=(*judged.notices, *notices)))
    return report, series_of(seen, course)


def _with_reasons(
    seen: Observations, name: str, gpu: str | None, reasons: tuple[Reason, ...], **other: Any
) -> Observations:
    verdict = Verdict.FAIL if any(reason.severity is Verdict.FAIL for reason in reasons) else Verdict.INCONCLUSIVE
    results = tuple(
        replace(result, reasons=reasons, verdict=verdict, **other)
        if (result.name, result.gpu) == (name, gpu)
        else result
        for result in seen.results
    )
    return replace(seen, results=results)


def faulty(seen: Observations) -> Observations:
    """Wrong products on GPU 3, wrong memory on GPU 5, an XID 79 on GPU 6, a slow GPU 2, a blind detector."""
    uuid = [gpu.uuid for gpu in seen.gpus]
    errors: tuple[dict[str, JSON], ...] = tuple(
        {
            "matrix": "c",
            "precision": "bf16",
            "range": "u255x16",
            "row": 1284 + step,
            "col": 77,
            "expected": "181236.0",
            "got": "181220.0",
            "flipped_bits": [7],
            "tile": [10, 0],
            "sm": 41,
            "repeat": "wrong in the same way",
        }
        for step in range(15)
    )
    message = (
        "bf16 product is wrong, first at c[1284, 77]: expected 181236.0, got 181220.0; "
        "a repeat came out wrong in the same way"
    )
    seen = _with_reasons(
        seen,
        "gemm",
        uuid[3],
        (make_reason("GEMM_MISMATCH", "gemm", message, gpu=uuid[3], details=errors[0]),),
        errors=errors,
    )
    words: tuple[dict[str, JSON], ...] = tuple(
        {
            "offset_bytes": offset,
            "bit_lanes": lanes,
            "pattern": "walking",
            "expected": f"{1 << lanes[0]:#018x}",
            "got": "0x0",
        }
        for offset, lanes in (
            (81_204_281_344, [17]),
            (81_204_297_728, [17]),
            (81_221_058_560, [17, 18]),
            (12_884_901_888, [42]),
        )
    )
    message = "4 memory words came back wrong, first at offset 81204281344 under walking: expected 0x20000, got 0x0"
    seen = _with_reasons(
        seen,
        "hbm",
        uuid[5],
        (make_reason("HBM_BIT_ERROR", "hbm", message, gpu=uuid[5], details=words[0]),),
        errors=words,
    )
    slow = make_reason(
        "SLOW", "gemm", "gemm_fp8_throughput is 1015 TFLOP/s, the floor of this model is 1136", gpu=uuid[2]
    )
    measured = next(result for result in seen.results if (result.name, result.gpu) == ("gemm", uuid[2])).measurements
    measured = tuple(replace(item, value=0.7 * item.value) if "fp8" in item.name else item for item in measured)
    seen = _with_reasons(seen, "gemm", uuid[2], (slow,), measurements=measured)
    event = XidEvent(
        79,
        seen.gpus[6].pci_bus_id,
        None,
        f"NVRM: Xid (PCI:{seen.gpus[6].pci_bus_id[:-2]}): 79, GPU has fallen off the bus.",
        int((STARTED_S + 171) * 1e6),
        False,
    )
    lost = make_reason("GPU_LOST", "hbm", "GPU 6 no longer answers", gpu=uuid[6], details={"nvml_error": 15})
    tests = tuple(
        replace(test, detected=False) if (test.gpu, test.fault) == (uuid[0], "fp64 bitflip") else test
        for test in seen.selftests
    )
    cut = tuple(
        GpuSeries(s.gpu, s.t_s[:342], {name: values[:342] for name, values in s.columns.items()})
        if s.gpu == uuid[6]
        else s
        for s in seen.telemetry.series
    )
    sources = tuple(
        replace(s, alive=False, detail="ended after 171 s") if s.gpu == uuid[6] and s.name == "nvml_samples" else s
        for s in seen.telemetry.sources
    )
    return replace(
        seen,
        results=tuple(result for result in seen.results if (result.name, result.gpu) != ("hbm", uuid[6])),
        extra=(lost,),
        selftests=tests,
        kernel_log=replace(seen.kernel_log, events=(event,)),
        telemetry=replace(seen.telemetry, series=cut, sources=sources),
    )


HOT = Notice("THROTTLED", "telemetry", "slowed itself for heat during 41 s of the run", None, {"seconds": 41})


@functools.cache
def healthy_8() -> Sample:
    """Eight healthy GPUs, level standard."""
    return sample()


@functools.cache
def faulty_8() -> Sample:
    """Eight GPUs of which five have something."""
    gpu = gpus_of(8)[1].uuid
    return sample(hot={1: 22.0}, sag={1: 0.12}, change=faulty, notices=(replace(HOT, gpu=gpu),))


@functools.cache
def doubtful_8() -> Sample:
    """Nothing found, but an interrupted run on simulated hardware without a kernel log."""

    def change(seen: Observations) -> Observations:
        results = tuple(result for result in seen.results if result.name != "hbm")
        log = KernelLogFindings("auto", alive=False)
        return replace(seen, results=results, kernel_log=log, interrupted=True, simulated=True)

    return sample(level="quick", seconds=33, hz=10, change=change)


@functools.cache
def healthy_1() -> Sample:
    """One healthy GPU, level quick."""
    return sample(count=1, level="quick", seconds=58, hz=10)


@functools.cache
def extended_8() -> Sample:
    """Two hours."""
    return sample(level="extended", seconds=7200, hz=1)
