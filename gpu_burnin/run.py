"""One burn-in: plan, execute, read telemetry and kernel log, judge, report, sign."""

from __future__ import annotations

import contextlib
import errno
import logging
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeAlias

from gpu_burnin.checks import CHECK_NAMES
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.execution import shielded
from gpu_burnin.engine.executor import ExecutionResult, OnEvent, execute
from gpu_burnin.engine.journal import Journal
from gpu_burnin.engine.plan import Plan
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, EXIT_USAGE, GpuBurninError
from gpu_burnin.hardware import load_skus, make_reason
from gpu_burnin.judge import telemetry_selftest
from gpu_burnin.judge.observations import KernelLogFindings, Observations
from gpu_burnin.judge.verdict import Judgement, judge
from gpu_burnin.node import journal_entries
from gpu_burnin.node.history import History, read_history, unfinished_notice
from gpu_burnin.node.known_gpus import makes_known, wanted_notice
from gpu_burnin.node.prepare import BUSY, Prepared, RunOptions, check_options, check_surroundings, prepare
from gpu_burnin.node.recording import Finished, record
from gpu_burnin.node.signing import CODE as NO_EVIDENCE
from gpu_burnin.node.signing import NO_HISTORY, obstacles, refuse_unsigned
from gpu_burnin.node.signing import notice as no_evidence
from gpu_burnin.node.store import KERNEL_DIR, RunDirectory, Store
from gpu_burnin.report import build, model
from gpu_burnin.report.series import build_series
from gpu_burnin.settings.config import Config
from gpu_burnin.system.clock import RunClock, Times
from gpu_burnin.system.host import read_host
from gpu_burnin.system.interrupts import Interrupts
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry.findings import TelemetryFindings
from gpu_burnin.telemetry.kernel_log import KernelLog, open_kernel_log
from gpu_burnin.telemetry.kmsg import XidEvent
from gpu_burnin.telemetry.node_links import absent, node_links_of
from gpu_burnin.telemetry.sampling import Sampling
from gpu_burnin.types import CheckResult, Gpu, Notice, Reason, SelftestResult, Verdict

__all__ = ["EXIT_CODES", "Display", "Outcome", "RunOptions", "run_burnin"]
EXIT_CODES = {
    Verdict.PASS: EXIT_PASS,
    Verdict.FAIL: EXIT_FAIL,
    Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}
# Errors of the system itself, whatever file they were met at.
_NO_MORE = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
# Where there is no report, the message gives this many reasons.
_MOST_REASONS = 3
_LOG = logging.getLogger(__name__)
Display: TypeAlias = Callable[[tuple[Gpu, ...]], AbstractContextManager[OnEvent]]


@dataclass(frozen=True)
class Outcome:
    """A finished run: where its files are, the report, and what it was made of.

    `evidence_lost`: evidence was due and could not be left. `problems` has a sentence for all that was not written.
    """

    run_dir: Path
    report: model.Report
    plan: Plan
    judgement: Judgement
    results: tuple[CheckResult, ...]
    selftests: tuple[SelftestResult, ...]
    evidence_lost: bool = False
    problems: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """PASS, FAIL or INCONCLUSIVE."""
        return self.judgement.verdict

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 INCONCLUSIVE, and for a PASS whose evidence was lost."""
        uncounted = self.verdict is Verdict.PASS and self.evidence_lost
        return EXIT_INCONCLUSIVE if uncounted else EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class Seen:
    """What execution gave, what the kernel log had just before it, how long it may take to read it again, and what kept
    the journal from being written."""

    done: ExecutionResult
    telemetry: TelemetryFindings
    log: KernelLog
    log_before: tuple[XidEvent, ...]
    log_left_s: float
    unjournaled: OSError | None


def run_burnin(options: RunOptions, display: Display | None = None, interrupts: Interrupts | None = None) -> Outcome:
    """Test this node and leave report and evidence in the state directory.

    From its first check on the gate is closed to all but this run's own PASS. Ctrl-C and SIGTERM end it early with a
    valid INCONCLUSIVE report. Evidence is signed whatever the verdict, but not where this host cannot sign, which the
    report says, and never for a run with injected faults, which leaves the gate as it is. What cannot be written takes
    no verdict away: it is in `problems` of the outcome.

    Raises GpuBurninError (exit 2) before any check has begun: wrong option or configuration, another run under way, no
    way to sign where the configuration requires it, no room for the run; exit 3 where no GPU answers, or the run ends
    without a verdict; later only where its report cannot be made (exit code of the verdict). `interrupts` takes the
    signals, in the default way unless given.
    """
    interrupts, planted = interrupts or Interrupts(), bool(options.inject)
    started_s = time.monotonic()
    config, store = options.config, Store(options.config.state_dir)
    check_options(options)
    check_surroundings(config)
    unsigned = () if planted else obstacles(config, read_host())
    with store.locked():
        store.forget_power_request()
        # Before the gate is asked whether a pass stands: a revocation of after that is none that this run clears.
        revoked = store.revoked()
        prepared = prepare(options)
        refuse_unsigned(config, unsigned, simulated=prepared.simulated)
        history = read_history(store, prepared.host.boot_id)
        with interrupts.taken():
            with _new_run(store) as begun:
                run, clock = begun.run, RunClock()
                journal_entries.began(config.node_name, run.run_id, prepared.plan.level)
                seen = _execute(config, store, prepared, begun, planted, display, interrupts, started_s)
                times = clock.ended()
                observed = _observe(options, prepared, seen, history, unsigned, times)
                judged = judge(observed)
            facts = build.RunFacts(
                run_id=run.run_id,
                sequence=run.sequence,
                node=config.node_name,
                started_at=times.started_at,
                finished_at=times.finished_at,
                host=prepared.host,
                found=prepared.found,
                facts=seen.done.facts,
            )
            with _verdict_shown(judged):
                report = build.build(facts, observed, judged)
                series = build_series(observed.results, seen.telemetry, started_s)
                finished = Finished(
                    run=run,
                    plan=observed.plan,
                    host=prepared.host,
                    report=report,
                    series=series,
                    planted=planted,
                    signed=not planted and all(notice.code != NO_EVIDENCE for notice in observed.notices),
                    unjournaled=seen.unjournaled,
                    revoked=revoked,
                    hardware=facts.hardware,
                )
                recorded = record(finished, store, config)
                journal_entries.ended(report)
            return Outcome(
                run.path,
                report,
                observed.plan,
                judged,
                judged.results,
                observed.selftests,
                recorded.lost,
                recorded.problems,
            )


@dataclass
class _Begun:
    """A run's directory, and whether a check may have begun."""

    run: RunDirectory
    begun: bool = False


