"""One burn-in: plan, execute, read telemetry and kernel log, judge, report, sign."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeAlias

from gpu_burnin import evidence
from gpu_burnin.checks import CHECK_NAMES, Scope
from gpu_burnin.config import Config
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.execution import shielded
from gpu_burnin.executor import ExecutionResult, OnEvent, execute
from gpu_burnin.files import write_atomic
from gpu_burnin.hardware import load_skus, load_xids, make_reason
from gpu_burnin.history import History, read_history
from gpu_burnin.host import Host, read_host
from gpu_burnin.interrupts import Interrupts
from gpu_burnin.journal import Journal, utc_now
from gpu_burnin.known_gpus import KNOWN_GPUS, makes_known, remember, wanted_notice
from gpu_burnin.node_links import absent, node_links_of
from gpu_burnin.plan import Plan
from gpu_burnin.prepare import BUSY, Prepared, RunOptions, check_surroundings, prepare
from gpu_burnin.report import build, model, outputs
from gpu_burnin.report.series import build_series
from gpu_burnin.signing import CODE as NO_EVIDENCE
from gpu_burnin.signing import NO_HISTORY, obstacles
from gpu_burnin.signing import notice as no_evidence
from gpu_burnin.store import KERNEL_DIR, Run, Store
from gpu_burnin.telemetry import selftest as telemetry_selftest
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kernel_log import KernelLog, open_kernel_log
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.types import CheckResult, Gpu, Notice, Reason, SelftestResult, Verdict
from gpu_burnin.verdict import Judgement, KernelLogFindings, Observations, judge

__all__ = ["EXIT_CODES", "Display", "Outcome", "RunOptions", "run_burnin"]
EXIT_CODES = {
    Verdict.PASS: EXIT_PASS,
    Verdict.FAIL: EXIT_FAIL,
    Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}
# Errors of the system itself, whatever file they were met at.
_NO_MORE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
Display: TypeAlias = Callable[[tuple[Gpu, ...]], AbstractContextManager[OnEvent]]


@dataclass(frozen=True)
class Outcome:
    """A finished run: where its files are, the report as written, and what it was made of."""

    run_dir: Path
    report: model.Report
    plan: Plan
    judgement: Judgement
    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]

    @property
    def verdict(self) -> Verdict:
        """PASS, FAIL or INCONCLUSIVE."""
        return self.judgement.verdict

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 INCONCLUSIVE."""
        return EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class _Seen:
    """What execution gave, what the kernel log had just before it, and how long it may take to read it again."""

    done: ExecutionResult
    telemetry: TelemetryFindings
    log: KernelLog
    log_before: tuple[XidEvent, ...]
    log_left_s: float


def run_burnin(options: RunOptions, display: Display | None = None) -> Outcome:
    """Test this node and leave report and evidence in the state directory.

    Ctrl-C and SIGTERM end it early with a valid INCONCLUSIVE report. Evidence is signed whatever the verdict,
    but never for a run with injected faults, and not where this host cannot sign, which the report says. Raises
    GpuBurninError (exit 2) before anything has been run: wrong option or configuration, no usable GPU, another run
    under way, no way to sign where the configuration requires it; and when journal or report cannot be written: then
    the workers are ended and nothing is left of the run.
    """
    started_s = time.monotonic()
    config, store = options.config, Store(options.config.state_dir)
    check_surroundings(config)
    unsigned = () if options.inject else obstacles(config, read_host())
    with store.locked():
        store.forget_waves()
        prepared = prepare(options)
        revoked, history = store.revoked(), read_history(store, prepared.host.boot_id)
        interrupts = Interrupts()
        with _new_run(store) as (run, found), interrupts.taken():
            started_at = utc_now()
            seen = _execute(config, prepared, run, display, interrupts, started_s)
            observed = _observe(options, prepared, seen, history, unsigned)
            judged = judge(observed, load_xids())
            found.judged = None if options.inject else judged
            facts = build.RunFacts(
                run_id=run.run_id,
                sequence=run.sequence,
                node=config.node_name,
                started_at=started_at,
                finished_at=utc_now(),
                host=prepared.host,
                found=prepared.found,
                facts=seen.done.facts,
            )
            report = build.build(facts, observed, judged)
            signed = not options.inject and all(notice.code != NO_EVIDENCE for notice in observed.notices)
            series = build_series(observed.results, seen.telemetry, started_s)
            _write(run, report, series, prepared.host, config if signed else None)
            store.finish(run)
            if judged.verdict is Verdict.PASS and signed and revoked is not None:
                store.clear_revocation(revoked)
        _remember(config, run, report, observed, judged)
    _export_metrics(config, run, report)
    return Outcome(run.path, report, observed.plan, judged, judged.results, observed.selftests)


