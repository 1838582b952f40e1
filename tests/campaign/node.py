"""The node under test as the verdict sees it: everything healthy but what a case changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from gpu_burnin.checks import REGISTRY, CheckContext
from gpu_burnin.device.port import Device
from gpu_burnin.engine.plan import Plan, make_plan
from gpu_burnin.hardware import load_skus
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.judge.verdict import Judgement, judge
from gpu_burnin.telemetry.counters import UNITS
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.sampling_record import Record
from gpu_burnin.telemetry.state import NodeState, to_gpu
from gpu_burnin.types import JSON, CheckResult, Gpu, SelftestResult
from tests.support.devices import ComputingDevice

# Small products and little memory: the detectors are the same, a case takes milliseconds.
SHAPES = {
    "gemm_m": 64, "gemm_n": 64, "gemm_k": 64, "hbm_bytes": 1 << 16, "transfer_bytes": 1 << 14,
    "collective_bytes": 1 << 14,
}  # fmt: skip


def gpus_of(node: NodeState) -> tuple[Gpu, ...]:
    """The GPUs as discovery lists them."""
    found = load_skus().find
    skus = [found(state.pci_device_id, state.pci_subsystem_id) for state in node.gpus]
    return tuple(to_gpu(state, sku.key if sku else "") for state, sku in zip(node.gpus, skus, strict=True))


def made_up_gpus(count: int) -> tuple[Gpu, ...]:
    """GPUs for the areas that need no NVML."""
    return tuple(
        Gpu(i, f"GPU-{i:08x}", f"S{i}", f"0000:{0x1B + i:02x}:00.0", "NVIDIA H200", "h200-sxm", 141 << 30, "96.00")
        for i in range(count)
    )


def plan_of(gpus: tuple[Gpu, ...], *checks: str, seed: int = 1, **more: Any) -> Plan:
    """A quick plan on the CPU device with small shapes."""
    return make_plan("quick", backend="cpu", gpus=gpus, checks=checks, seed=seed, shapes=SHAPES, **more)


def healthy_telemetry(gpus: Sequence[Gpu]) -> TelemetryFindings:
    """What the samplers of healthy GPUs saw: counters that stand, no heat, power capping now and then."""
    own = {"counters": dict.fromkeys(UNITS, 0), "changed": {}, "temperature_c": [50, 51.0, 52], "reasons": 4}
    return sampled(gpus, [own] * len(gpus))


def sampled(gpus: Sequence[Gpu], seen: Sequence[Mapping[str, Any]]) -> TelemetryFindings:
    """Findings from what each GPU's sampler would have sent, through the real record of its messages.

    For each GPU: `counters` at first, those that `changed` at the end, lowest, mean and highest `temperature_c`,
    and the clocks event `reasons` of all samples.
    """
    records = []
    for gpu, own in zip(gpus, seen, strict=True):
        record = Record(gpu, 0.1, 10.0)
        for message in _sampler_messages(own):
            record.feed(message)
        record.ended(3.0)
        records.append(record)
    return TelemetryFindings(
        counters=tuple(counter for record in records for counter in record.counters()),
        series=tuple(record.series() for record in records),
        sources=tuple(source for record in records for source in record.sources()),
    )


def _sampler_messages(own: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Two seconds of samples."""
    columns = {"temperature_c": own["temperature_c"], "power_w": [600.0, 650.0, 700.0]}
    bits = {str(bit): 10 for bit in (1 << n for n in range(16)) if own["reasons"] & bit}
    sample = {"type": "sample", "samples": 10, "late": 0, "columns": columns, "reasons": own["reasons"], "bits": bits}
    return [
        {
            "type": "ready", "t_s": 1.0, "simulated": True, "counters": own["counters"], "unsupported": {},
            "events": ["xid"], "limits": {"slowdown_c": 89, "memory_max_c": 95}, "events_why": "",
        },
        {**sample, "t_s": 2.0},
        {**sample, "t_s": 3.0},
        {"type": "counters", "t_s": 3.0, "counters": own["changed"]},
        {"type": "finished", "t_s": 3.0, "events_why": ""},
    ]  # fmt: skip


def observe(
    plan: Plan, results: Iterable[CheckResult], selftests: Iterable[SelftestResult] = (), **changes: Any
) -> Observations:
    """What a run saw, on simulated hardware that may pass, with an empty kernel log and healthy telemetry."""
    seen = Observations(
        plan=plan,
        gpus=plan.gpus,
        results=tuple(results),
        selftests=tuple(selftests),
        kernel_log=KernelLogFindings("campaign", alive=True),
        simulated=True,
        allow_simulated=True,
        telemetry=healthy_telemetry(plan.gpus),
    )
    return replace(seen, **changes)


@cache
def _clean(check: str, precisions: tuple[str, ...] | None) -> tuple[CheckResult, tuple[SelftestResult, ...]]:
    """One real run of a check and its self-test on the CPU device, with nothing wrong."""
    context = context_of(made_up_gpus(1), 0, seed=11, precisions=precisions)
    return REGISTRY[check].run(context), REGISTRY[check].selftest(context)


def clean(
    check: str, gpu: Gpu, precisions: tuple[str, ...] | None = None
) -> tuple[CheckResult, tuple[SelftestResult, ...]]:
    """What a healthy GPU gives in a check, self-test included: really run, once in a process, and given to this GPU."""
    result, tests = _clean(check, precisions)
    return replace(result, gpu=gpu.uuid), tuple(replace(test, gpu=gpu.uuid) for test in tests)


def context_of(
    gpus: tuple[Gpu, ...],
    index: int,
    *,
    seed: int,
    device: Device | None = None,
    precisions: tuple[str, ...] | None = None,
    inject: tuple[str, ...] = (),
    shapes: Mapping[str, int] = SHAPES,
    level: str = "quick",
    options: Mapping[str, JSON] | None = None,
    budget_s: float = 0.0,
) -> CheckContext:
    """What the worker of one GPU gives to a check: one round on the CPU device, or on the device given.

    An exchange has no other members; together.py gives it some.
    """
    chosen = device or ComputingDevice()
    chosen.open(gpus[index])
    if precisions is not None:
        assert isinstance(chosen, ComputingDevice)
        chosen.precisions = precisions
    return CheckContext(
        seed=seed, level=level, budget_s=budget_s, gpus=gpus, gpu=gpus[index], device=chosen, shapes=shapes,
        inject=inject, options=options or {}, exchange=lambda data: {gpus[index].uuid: data},
    )  # fmt: skip


def verdict(seen: Observations) -> Judgement:
    """The real verdict by the shipped XID table."""
    return judge(seen)