@contextlib.contextmanager
def _new_run(store: Store) -> Iterator[_Begun]:
    """The directory of a new run, which vanishes again when the run ends without a verdict.

    Raises GpuBurninError for a disk that is full or fails, and for no memory: exit 2 before it has begun, else 3.
    """
    run: _Begun | None = None
    try:
        run = _Begun(store.new_run(datetime.now(UTC)))
        yield run
    except BaseException as error:
        if run is not None:
            # A journal without an end would look like a host that died.
            shutil.rmtree(run.run.path, ignore_errors=True)
        code = EXIT_INCONCLUSIVE if run is not None and run.begun else EXIT_USAGE
        if (why := _why_given_up(error, store)) is not None:
            raise GpuBurninError(f"{host_name()}: the run gave up: {why}", code) from error
        if isinstance(error, GpuBurninError) and error.exit_code < code:
            raise GpuBurninError(str(error), code) from error
        raise


@contextlib.contextmanager
def _verdict_shown(judged: Judgement) -> Iterator[None]:
    """The verdict is shown even when its report cannot be made, which is a fault of this program."""
    try:
        yield
    except Exception as error:
        _LOG.exception("the report cannot be made")
        reasons = "".join(f"; {reason.code}: {reason.message}" for reason in judged.reasons[:_MOST_REASONS])
        raise GpuBurninError(
            f"{host_name()}: the verdict is {judged.verdict}, but its report cannot be made ({error!r}), a "
            f"fault of gpu-burnin itself; the gate stays closed{reasons}",
            EXIT_FAIL if judged.verdict is Verdict.FAIL else EXIT_INCONCLUSIVE,
        ) from error


def _why_given_up(error: BaseException, store: Store) -> str | None:
    """What is wrong and what to do, in words; None for an error that is no matter of this host's resources."""
    if isinstance(error, MemoryError):
        return "memory ran out; free some and run again"
    if not isinstance(error, OSError):
        return None
    if error.errno in _NO_MORE:
        return f"the system has no more processes or files for it: {error.strerror}; raise its limits and run again"
    return f"{store.root} cannot be written: {error.strerror or error}; make room or repair the disk and run again"


