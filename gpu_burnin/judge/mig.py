"""What of GPUs in MIG mode nothing was put on: added up over the instances of each, and said. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from gpu_burnin.checks.hbm.result import HbmCoverage
from gpu_burnin.checks.sm.result import SmCoverage
from gpu_burnin.engine.plan import Plan
from gpu_burnin.hardware import make_reason
from gpu_burnin.judge.observations import Findings, Observations
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.quantities import count, size
from gpu_burnin.types import JSON, CheckResult, Gpu, Notice, Reason

CHECK = "plan"
_Said = TypeVar("_Said", Reason, Notice)
NO_FLOOR = "a MIG instance: the floors are those of a whole GPU"


@dataclass(frozen=True)
class Reached:
    """Of one GPU in MIG mode: how many instances it has and were tested, and what was tested in them all together.

    `memory_bytes` is the GPU's, `memory_outside_bytes` what belongs to no instance. Multiprocessors are counted by the
    sm check in each instance; NVML does not tell how many the GPU has outside of them.
    """

    instances: int
    instances_tested: int
    memory_bytes: int
    memory_outside_bytes: int
    memory_tested_bytes: int
    multiprocessors: int
    multiprocessors_tested: int


def without_floors(seen: Observations) -> tuple[CheckResult, ...]:
    """The results, those of instances with the reason why no floor judges them."""
    instances = {unit.uuid for unit in seen.plan.units if unit.instance is not None}
    return tuple(
        replace(result, coverage=replace(result.coverage, no_floor_why=NO_FLOOR)) if result.gpu in instances else result
        for result in seen.results
    )


def of_gpus(plan: Plan, findings: Findings) -> Findings:
    """The findings, those on a MIG instance as its GPU's: that is what is reset, repaired and known by its serial."""
    parts = {unit.uuid: (gpu, unit) for gpu in plan.gpus for unit in gpu.units if unit.instance is not None}
    return Findings(
        tuple(_of_gpu(one, *parts[one.gpu]) if one.gpu in parts else one for one in findings.reasons),
        tuple(_of_gpu(one, *parts[one.gpu]) if one.gpu in parts else one for one in findings.notices),
    )


def _of_gpu(one: _Said, gpu: Gpu, unit: Gpu) -> _Said:
    where = f"MIG {unit.instance} ({unit.name.rpartition(' ')[2]})"
    message = f"{where}: {one.message.removeprefix(f'{unit.label}: ')}"
    return replace(one, gpu=gpu.uuid, message=message, details={**one.details, "mig_instance": unit.uuid})


def judge_mig(seen: Observations) -> Findings:
    """COVERAGE_LOW for a GPU in MIG mode of which no instance, or not each, was put under load; a note of what no
    instance reaches. Nothing where only the node was looked at."""
    if not any(check.per_gpu for check in seen.plan.checks):
        return Findings()
    gpus = [gpu for gpu in seen.plan.gpus if gpu.instances is not None]
    return Findings(tuple(reason for gpu in gpus for reason in _untested(gpu)), tuple(_notes(gpus, seen)))


def reached(gpu: Gpu, results: Iterable[CheckResult]) -> Reached:
    """What was tested in the instances of a GPU, all together."""
    instances = gpu.instances or ()
    # Those that share memory would be counted twice, and nothing is tested in them.
    inside = sum(one.memory_bytes for one in instances if not one.shares_memory)
    own = [result for result in results if result.gpu in gpu.uuids]
    memory = [one.coverage.covered_bytes for one in own if isinstance(one.coverage, HbmCoverage)]
    sms = [one.coverage.sms_covered for one in own if isinstance(one.coverage, SmCoverage)]
    return Reached(
        instances=len(instances),
        instances_tested=len({result.gpu for result in own}),
        memory_bytes=gpu.memory_bytes,
        memory_outside_bytes=max(0, gpu.memory_bytes - inside),
        memory_tested_bytes=sum(memory),
        multiprocessors=sum(one.multiprocessors for one in instances),
        multiprocessors_tested=sum(sms),
    )


def _untested(gpu: Gpu) -> Iterator[Reason]:
    shared = [one for one in gpu.instances or () if one.shares_memory]
    if not gpu.instances:
        message = (
            f"{gpu.label} is in MIG mode and has no instance, so nothing of it was tested: make its instances "
            "(nvidia-smi mig -cgi PROFILE,... -C) and test again"
        )
        yield make_reason("COVERAGE_LOW", CHECK, message, gpu=gpu.uuid, details={"instances": 0})
    elif shared:
        profiles: list[JSON] = [*sorted({one.profile for one in shared})]
        message = (
            f"{gpu.label}: {count(len(shared), 'MIG device')} ({', '.join(map(str, profiles))}) share the memory of a "
            "GPU instance, so no worker can fill it, and none was started on them: give each GPU instance one compute "
            "instance (nvidia-smi mig -cgi PROFILE,... -C) and test again"
        )
        yield make_reason("COVERAGE_LOW", CHECK, message, gpu=gpu.uuid, details={"profiles": profiles})


def _notes(gpus: list[Gpu], seen: Observations) -> Iterator[Notice]:
    """One for the node: its GPUs mostly have the same instances."""
    found = {gpu: reached(gpu, seen.results) for gpu in gpus if gpu.instances}
    if not found:
        return
    alike: dict[Reached, list[Gpu]] = {}
    for gpu, one in found.items():
        alike.setdefault(one, []).append(gpu)
    told = "; ".join(
        f"of {'each of ' if len(same) > 1 else ''}{', '.join(gpu.short for gpu in same)} {_reached_text(one, seen)}"
        for one, same in alike.items()
    )
    message = (
        f"tested by MIG instance: {told}. Not tested: links to other GPUs and collectives, which MIG mode does not "
        "have, and rates and power against the figures of a whole GPU"
    )
    details: dict[str, JSON] = {"gpus": {gpu.uuid: to_json(one) for gpu, one in found.items()}}
    yield Notice("MIG_REACH", CHECK, message, details=details)


def _reached_text(one: Reached, seen: Observations) -> str:
    """What was tested of a GPU, in words. On simulated hardware that is no memory of a GPU and no multiprocessor."""
    outside = f"{size(one.memory_outside_bytes)} of {size(one.memory_bytes)} of memory belong to no instance"
    if seen.simulated:
        return f"{one.instances_tested} of {count(one.instances, 'instance')} (simulated), {outside}"
    return (
        f"{one.instances_tested} of {count(one.instances, 'instance')}, {size(one.memory_tested_bytes)} of "
        f"{size(one.memory_bytes)} of memory ({size(one.memory_outside_bytes)} belong to no instance), and "
        f"{one.multiprocessors_tested} of the {one.multiprocessors} multiprocessors of the instances"
    )
