"""What the checks of links, collectives, power and the second opinion say of healthy and of faulty nodes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpu_burnin.checks.nccl.result import Curve, NcclCoverage, Point
from gpu_burnin.checks.nvlink.result import NvlinkCoverage, Pair
from gpu_burnin.checks.pcie.result import LinkUnderLoad, PcieCoverage
from gpu_burnin.checks.power.result import Frequency, Mixture, PowerCoverage, WavesMade
from gpu_burnin.engine.plan import Plan
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.types import CheckResult, Gpu, Measurement, Series, Verdict
from tests.support.coverages import coverage

STARTED_S = 5000.0
FREQUENCIES_HZ = (0.5, 1.0, 5.0, 20.0)
# Where each check lies in the run, as parts of its time: start and end.
SPANS = {"pcie": (0.78, 0.80), "nvlink": (0.80, 0.84), "nccl": (0.84, 0.88), "power": (0.88, 0.98)}
_PEAK_BUSBW = {"all_reduce": 478.0, "all_gather": 363.0, "reduce_scatter": 368.0, "all_to_all": 341.0}
LIMIT_W = 700.0


# Floors of an H200 (skus.yaml), bytes per second.
_FLOORS = {"h2d": 48e9, "d2h": 48e9, "p2p": 335e9, "all_reduce_busbw": 430e9}


def _judged(name: str, value: float) -> Measurement:
    """A rate with the floor of its model."""
    floor = _FLOORS.get(name)
    return (
        Measurement(name, value, "B/s", floor, "acceptance limit", "vendor")
        if floor
        else Measurement(name, value, "B/s")
    )


def verified(seconds: float, *parts: str) -> dict[str, Any]:
    """The verified time of a check that took `seconds`: half of them, in equal parts."""
    equal = {"verified_parts_s": dict.fromkeys(parts, seconds / 2 / len(parts))} if parts else {}
    return {"verified_s": seconds / 2, **equal}


def span(check: str, seconds: float) -> tuple[float, float]:
    """Start (CLOCK_MONOTONIC) and length of a check."""
    start, end = (part * seconds for part in SPANS[check])
    return STARTED_S + start, end - start


def stretches(seconds: float) -> Iterator[tuple[float | None, float, float]]:
    """The stretches of the power check: frequency (None: mixed load), start and end (CLOCK_MONOTONIC)."""
    start, length = span("power", seconds)
    part = length / (len(FREQUENCIES_HZ) + 1)
    for index, frequency in enumerate((*FREQUENCIES_HZ, None)):
        yield frequency, start + index * part, start + (index + 0.97) * part


def wave_loads(seconds: float) -> list[tuple[float, float, float]]:
    """(start, end, share of full power) as NVML's average of a second sees the waves; seconds since the run began."""
    loads = []
    for frequency, start, end in stretches(seconds):
        if frequency == 0.5:
            moment = start
            while moment < end:
                loads.append((moment - STARTED_S, min(moment + 1, end) - STARTED_S, 0.95))
                moment += 2
        else:
            loads.append((start - STARTED_S, end - STARTED_S, 0.97 if frequency is None else 0.52))
    return loads


def _wave_series(seconds: float) -> Series:
    t_s, values = [], []
    for frequency, start, end in stretches(seconds):
        moment, on = start, True
        while frequency and moment < end:
            t_s.append(moment)
            values.append(float(on))
            moment, on = moment + 0.5 / frequency, not on
        t_s.append(end)
        values.append(0.0)
    return Series("wave load", "1", tuple(t_s), tuple(values))


Pairs = dict[tuple[str, str], Pair]


def matrix(gpus: Sequence[Gpu], path: str = "nvswitch", rate: float = 394e9) -> Pairs:
    """The pairs of healthy GPUs by (GPU, peer)."""
    rng = random.Random(5)
    return {
        (gpu.uuid, peer.uuid): Pair(
            peer=peer.uuid,
            path=path,
            write_bytes_per_s=rate * (1 + rng.uniform(-0.012, 0.008)),
            read_bytes_per_s=rate * 0.985 * (1 + rng.uniform(-0.012, 0.008)),
            verified=True,
            expected=path != "pcie",
            kind=f"{path}/18/None",
            transfers_checked={"write": 14, "read": 14},
        )
        for gpu in gpus
        for peer in gpus
        if gpu is not peer
    }