@dataclass
class _Found:
    """The judgement, once there is one that speaks of the hardware: not that of injected faults."""

    judged: Judgement | None = None


@contextlib.contextmanager
def _new_run(store: Store) -> Iterator[tuple[Run, _Found]]:
    """The directory of a new run, which vanishes again when the run cannot be written to its end.

    Raises GpuBurninError for a disk that is full or fails, and for no memory. A FAIL that cannot be reported still
    closes the gate if there is room for that.
    """
    run, found = None, _Found()
    try:
        run = store.new_run(datetime.now(UTC))
        yield run, found
    except BaseException as error:
        said = ""
        if run is not None:
            # A journal without an end would be taken for a host that died.
            shutil.rmtree(run.path, ignore_errors=True)
            if found.judged is not None:
                said = f" (its verdict was {found.judged.verdict})"
                if found.judged.verdict is Verdict.FAIL:
                    with contextlib.suppress(OSError):  # no room for that either
                        store.revoke(f"run {run.sequence} was FAIL and could not be reported")
        if (why := _why_given_up(error, store)) is None:
            raise
        raise GpuBurninError(f"{socket.gethostname()}: the run was given up{said}, since {why}") from error


def _why_given_up(error: BaseException, store: Store) -> str | None:
    """What is wrong and what to do, in words; None for an error that is no matter of this host's resources."""
    if isinstance(error, MemoryError):
        return "memory ran out; free some and run again"
    if not isinstance(error, OSError):
        return None
    if error.errno in _NO_MORE:
        return f"the system has no more processes or files for it: {error.strerror}; raise its limits and run again"
    return f"{store.root} cannot be written: {error.strerror or error}; make room or mend the disk and run again"


def _execute(
    config: Config,
    prepared: Prepared,
    run: Run,
    display: Display | None,
    interrupts: Interrupts,
    started_s: float,
) -> _Seen:
    """Run the plan with the samplers around it."""
    plan, limits = prepared.plan, prepared.plan.deadlines
    shown = shielded(display(plan.gpus)) if display else contextlib.nullcontext(_ignore)
    with Journal(run.journal, prepared.host.boot_id) as journal, shown as on_event:
        with Sampling(
            plan.gpus,
            run.path,
            on_event,
            ready_s=limits.samplers_s,
            stop_s=limits.sampler_stop_s,
            kill_s=limits.sampler_kill_s,
        ) as sampling:
            log = open_kernel_log(config.kernel_log)
            log_before = log.read(limits.kernel_log_s)[0]
            with _kernel_dir(run) as kernels:
                done = execute(
                    plan, journal, on_event, started_s=started_s, waiting=interrupts.raising, kernel_dir=kernels
                )
        telemetry = sampling.findings()
        return _Seen(done, telemetry, log, log_before, limits.kernel_log_left_s(time.monotonic() - started_s))


@contextlib.contextmanager
def _kernel_dir(run: Run) -> Iterator[Path]:
    """Where the workers of a run share compiled kernels while they are at it: nothing in it is older than the run."""
    path = run.path / KERNEL_DIR
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _observe(
    options: RunOptions, prepared: Prepared, seen: _Seen, history: History, unsigned: tuple[str, ...]
) -> Observations:
    done, plan, shortfalls = seen.done, prepared.plan, prepared.shortfalls
    if done.busy and BUSY not in shortfalls:
        # The process came after the plan was made: what was not started is not missing by accident.
        plan = replace(plan, checks=tuple(check for check in plan.checks if check.scope is Scope.NODE))
        shortfalls = (*shortfalls, BUSY)
    # Everything since boot: what happened before the run counts too.
    events, gaps, sources = seen.log.read(seen.log_left_s)
    pretended = any(result.coverage.get("simulated") is True for result in done.results)
    simulated = plan.backend == "cpu" or prepared.found.simulated or seen.log.simulated or pretended
    if not sources and not options.config.require_evidence and not options.inject:
        unsigned = (*unsigned, NO_HISTORY)
    extra: tuple[Reason, ...] = ()
    if history.died is not None:
        message = f"the host went down during the run before, while it ran: {history.died}"
        extra = (make_reason("DIED_DURING_CHECK", _check_of(history.died), message),)
    return Observations(
        plan=plan,
        gpus=prepared.found.gpus,
        results=done.results,
        selftests=(*done.selftests, *telemetry_selftest.run(plan.gpus)),
        kernel_log=KernelLogFindings(
            sources or options.config.kernel_log, bool(sources), gaps, events, before=seen.log_before
        ),
        simulated=simulated,
        allow_simulated=options.allow_simulated or options.config.allow_simulated,
        killed_pids=frozenset(done.killed_pids),
        telemetry=seen.telemetry,
        extra=extra,
        left_out=prepared.left_out,
        shortfalls=shortfalls,
        notices=(
            *_notices(options, prepared),
            *_kernel_notices(seen.done),
            *((no_evidence(unsigned),) if unsigned else ()),
        ),
        opens_gate=not unsigned,
        interrupted=done.interrupted,
        passed_this_boot=history.passed_this_boot,
        last_reasons=history.last_reasons,
        restarted=history.restarted,
    )


