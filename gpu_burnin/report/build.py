"""Putting a report together out of what a run saw."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpu_burnin import __version__
from gpu_burnin.checks import CHECKS
from gpu_burnin.checks.nccl.result import NcclCoverage
from gpu_burnin.judge.coverage import missed_fault_rate, missed_fault_rate_of_gpu, verified_s
from gpu_burnin.judge.observations import Observations
from gpu_burnin.judge.verdict import Judgement
from gpu_burnin.judge.xid import is_own
from gpu_burnin.report import model
from gpu_burnin.report.file_names import SERIES
from gpu_burnin.report.formatting import covered
from gpu_burnin.report.units import finite
from gpu_burnin.system import hardware_identity
from gpu_burnin.system.host import Host
from gpu_burnin.telemetry.discover import Found
from gpu_burnin.types import JSON, Gpu, SelftestResult, Verdict, worst


@dataclass(frozen=True)
class RunFacts:
    """What identifies a run: where, when, on what. Times are RFC 3339 UTC."""

    run_id: str
    sequence: int
    node: str
    started_at: str
    finished_at: str
    host: Host
    found: Found
    facts: Mapping[str, Mapping[str, Any]]

    @property
    def hardware(self) -> dict[str, JSON]:
        """The identity of what was tested."""
        return hardware_identity.identity(self.found.gpus, self.found.driver, self.host.kernel)


def build(run: RunFacts, seen: Observations, judged: Judgement) -> model.Report:
    """The report of a run."""
    plan = seen.plan
    return model.Report(
        schema=model.SCHEMA,
        run_id=run.run_id,
        sequence=run.sequence,
        node=run.node,
        level=plan.level,
        started_at=run.started_at,
        finished_at=run.finished_at,
        simulated=seen.simulated,
        interrupted=seen.interrupted,
        verdict=judged.verdict,
        action=judged.action,
        reasons=tuple(replace(reason, details=model.plain(reason.details)) for reason in judged.reasons),
        warnings=tuple(replace(notice, details=model.plain(notice.details)) for notice in judged.notices),
        host=run.host,
        software=_software(run, judged),
        plan=model.plain(plan),
        plan_sha256=plan.digest(),
        hardware_sha256=hardware_identity.digest(run.hardware),
        gpus=tuple(model.TestedGpu(**vars(gpu), verdict=_gpu_verdict(gpu, judged)) for gpu in run.found.gpus),
        checks=tuple(replace(result, series=(), reasons=(), started_s=0.0) for result in judged.results),
        telemetry=_telemetry(seen, run.found.gpus),
        selftest=tuple(_selftest(test) for test in seen.selftests),
        coverage=_coverage(seen, judged),
    )


def _selftest(test: SelftestResult) -> model.Selftest:
    real = None if test.real is None else test.real.code
    return model.Selftest(**{**vars(test), "latency_s": finite(test.latency_s), "real": real})


def _software(run: RunFacts, judged: Judgement) -> dict[str, str | None]:
    """Versions; what the backend says of its libraries is that of the first GPU, they share one environment."""
    collectives = (result.coverage for result in judged.results if isinstance(result.coverage, NcclCoverage))
    # What stands in for NCCL on simulated hardware has versions of its own.
    versions = (coverage.version for coverage in collectives if coverage.version and not coverage.simulated)
    facts = next((facts for unit, facts in run.facts.items() if unit != "node"), {})
    return {
        "gpu_burnin": __version__,
        "python": platform.python_version(),
        "driver": run.found.driver or None,
        "cuda": run.found.cuda or None,
        "nvml": run.found.nvml or None,
        "nccl": next(versions, None),
        **{name: str(value) for name, value in facts.items() if isinstance(value, str | int | float)},
    }


def _gpu_verdict(gpu: Gpu, judged: Judgement) -> Verdict:
    """Of a GPU that was not tested (lost, left out) nothing good is known."""
    of_gpu = [reason.severity for reason in judged.reasons if gpu.uuid and reason.gpu == gpu.uuid]
    return judged.gpus.get(gpu.uuid, worst([Verdict.INCONCLUSIVE, *of_gpu]))


def _telemetry(seen: Observations, gpus: tuple[Gpu, ...]) -> model.Telemetry:
    log = seen.kernel_log
    uuids = {gpu.pci_bus_id: gpu.uuid for gpu in gpus}
    events = tuple(
        model.LoggedXid(
            event.xid,
            event.sxid,
            event.pci_bus_id,
            uuids.get(event.pci_bus_id),
            event.pid,
            event.monotonic_us,
            event.text,
            own=is_own(event, seen.rules.xids, seen.killed_pids),
        )
        for event in log.events
    )
    return model.Telemetry(
        model.KernelLog(log.source, log.alive, log.gaps, events),
        seen.telemetry.counters,
        seen.telemetry.sources,
        tuple(
            model.NvmlEvent(event.gpu, event.kind, event.data, event.count, round(event.t_s * 1e6))
            for event in seen.telemetry.events
        ),
        SERIES,
    )


def _coverage(seen: Observations, judged: Judgement) -> model.RunCoverage:
    units = tuple(
        model.UnitCoverage(
            check=result.name,
            gpu=result.gpu,
            seconds=result.seconds,
            verified_s=verified_s(result),
            covered=covered(result),
            missed_fault_rate_upper95_per_s=missed_fault_rate(result),
        )
        for result in seen.results
    )
    gpus = tuple(
        model.UnitCoverage(
            gpu=gpu.uuid,
            seconds=sum(result.seconds for result in seen.results if result.gpu == gpu.uuid),
            verified_s=sum(verified_s(result) for result in seen.results if result.gpu == gpu.uuid),
            missed_fault_rate_upper95_per_s=missed_fault_rate_of_gpu(gpu.uuid, seen.results),
        )
        for gpu in seen.plan.units
    )
    return model.RunCoverage(units, gpus, tuple(_not_run(seen, judged)), tuple(seen.plan.inject))


def _not_run(seen: Observations, judged: Judgement) -> Iterator[model.NotRun]:
    for gap in judged.gaps:
        yield model.NotRun(gap.check, gap.gpu, "interrupted" if seen.interrupted else "no result")
    for check in seen.left_out:
        yield model.NotRun(check, None, "left out by --checks or --skip")
    planned = {check.name for check in seen.plan.checks}
    busy = any(reason.code == "GPU_BUSY" for reason in judged.reasons)
    in_mig = any(gpu.instances is not None for gpu in seen.plan.gpus)
    unasked = "a foreign process uses a GPU" if busy else "not among the checks of the configuration"
    for check, row in CHECKS.items():
        if check not in planned and check not in seen.left_out:
            why = "GPUs in MIG mode reach no other GPU" if row.between_gpus and in_mig else unasked
            yield model.NotRun(check, None, "optional, and not asked for" if row.optional else why)
