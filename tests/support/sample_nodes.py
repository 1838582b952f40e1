"""Nodes whose links, memory, collectives or power are ill in one way each, and the table of all sample reports."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

from gpu_burnin.checks.nccl.result import Curve
from gpu_burnin.checks.power.result import NoWaves
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Observations
from gpu_burnin.types import CheckResult, Gpu, Verdict
from tests.support import coverages
from tests.support.sample_parts import (
    Pairs,
    dcgm_result,
    dead,
    dead_link,
    exchanged,
    matrix,
    nccl_result,
    slow_gpu,
    slow_link,
    with_matrix,
    wrong_data,
)
from tests.support.sample_reports import Sample, doubtful_8, extended_8, faulty_8, healthy_1, healthy_8, sample

SECONDS = 290.0


def links(change: Callable[[Pairs, Sequence[Gpu]], object], count: int = 8) -> Sample:
    """A node whose P2P matrix was changed; what is to blame is for the judge to say."""

    def changed(seen: Observations) -> Observations:
        rows = matrix(seen.gpus)
        change(rows, seen.gpus)
        return with_matrix(seen, rows, SECONDS)

    return sample(count=count, change=changed)


def without_floors(seen: Observations) -> Observations:
    """The same of a model whose copies between GPUs have no floor."""
    unjudged = tuple(
        replace(r, measurements=tuple(replace(m, floor=None) for m in r.measurements)) if r.name == "nvlink" else r
        for r in seen.results
    )
    return replace(seen, results=unjudged)


@functools.cache
def one_slow_link() -> Sample:
    """The link between GPU 2 and GPU 5 at a tenth."""
    return links(lambda rows, gpus: slow_link(rows, gpus[2], gpus[5], 0.104))


@functools.cache
def one_link_a_little_slow() -> Sample:
    """GPUs of a model without a floor, the link between GPU 0 and GPU 7 at two thirds: no more than a warning."""

    def changed(seen: Observations) -> Observations:
        rows = matrix(seen.gpus, rate=180e9)
        slow_link(rows, seen.gpus[0], seen.gpus[7], 0.67)
        return without_floors(with_matrix(seen, rows, SECONDS))

    return sample(change=changed)


@functools.cache
def one_slow_gpu() -> Sample:
    """All links of GPU 4 at half."""
    return links(lambda rows, gpus: slow_gpu(rows, gpus[4], 0.5))


@functools.cache
def dead_and_wrong_links() -> Sample:
    """No data between GPU 1 and GPU 6, wrong data from GPU 3 to GPU 0, nothing at all from GPU 7."""

    def changed(seen: Observations) -> Observations:
        gpus, rows = seen.gpus, matrix(seen.gpus)
        dead_link(rows, gpus[1], gpus[6])
        wrong_data(rows, gpus[3], gpus[0])
        lost = {key: row for key, row in rows.items() if key[0] != gpus[7].uuid}
        seen = with_matrix(seen, lost, SECONDS)
        return replace(seen, results=tuple(r for r in seen.results if (r.name, r.gpu) != ("nvlink", gpus[7].uuid)))

    return sample(change=changed)


@functools.cache
def no_p2p_4() -> Sample:
    """Four GPUs behind PCIe, two of them without P2P to the others."""

    def changed(seen: Observations) -> Observations:
        rows = matrix(seen.gpus, "pcie", 26.3e9)
        for (one, other), row in rows.items():
            if (one == seen.gpus[3].uuid) != (other == seen.gpus[3].uuid):
                why = "the driver refuses P2P here: ACS is on in the bridge above (turn ACS off in the firmware)"
                rows[one, other] = dead(row, why)
        return without_floors(with_matrix(seen, rows, SECONDS))

    return sample(count=4, change=changed)


@functools.cache
def healthy_2() -> Sample:
    """Two healthy GPUs."""
    return sample(count=2)


@functools.cache
def healthy_16() -> Sample:
    """Sixteen healthy GPUs with another program's opinion."""

    def changed(seen: Observations) -> Observations:
        return exchanged(seen, [dcgm_result(seen.plan)])

    return sample(count=16, change=changed)