def _notices(options: RunOptions, prepared: Prepared) -> tuple[Notice, ...]:
    """What the run knows beforehand: what it took the node for, and GPUs that should get an extended burn-in."""
    found = [absent(node_links_of(prepared.plan.options), prepared.found.gpus, load_skus())]
    if not makes_known(prepared.plan) and not prepared.plan.inject:
        found.append(wanted_notice(prepared.new_gpus, options.config.extended_for_new_s, prepared.record_problem))
    return tuple(notice for notice in found if notice is not None)


def _kernel_notices(done: ExecutionResult) -> tuple[Notice, ...]:
    """Compiled kernels that a worker found damaged, or could not share."""
    told = ((uuid, why) for uuid, facts in done.facts.items() for why in facts.get("kernels_refused", ()))
    return tuple(Notice("KERNELS_NOT_SHARED", "run", why, None if uuid == "node" else uuid) for uuid, why in told)


def _remember(config: Config, run: Run, report: model.Report, seen: Observations, judged: Judgement) -> None:
    """Put the GPUs that have passed an extended burn-in on record, so that none asks for it again."""
    if judged.verdict is not Verdict.PASS or not makes_known(seen.plan):
        return
    at = report["finished_at"]
    try:
        remember(config.state_dir, seen.plan.gpus, run_id=run.run_id, passed_at=at, simulated=seen.simulated)
    except OSError as error:
        raise GpuBurninError(
            f"{socket.gethostname()}: the run is complete in {run.path}, but {config.state_dir / KNOWN_GPUS} "
            f"cannot be written: {error.strerror or error}; make room, or its GPUs ask for an extended burn-in again"
        ) from error


def _check_of(died: str) -> str:
    """The first check that was under way; "run" where no check is known."""
    name = died.split(",")[0]
    return name if name in CHECK_NAMES else "run"


def _write(run: Run, report: model.Report, series: Mapping[str, Any], host: Host, signer: Config | None) -> None:
    """The report's files, then evidence: a reader that sees the evidence finds the report it speaks of.

    `signer` None: no evidence is made.
    """
    data = outputs.write(run.path, report, series)
    if signer is None:
        return
    statement = evidence.Statement(
        node=report["node"],
        machine_id=host.machine_id,
        boot_id=host.boot_id,
        report_sha256=hashlib.sha256(data).hexdigest(),
        verdict=Verdict(report["verdict"]),
        level=report["level"],
        plan_sha256=report["plan_sha256"],
        hardware_sha256=report["hardware_sha256"],
        simulated=report["simulated"],
        sequence=run.sequence,
        finished_at=report["finished_at"],
    )
    evidence.write_evidence(run.path, statement, signer.host_key)


def _export_metrics(config: Config, run: Run, report: model.Report) -> None:
    """Last, since report and evidence do not depend on it. Readable by node_exporter, which is not root.

    Alerts watch this file: a run with injected faults leaves it as it is.
    """
    if config.metrics_file is None or report["coverage"]["injected"]:
        return
    try:
        write_atomic(config.metrics_file, outputs.metrics_bytes(report), mode=0o644)
    except OSError as error:
        raise GpuBurninError(
            f"{socket.gethostname()}: the run is complete in {run.path}, but metrics_file {config.metrics_file} "
            f"cannot be written: {error.strerror or error}; make room or correct the configuration"
        ) from error


def _ignore(_: object) -> None:
    """A display that shows nothing."""
