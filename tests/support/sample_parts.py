"""What the checks of links, collectives, power and the second opinion say of healthy and of faulty nodes."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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


def matrix(gpus: Sequence[Gpu], path: str = "nvswitch", rate: float = 394e9) -> dict[tuple[str, str], dict[str, Any]]:
    """The P2P rows of healthy GPUs by (GPU, peer)."""
    rng = random.Random(5)
    return {
        (gpu.uuid, peer.uuid): {
            "peer": peer.uuid,
            "path": path,
            "write_bytes_per_s": rate * (1 + rng.uniform(-0.012, 0.008)),
            "read_bytes_per_s": rate * 0.985 * (1 + rng.uniform(-0.012, 0.008)),
            "verified": True,
            "why": None,
            "expected": path != "pcie",
            "class": f"{path}/18/None",
            "transfers_checked": {"write": 14, "read": 14},
            "transfers_wrong": {"write": 0, "read": 0},
        }
        for gpu in gpus
        for peer in gpus
        if gpu is not peer
    }


def nvlink_result(
    gpu: Gpu, gpus: Sequence[Gpu], rows: Mapping[tuple[str, str], dict[str, Any]], seconds: float
) -> CheckResult:
    """The result of one GPU out of the rows of the node."""
    start, length = span("nvlink", seconds)
    own = [row for (uuid, _), row in rows.items() if uuid == gpu.uuid]
    rates = [row[key] for row in own for key in ("write_bytes_per_s", "read_bytes_per_s") if row[key]]
    wanted = [row for row in own if row["expected"] or not row["why"]]
    coverage: dict[str, Any] = {
        "p2p": own,
        "pairs_total": len(wanted),
        "pairs_covered": sum(not row["why"] for row in wanted),
        "all_at_once_bytes_per_s": 371e9 - 1e9 * gpu.index if own else None,
        "nvlink_bytes_moved": 3 << 40,
        "copies_moved": 40 * len(own),
        "copies_verified": 40 * len(own),
        **verified(length if own else 0.0, *(f"{way} {row['peer']}" for row in own for way in ("write", "read"))),
        "simulated": False,
    }
    measured = (_judged("p2p", statistics.median(rates)), _judged("p2p_slowest", min(rates))) if rates else ()
    return CheckResult("nvlink", gpu.uuid, Verdict.PASS, length, measured, coverage, started_s=start)


def _pcie(gpu: Gpu, seconds: float) -> CheckResult:
    start, length = span("pcie", seconds)
    rng = random.Random(gpu.index)
    rates = {"h2d": 55.4, "d2h": 55.1, "duplex": 88.2, "h2d_all": 51.7, "d2h_all": 52.3}
    measured = tuple(_judged(name, 1e9 * rate * rng.uniform(0.985, 1.0)) for name, rate in rates.items())
    coverage: dict[str, Any] = {
        "link": {"generation": 5, "width": 16, "max_generation": 5, "max_width": 16},
        "pcie_bytes_moved": 180 << 30,
        "copies_moved": 720,
        "copies_verified": 720,
        **verified(length, "h2d", "d2h"),
        "simulated": False,
    }
    return CheckResult("pcie", gpu.uuid, Verdict.PASS, length, measured, coverage, started_s=start)


def curves(algorithms: Mapping[str, tuple[float, list[str]]]) -> list[dict[str, Any]]:
    """Curves of all collectives from 1 KiB to 1 GiB; by algorithm its share of the peak and its transports."""
    return [
        {
            "collective": collective,
            "algorithm": algorithm,
            "transport": transport,
            "points": [
                {"size_bytes": 1 << power, "busbw_bytes_per_s": share * peak * 1e9 / (1 + 2.0 ** (23.5 - power))}
                for power in range(10, 31, 2)
            ],
        }
        for collective, peak in _PEAK_BUSBW.items()
        for algorithm, (share, transport) in algorithms.items()
        if algorithm != "nvls" or collective != "all_to_all"
    ]


HEALTHY_NCCL = {
    "default": (1.0, ["NVLS", "P2P/CUMEM"]),
    "ring": (0.77, ["P2P/CUMEM"]),
    "nvls": (0.99, ["NVLS"]),
}


def nccl_result(
    gpu: Gpu, ranks: int, seconds: float, algorithms: Mapping[str, tuple[float, list[str]]] = HEALTHY_NCCL
) -> CheckResult:
    """The result of one rank; one rank alone has no bus, but it moves data."""
    start, length = span("nccl", seconds)
    found = curves(algorithms if ranks > 1 else {"default": (2.1, [])})
    if ranks == 1:
        for point in (point for curve in found for point in curve["points"]):
            point["algbw_bytes_per_s"] = point.pop("busbw_bytes_per_s")
    coverage: dict[str, Any] = {
        "curves": found,
        "version": "2.27.7",
        "ranks": ranks,
        "gpus_in_plan": ranks,
        "operations": 5400,
        "operations_verified": 5400,
        **verified(length),
        "simulated": False,
    }
    measured = tuple(
        _judged(f"{curve['collective']}_busbw", curve["points"][-1]["busbw_bytes_per_s"])
        for curve in found
        if curve["algorithm"] == "default" and ranks > 1
    )
    return CheckResult("nccl", gpu.uuid, Verdict.PASS, length, measured, coverage, started_s=start)


def _power(gpu: Gpu, seconds: float) -> CheckResult:
    start, length = span("power", seconds)
    waves = [entry for entry in stretches(seconds) if entry[0]]
    mixed = next(entry for entry in stretches(seconds) if entry[0] is None)
    coverage: dict[str, Any] = {
        "waves": {
            "wanted": True,
            "run": True,
            "why": None,
            "frequencies": [
                {
                    "frequency_hz": frequency,
                    "started_s": begin,
                    "ended_s": end,
                    "periods_made": int((end - begin) * (frequency or 1)),
                    "products_verified": 60,
                    "worst_lateness_s": 0.0004,
                }
                for frequency, begin, end in waves
            ],
            "frequencies_hz": list(FREQUENCIES_HZ),
            "edges": 300,
            "products_verified": 240,
            "start_skew_s": 0.0006,
            "started_s": start,
            "ended_s": waves[-1][2],
        },
        "mixed": {"run": True, "started_s": mixed[1], "ended_s": mixed[2], "products_verified": 90},
        **verified(length),
        "simulated": False,
    }
    measured = (Measurement("mixed_bf16_throughput", 702.0 - gpu.index, "TFLOP/s"),)
    return CheckResult(
        "power", gpu.uuid, Verdict.PASS, length, measured, coverage, series=(_wave_series(seconds),), started_s=start
    )


def part_results(plan: Plan, seconds: float) -> Iterator[CheckResult]:
    """What these checks say of healthy GPUs."""
    rows = matrix(plan.gpus)
    for gpu in plan.gpus:
        yield _pcie(gpu, seconds)
        yield nvlink_result(gpu, plan.gpus, rows, seconds)
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


def with_matrix(seen: Observations, rows: Mapping[tuple[str, str], dict[str, Any]], seconds: float) -> Observations:
    """The same node with another P2P matrix."""
    new = [nvlink_result(gpu, seen.gpus, rows, seconds) for gpu in seen.gpus]
    return exchanged(seen, new)


def slow_link(rows: dict[tuple[str, str], dict[str, Any]], one: Gpu, other: Gpu, share: float) -> None:
    """Both directions of a pair at a share of what they were."""
    for key in ((one.uuid, other.uuid), (other.uuid, one.uuid)):
        for direction in ("write_bytes_per_s", "read_bytes_per_s"):
            rows[key][direction] *= share


def dead_link(rows: dict[tuple[str, str], dict[str, Any]], one: Gpu, other: Gpu) -> None:
    """Nothing comes through between two GPUs."""
    for key in ((one.uuid, other.uuid), (other.uuid, one.uuid)):
        rows[key] |= {
            "write_bytes_per_s": None,
            "read_bytes_per_s": None,
            "verified": False,
            "why": "cudaDeviceEnablePeerAccess: peer access is not supported between these two devices",
            "transfers_checked": {"write": 0, "read": 0},
        }


def wrong_data(rows: dict[tuple[str, str], dict[str, Any]], writer: Gpu, receiver: Gpu) -> None:
    """Two transfers that one GPU wrote to another arrived wrong; the receiver sees it."""
    rows[receiver.uuid, writer.uuid] |= {"verified": False, "transfers_wrong": {"write": 2, "read": 0}}


def slow_gpu(rows: dict[tuple[str, str], dict[str, Any]], gpu: Gpu, share: float) -> None:
    """All links of a GPU at a share of what they were."""
    for key, row in rows.items():
        if gpu.uuid in key:
            for direction in ("write_bytes_per_s", "read_bytes_per_s"):
                row[direction] *= share