@functools.cache
def slow_link_16() -> Sample:
    """Sixteen GPUs, the link between GPU 11 and GPU 14 slow."""
    return links(lambda rows, gpus: slow_link(rows, gpus[11], gpus[14], 0.3), count=16)


@functools.cache
def bit_lane_2() -> Sample:
    """Bit lane 17 of GPU 1 stuck in a stretch of memory, a burst elsewhere."""

    def changed(seen: Observations) -> Observations:
        gpu = seen.gpus[1]
        patterns = ("address", "random", "walking", "modulo")
        lane = [
            {
                "offset_bytes": 81_204_281_344 + 4096 * step,
                "bit_lanes": [17],
                "pattern": patterns[step % 4],
                "expected": "0x0000000000020000",
                "got": "0x0000000000000000",
            }
            for step in range(28)
        ]
        message = "412 memory words came back wrong: bit lane 17 in 412 words, first at offset 81204281344"
        old = next(r for r in seen.results if (r.name, r.gpu) == ("hbm", gpu.uuid))
        new = replace(
            old,
            verdict=Verdict.FAIL,
            reasons=(make_reason("HBM_BIT_ERROR", "hbm", message, gpu=gpu.uuid, details=lane[0]),),
            errors=tuple(lane),
            coverage=replace(
                old.coverage,
                wrong_words=412,
                shape_words="bit lane 17 in 412 words",
                wrong_words_by_pattern={"walking": 412, "random": 206},
            ),
        )
        return exchanged(seen, [new])

    return sample(count=2, change=changed)


@functools.cache
def nccl_fallback_8() -> Sample:
    """NCCL went through host memory."""

    def changed(seen: Observations) -> Observations:
        ways = {"default": (0.048, ["SHM"]), "ring": (0.047, ["SHM"])}
        new = []
        for gpu in seen.gpus:
            result = nccl_result(gpu, len(seen.gpus), SECONDS, ways)
            missing = Curve(collective="all_reduce", algorithm="nvls", why="NVLS is not there")
            old = coverages.nccl(result)
            coverage = replace(old, curves=(*old.curves, missing))
            message = "all_reduce went through host memory (SHM), on this model it has to go over NVLink"
            reason = make_reason("COVERAGE_LOW", "nccl", message, gpu=gpu.uuid)
            new.append(replace(result, verdict=Verdict.INCONCLUSIVE, reasons=(reason,), coverage=coverage))
        return exchanged(seen, new)

    return sample(change=changed)


@functools.cache
def power_brake_8() -> Sample:
    """GPU 3 was braked; on the others the waves ran; another program saw it too."""

    return sample(
        brakes={3: (258.0, 262.2)},
        change=lambda seen: exchanged(seen, [dcgm_result(seen.plan, targeted_power="Fail")]),
    )


@functools.cache
def no_waves_1() -> Sample:
    """One GPU whose waves were not granted."""

    def changed(seen: Observations) -> Observations:
        def without(result: CheckResult) -> CheckResult:
            why = "no grant for power waves came within 600 s"
            coverage = replace(coverages.power(result), waves=NoWaves(wanted=True, why=why))
            return replace(result, coverage=coverage, series=())

        return exchanged(seen, [without(result) for result in seen.results if result.name == "power"])

    return sample(count=1, change=changed)


SAMPLES: dict[str, Callable[[], Sample]] = {
    "healthy-8": healthy_8,
    "faulty-8": faulty_8,
    "doubtful-8": doubtful_8,
    "healthy-1": healthy_1,
    "extended-8": extended_8,
    "healthy-2": healthy_2,
    "healthy-16": healthy_16,
    "slow-link-8": one_slow_link,
    "warned-link-8": one_link_a_little_slow,
    "slow-link-16": slow_link_16,
    "slow-gpu-8": one_slow_gpu,
    "dead-links-8": dead_and_wrong_links,
    "no-p2p-4": no_p2p_4,
    "bit-lane-2": bit_lane_2,
    "nccl-fallback-8": nccl_fallback_8,
    "power-brake-8": power_brake_8,
    "no-waves-1": no_waves_1,
}
