"""The self-test of telemetry: made-up faults go the way real ones go, and each must be seen on the right GPU.

It needs no GPU and proves the logic of the detectors, not the driver: messages as a sampler and the kernel send
them, through the real parsers, records and judges.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpu_burnin.checks.power.result import Mixture, PowerCoverage, WavesMade
from gpu_burnin.engine.plan import make_plan
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.judge.power import judge_power
from gpu_burnin.judge.power_phases import BRAKE, HW_THERMAL, IDLE
from gpu_burnin.judge.telemetry import judge_telemetry
from gpu_burnin.judge.xid import judge_xids
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kmsg import parse_record, xid_event
from gpu_burnin.telemetry.sampling_record import Record
from gpu_burnin.types import CheckResult, Gpu, Reason, SelftestResult, Verdict

SCOPE = "detector logic only"
_INTERVAL_S, _STALL_S = 0.1, 10.0
_COUNTER = "ecc_volatile_uncorrected_dram"
_Message = dict[str, Any]
# Facility kern with level error, as the kernel writes; facility user, as anybody can.
_KERNEL, _USER = 3, 14
_USER_US, _KERNEL_US = 1, 2


def run(gpus: Sequence[Gpu]) -> tuple[SelftestResult, ...]:
    """Each fault on each GPU in turn; one result a fault, detected only if seen on every GPU and on no other.

    Without a GPU there is nothing to attribute a fault to, and no result.
    """
    if not gpus:
        return ()
    gpus = [replace(gpu, instances=None) for gpu in gpus]  # counters and the kernel's lines are of whole GPUs
    faults: list[tuple[str, str, str, Callable[[Gpu], Iterable[Reason]]]] = [
        ("xid_79 line", "kernel_log", "XID_FATAL", lambda blamed: _log_reasons(gpus, blamed)),
        *(
            (fault, "counters", code, lambda blamed, make=make: _reasons(gpus, {blamed.uuid: make(_healthy())}))
            for fault, code, make in (
                ("jump ecc", "ECC_UNCORRECTED", _jump),
                ("fall ecc", "COUNTER_LOST", _fall),
                ("vanish ecc", "COUNTER_LOST", _vanish),
                ("dead source", "TELEMETRY_LOST", _dead),
                ("slowdown throttle", "THROTTLED", _throttle),
            )
        ),
        ("brake power", "counters", "POWER_BRAKE", lambda blamed: _power_reasons(gpus, blamed)),
    ]
    quiet = not _reasons(gpus, {}) and not _power_reasons(gpus, None)
    return tuple(_test(fault, check, code, gpus, make, quiet) for fault, check, code, make in faults)


def _test(
    fault: str, check: str, code: str, gpus: Sequence[Gpu], make: Callable[[Gpu], Iterable[Reason]], quiet: bool
) -> SelftestResult:
    """`quiet`: a healthy run gave no reason, so that a judge that always reports does not count as good."""
    started_s = time.perf_counter()
    seen = all([(reason.code, reason.gpu) for reason in make(blamed)] == [(code, blamed.uuid)] for blamed in gpus)
    return SelftestResult(
        fault=fault,
        check=check,
        gpu=None,
        injected=True,
        detected=seen and quiet,
        latency_s=time.perf_counter() - started_s,
        scope=SCOPE,
    )


def _log_reasons(gpus: Sequence[Gpu], blamed: Gpu) -> Iterable[Reason]:
    """A line of the kernel counts, the same line written by a program does not."""
    text = f"NVRM: Xid (PCI:{blamed.pci_bus_id.rpartition('.')[0]}): 79, GPU has fallen off the bus."
    lines = (f"{_USER},0,{_USER_US},-;{text}", f"{_KERNEL},1,{_KERNEL_US},-;{text}")
    events = [event for line in lines if (record := parse_record(line)) and (event := xid_event(record))]
    if [event.monotonic_us for event in events] != [_KERNEL_US]:
        return ()
    log = KernelLogFindings("self-test", True, events=tuple(events))
    return judge_xids(replace(_observations(gpus, {}), kernel_log=log)).reasons


def _power_reasons(gpus: Sequence[Gpu], blamed: Gpu | None) -> Iterable[Reason]:
    """What the judge of the power check says when the power brake of one GPU comes on in the second of the waves."""
    waves, mixed = WavesMade(started_s=2.0, ended_s=3.0), Mixture(run=False, started_s=0.0, ended_s=0.0)
    made = PowerCoverage(waves=waves, mixed=mixed)
    results = tuple(CheckResult("power", gpu.uuid, Verdict.PASS, 1.0, coverage=made) for gpu in gpus)
    faulty = {} if blamed is None else {blamed.uuid: _brake(_healthy())}
    return judge_power(replace(_observations(gpus, faulty), results=results)).reasons


def _reasons(gpus: Sequence[Gpu], faulty: dict[str, list[_Message]]) -> Iterable[Reason]:
    """What the judge says of a run whose samplers sent these messages, healthy ones where none are given."""
    return judge_telemetry(_observations(gpus, faulty)).reasons


def _observations(gpus: Sequence[Gpu], faulty: dict[str, list[_Message]]) -> Observations:
    """A run without results and with a silent kernel log, whose samplers sent these messages."""
    return Observations(
        plan=make_plan("quick", backend="cpu", gpus=gpus, seed=0, selftest=False),
        gpus=tuple(gpus),
        results=(),
        selftests=(),
        kernel_log=KernelLogFindings("self-test", True),
        simulated=False,
        allow_simulated=False,
        telemetry=_findings(gpus, faulty),
    )


def _findings(gpus: Sequence[Gpu], faulty: dict[str, list[_Message]]) -> TelemetryFindings:
    records = []
    for gpu in gpus:
        record = Record(gpu, _INTERVAL_S, _STALL_S)
        for message in faulty.get(gpu.uuid, _healthy()):
            record.feed(message)
        record.ended(3.0)
        records.append(record)
    return TelemetryFindings(
        counters=tuple(counter for record in records for counter in record.counters()),
        series=tuple(record.series() for record in records),
        sources=tuple(source for record in records for source in record.sources()),
    )


def _healthy() -> list[_Message]:
    """What the sampler of a healthy GPU says in a short run."""
    ready: _Message = {"type": "ready", "t_s": 1.0, "counters": {_COUNTER: 7}, "limits": {"slowdown_c": 89}}
    ready |= {"simulated": False, "unsupported": {}, "events": ["xid"], "events_why": ""}
    counters: _Message = {"type": "counters", "t_s": 3.0, "counters": {}}
    finished: _Message = {"type": "finished", "t_s": 3.0, "events_why": ""}
    return [ready, _second(2.0, IDLE), _second(3.0, IDLE), counters, finished]


def _second(t_s: float, bits: int) -> _Message:
    columns = {"temperature_c": [50, 51.0, 52], "power_w": [600.0, 650.0, 700.0]}
    return {"type": "sample", "t_s": t_s, "samples": 10, "late": 0, "columns": columns, "reasons": bits,
            "bits": {str(bits): 10}}  # fmt: skip


def _jump(messages: list[_Message]) -> list[_Message]:
    messages[3]["counters"] = {_COUNTER: 8}
    return messages


def _fall(messages: list[_Message]) -> list[_Message]:
    messages[3]["counters"] = {_COUNTER: 0}
    return messages


def _vanish(messages: list[_Message]) -> list[_Message]:
    messages[3]["counters"] = {_COUNTER: "not_supported"}
    return messages


def _dead(messages: list[_Message]) -> list[_Message]:
    return messages[:2]


def _throttle(messages: list[_Message]) -> list[_Message]:
    messages[2] = _second(3.0, HW_THERMAL)
    return messages


def _brake(messages: list[_Message]) -> list[_Message]:
    messages[2] = _second(3.0, BRAKE)
    return messages