def _execute(
    config: Config,
    store: Store,
    prepared: Prepared,
    begun: _Begun,
    planted: bool,
    display: Display | None,
    interrupts: Interrupts,
    started_s: float,
) -> Seen:
    """Run the plan with the samplers around it."""
    plan, limits = prepared.plan, prepared.plan.deadlines
    shown = shielded(display(plan.units)) if display else contextlib.nullcontext(_ignore)
    with Journal(begun.run.journal, prepared.host.boot_id) as journal, shown as on_event:
        with Sampling(
            plan.gpus,
            begun.run.path,
            on_event,
            ready_s=limits.samplers_s,
            stop_s=limits.sampler_stop_s,
            kill_s=limits.sampler_kill_s,
        ) as sampling:
            log = open_kernel_log(config.kernel_log)
            log_before = log.read(limits.kernel_log_s)[0]
            with _kernel_dir(begun.run) as kernels:
                # A planted fault says nothing of the node, and closes no gate.
                if not planted:
                    store.begin(begun.run)
                begun.begun = True
                done = execute(
                    plan, journal, on_event, started_s=started_s, waiting=interrupts.raising, kernel_dir=kernels
                )
        journal.drop_if_broken()
        telemetry, left_s = sampling.findings(), limits.kernel_log_left_s(time.monotonic() - started_s)
        return Seen(done, telemetry, log, log_before, left_s, journal.problem)


@contextlib.contextmanager
def _kernel_dir(run: RunDirectory) -> Iterator[Path]:
    """Where the workers of a run share compiled kernels while they are at it: nothing in it is older than the run."""
    path = run.path / KERNEL_DIR
    path.mkdir(mode=0o700)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _observe(
    options: RunOptions,
    prepared: Prepared,
    seen: Seen,
    history: History,
    unsigned: tuple[str, ...],
    times: Times,
) -> Observations:
    done, plan, shortfalls = seen.done, prepared.plan, prepared.shortfalls
    if done.busy and BUSY not in shortfalls:
        # The process came after the plan was made: what was not started is not missing by accident.
        plan = replace(plan, checks=tuple(check for check in plan.checks if check.scope is Scope.NODE))
        shortfalls = (*shortfalls, BUSY)
    # Everything since boot: what happened before the run counts too.
    events, gaps, sources = seen.log.read(seen.log_left_s)
    if not sources and not options.config.require_evidence and not options.inject:
        unsigned = (*unsigned, NO_HISTORY)
    extra: tuple[Reason, ...] = ()
    if history.died is not None:
        message = f"the host went down during the previous run, while this ran: {history.died}"
        extra = (make_reason("DIED_DURING_CHECK", _check_of(history.died), message),)
    return Observations(
        plan=plan,
        gpus=prepared.found.gpus,
        results=done.results,
        selftests=(*done.selftests, *telemetry_selftest.run(plan.gpus)),
        kernel_log=KernelLogFindings(
            sources or options.config.kernel_log, bool(sources), gaps, events, seen.log_before, seen.log.simulated
        ),
        simulated=is_simulated(prepared, seen),
        allow_simulated=options.allow_simulated or options.config.allow_simulated,
        killed_pids=frozenset(done.killed_pids),
        telemetry=seen.telemetry,
        extra=extra,
        left_out=prepared.left_out,
        shortfalls=shortfalls,
        notices=(
            *_notices(options, prepared),
            *_kernel_notices(seen.done),
            *times.notices(),
            *((unfinished_notice(history.unfinished),) if history.unfinished else ()),
            *((no_evidence(unsigned),) if unsigned else ()),
        ),
        opens_gate=not unsigned,
        no_real_gpu=prepared.found.no_real_gpu,
        interrupted=done.interrupted,
        passed_this_boot=history.passed_this_boot,
        last_reasons=history.last_reasons,
        restarted=history.restarted,
    )


def is_simulated(prepared: Prepared, seen: Seen) -> bool:
    """Whether anything that the run saw was not real: one word is enough."""
    return (
        prepared.simulated
        or seen.log.simulated
        or seen.telemetry.simulated
        or any(result.coverage.simulated for result in seen.done.results)
    )


def _notices(options: RunOptions, prepared: Prepared) -> tuple[Notice, ...]:
    """What the run knows beforehand: what it took the node for, and GPUs that should get an extended burn-in."""
    found = [absent(node_links_of(prepared.plan.options), prepared.found.gpus, load_skus())]
    if options.asks_for_extended and not makes_known(prepared.plan) and not prepared.plan.inject:
        found.append(wanted_notice(prepared.new_gpus, options.config.extended_for_new_s, prepared.record_problem))
    return tuple(notice for notice in found if notice is not None)


def _kernel_notices(done: ExecutionResult) -> tuple[Notice, ...]:
    """Compiled kernels that a worker found damaged, or could not share."""
    told = ((uuid, why) for uuid, facts in done.facts.items() for why in facts.get("kernels_refused", ()))
    return tuple(Notice("KERNELS_NOT_SHARED", "run", why, None if uuid == "node" else uuid) for uuid, why in told)


def _check_of(died: str) -> str:
    """The first check that was under way; "run" where no check is known."""
    name = died.split(",")[0]
    return name if name in CHECK_NAMES else "run"


def _ignore(_: object) -> None:
    """A display that shows nothing."""