def nvlink_result(gpu: Gpu, pairs: Pairs, seconds: float) -> CheckResult:
    """The result of one GPU out of the pairs of the node."""
    start, length = span("nvlink", seconds)
    own = tuple(pair for (uuid, _), pair in pairs.items() if uuid == gpu.uuid)
    rates = [rate for pair in own for rate in pair.rates]
    wanted = [pair for pair in own if pair.expected or not pair.why]
    coverage = NvlinkCoverage(
        p2p=own,
        pairs_total=len(wanted),
        pairs_covered=sum(not pair.why for pair in wanted),
        all_at_once_bytes_per_s=371e9 - 1e9 * gpu.index if own else None,
        nvlink_bytes_moved=3 << 40,
        copies_moved=40 * len(own),
        copies_verified=40 * len(own),
        **verified(length if own else 0.0, *(f"{way} {pair.peer}" for pair in own for way in ("write", "read"))),
    )
    measured = (_judged("p2p", statistics.median(rates)), _judged("p2p_slowest", min(rates))) if rates else ()
    return CheckResult("nvlink", gpu.uuid, Verdict.PASS, length, measured, coverage, started_s=start)


def _pcie(gpu: Gpu, seconds: float) -> CheckResult:
    start, length = span("pcie", seconds)
    rng = random.Random(gpu.index)
    rates = {"h2d": 55.4, "d2h": 55.1, "duplex": 88.2, "h2d_all": 51.7, "d2h_all": 52.3}
    measured = tuple(_judged(name, 1e9 * rate * rng.uniform(0.985, 1.0)) for name, rate in rates.items())
    coverage = PcieCoverage(
        link=LinkUnderLoad(generation=5, width=16, max_generation=5, max_width=16),
        pcie_bytes_moved=180 << 30,
        copies_moved=720,
        copies_verified=720,
        **verified(length, "h2d", "d2h"),
    )
    return CheckResult("pcie", gpu.uuid, Verdict.PASS, length, measured, coverage, started_s=start)


def curves(algorithms: Mapping[str, tuple[float, list[str]]], ranks: int) -> Iterator[Curve]:
    """Curves of all collectives from 1 KiB to 1 GiB; by algorithm its share of the peak and its transports. One rank
    alone has no bus, but it moves data."""
    for collective, peak in _PEAK_BUSBW.items():
        for algorithm, (share, transport) in algorithms.items():
            rates = {1 << p: share * peak * 1e9 / (1 + 2.0 ** (23.5 - p)) for p in range(10, 31, 2)}
            points = (
                Point(size_bytes=size, busbw_bytes_per_s=rate)
                if ranks > 1
                else Point(size_bytes=size, algbw_bytes_per_s=rate)
                for size, rate in rates.items()
            )
            if algorithm != "nvls" or collective != "all_to_all":
                ways = tuple(transport)
                yield Curve(collective=collective, algorithm=algorithm, transport=ways, points=tuple(points))


HEALTHY_NCCL = {
    "default": (1.0, ["NVLS", "P2P/CUMEM"]),
    "ring": (0.77, ["P2P/CUMEM"]),
    "nvls": (0.99, ["NVLS"]),
}


def nccl_result(
    gpu: Gpu, ranks: int, seconds: float, algorithms: Mapping[str, tuple[float, list[str]]] = HEALTHY_NCCL
) -> CheckResult:
    """The result of one rank."""
    start, length = span("nccl", seconds)
    found = tuple(curves(algorithms if ranks > 1 else {"default": (2.1, [])}, ranks))
    coverage = NcclCoverage(
        curves=found,
        version="2.27.7",
        ranks=ranks,
        gpus_in_plan=ranks,
        operations=5400,
        operations_verified=5400,
        **verified(length),
    )
    measured = tuple(
        _judged(f"{curve.collective}_busbw", curve.points[-1].bytes_per_s or 0.0)
        for curve in found
        if curve.algorithm == "default" and ranks > 1
    )
    return CheckResult("nccl", gpu.uuid, Verdict.PASS, length, measured, coverage, started_s=start)


def _power(gpu: Gpu, seconds: float) -> CheckResult:
    start, length = span("power", seconds)
    waves = [(frequency, begin, end) for frequency, begin, end in stretches(seconds) if frequency]
    _, mixed_start, mixed_end = next(entry for entry in stretches(seconds) if entry[0] is None)
    coverage = PowerCoverage(
        waves=WavesMade(
            frequencies=tuple(
                Frequency(
                    frequency_hz=frequency,
                    started_s=begin,
                    ended_s=end,
                    periods_made=int((end - begin) * frequency),
                    worst_lateness_s=0.0004,
                )
                for frequency, begin, end in waves
            ),
            frequencies_hz=FREQUENCIES_HZ,
            edges=300,
            products_verified=240,
            start_skew_s=0.0006,
            started_s=start,
            ended_s=waves[-1][2],
        ),
        mixed=Mixture(run=True, started_s=mixed_start, ended_s=mixed_end, products_verified=90),
        **verified(length),
    )
    measured = (Measurement("mixed_bf16_throughput", 702.0 - gpu.index, "TFLOP/s"),)
    return CheckResult(
        "power", gpu.uuid, Verdict.PASS, length, measured, coverage, series=(_wave_series(seconds),), started_s=start
    )


def part_results(plan: Plan, seconds: float) -> Iterator[CheckResult]:
    """What these checks say of healthy GPUs."""
    pairs = matrix(plan.gpus)
    for gpu in plan.gpus:
        yield _pcie(gpu, seconds)
        yield nvlink_result(gpu, pairs, seconds)
        yield nccl_result(gpu, len(plan.gpus), seconds)
        yield _power(gpu, seconds)


def dcgm_result(plan: Plan, **results: str) -> CheckResult:
    """An opinion on all GPUs; `results` by test, else all that it does at this level pass."""
    told = {
        "software": "Pass",
        "memory": "Pass",
        "pcie": "Pass",
        "pulse_test": "Skip",
        "targeted_power": "Pass",
        **results,
    }
    every = [gpu.uuid for gpu in plan.gpus]
    tests = [{"name": name, "result": result, "gpus": every} for name, result in told.items()]
    covered = coverage("dcgm", release="4.2.3", level=3, tests=tests)
    failed = [name for name, result in told.items() if result == "Fail"]
    reasons = tuple(
        make_reason("DCGM_FAILED", "dcgm", f"dcgmi diag: {name} failed", gpu=uuid) for name in failed for uuid in every
    )
    verdict = Verdict.FAIL if failed else Verdict.PASS
    return CheckResult("dcgm", None, verdict, 610.0, (), covered, (), reasons, started_s=STARTED_S + 300)


# --- what a faulty node says ---


def exchanged(seen: Observations, new: Sequence[CheckResult], **other: Any) -> Observations:
    """The same with these results in the place of those of the same check and GPU."""
    keys = {(result.name, result.gpu): result for result in new}
    results = tuple(keys.pop((result.name, result.gpu), result) for result in seen.results)
    return replace(seen, results=(*results, *keys.values()), **other)


def with_matrix(seen: Observations, pairs: Pairs, seconds: float) -> Observations:
    """The same node with another P2P matrix."""
    return exchanged(seen, [nvlink_result(gpu, pairs, seconds) for gpu in seen.gpus])


def _at(pair: Pair, share: float) -> Pair:
    """Both directions at a share of what they were."""
    write, read = ((rate or 0.0) * share for rate in (pair.write_bytes_per_s, pair.read_bytes_per_s))
    return replace(pair, write_bytes_per_s=write, read_bytes_per_s=read)


def slow_link(pairs: Pairs, one: Gpu, other: Gpu, share: float) -> None:
    """Both directions of a pair at a share of what they were."""
    for key in ((one.uuid, other.uuid), (other.uuid, one.uuid)):
        pairs[key] = _at(pairs[key], share)


def dead(pair: Pair, why: str) -> Pair:
    """Nothing comes through."""
    return replace(pair, write_bytes_per_s=None, read_bytes_per_s=None, verified=False, why=why)


def dead_link(pairs: Pairs, one: Gpu, other: Gpu) -> None:
    """Nothing comes through between two GPUs."""
    why = "cudaDeviceEnablePeerAccess: peer access is not supported between these two devices"
    for key in ((one.uuid, other.uuid), (other.uuid, one.uuid)):
        pairs[key] = replace(dead(pairs[key], why), transfers_checked={"write": 0, "read": 0})


def wrong_data(pairs: Pairs, writer: Gpu, receiver: Gpu) -> None:
    """Two transfers that one GPU wrote to another came wrong; the receiver sees it."""
    key = receiver.uuid, writer.uuid
    pairs[key] = replace(pairs[key], verified=False, transfers_wrong={"write": 2, "read": 0})


def slow_gpu(pairs: Pairs, gpu: Gpu, share: float) -> None:
    """All links of a GPU at a share of what they were."""
    for key in pairs:
        if gpu.uuid in key:
            pairs[key] = _at(pairs[key], share)
