"""One burn-in: plan, execute, read the kernel log, judge, report, sign."""

from __future__ import annotations

import contextlib
import hashlib
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import TypeAlias

from gpu_burnin import evidence
from gpu_burnin.checks import CHECK_NAMES
from gpu_burnin.config import LEVELS, Config
from gpu_burnin.discover import Found, choose_backend, discover, select
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.executor import ExecutionResult, OnEvent, execute
from gpu_burnin.files import write_atomic
from gpu_burnin.hardware import load_xids, make_reason, what_to_do
from gpu_burnin.host import Host, read_host
from gpu_burnin.journal import Journal, died_during, utc_now
from gpu_burnin.plan import Plan, PlanError, make_plan
from gpu_burnin.report import build, model, text
from gpu_burnin.store import REPORT, REPORT_TEXT, Run, Store
from gpu_burnin.telemetry.kernel_log import KernelLog, open_kernel_log
from gpu_burnin.types import Gpu, Reason, Verdict
from gpu_burnin.verdict import Judgement, KernelLogFindings, Observations, judge

EXIT_CODES = {
    Verdict.PASS: EXIT_PASS,
    Verdict.FAIL: EXIT_FAIL,
    Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE,
}
_Handler: TypeAlias = Callable[[int, FrameType | None], None] | signal.Handlers
Display: TypeAlias = Callable[[tuple[Gpu, ...]], AbstractContextManager[OnEvent]]


@dataclass(frozen=True)
class RunOptions:
    """What the caller asks of one run; None leaves it to the configuration or the level.

    `gpus` are indices, UUIDs or PCI addresses. `duration_s` (seconds) goes with the level extended only.
    `allow_simulated` lets a run on simulated hardware PASS; the evidence stays marked as simulated.
    """

    config: Config = field(default_factory=Config)
    level: str | None = None
    duration_s: float | None = None
    gpus: tuple[str, ...] | None = None
    checks: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()
    backend: str | None = None
    expect_gpus: int | None = None
    seed: int | None = None
    inject: tuple[str, ...] = ()
    allow_simulated: bool = False


@dataclass(frozen=True)
class Outcome:
    """A finished run: where its files are, the report, the verdict."""

    run_dir: Path
    report: model.Report
    verdict: Verdict

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 INCONCLUSIVE."""
        return EXIT_CODES[self.verdict]


@dataclass(frozen=True)
class _Prepared:
    """The plan with what it was made of."""

    plan: Plan
    found: Found
    host: Host
    left_out: tuple[str, ...]
    shortfalls: tuple[str, ...]


def run_burnin(options: RunOptions, display: Display | None = None) -> Outcome:
    """Test this node and leave report and evidence in the state directory.

    Ctrl-C and SIGTERM end it early with a valid INCONCLUSIVE report. Evidence is signed whatever the verdict,
    but never for a run with injected faults. Raises GpuBurninError (exit 2) before anything has been run: wrong
    option or configuration, no usable GPU, another run under way, unreadable host key.
    """
    config, store = options.config, Store(options.config.state_dir)
    _check_kernel_log(config.kernel_log)
    if not options.inject:
        evidence.own_public_key(config.host_key)
    with store.locked():
        prepared = _prepare(options)
        revoked, died = store.revoked(), _died_before(store, prepared.host)
        run, started_at = store.new_run(datetime.now(UTC)), utc_now()
        shown = display(prepared.plan.gpus) if display else contextlib.nullcontext(_ignore)
        with Journal(run.journal, prepared.host.boot_id) as journal, shown as on_event, _sigterm_as_interrupt():
            done = execute(prepared.plan, journal, on_event)
        with _undisturbed():
            seen = _observe(options, prepared, done, died)
            judged = judge(seen, load_xids())
            facts = build.RunFacts(
                run_id=run.run_id,
                sequence=run.sequence,
                node=config.node_name,
                started_at=started_at,
                finished_at=utc_now(),
                host=prepared.host,
                found=prepared.found,
                facts=done.facts,
            )
            report = build.build(facts, seen, judged)
            _write(run, report, prepared, judged, config)
            store.finish(run)
            if judged.verdict is Verdict.PASS and revoked is not None:
                store.clear_revocation(revoked)
    return Outcome(run.path, report, judged.verdict)


def _prepare(options: RunOptions) -> _Prepared:
    config, found, host = options.config, discover(), read_host()
    backend = choose_backend(options.backend or config.backend, found)
    wanted = config.checks or CHECK_NAMES
    chosen = tuple(name for name in options.checks or wanted if name not in options.skip)
    gpus = select(tuple(gpu for gpu in found.gpus if gpu.uuid not in found.lost), options.gpus)
    level = options.level or ("extended" if options.duration_s is not None else config.level or "standard")
    expect_gpus = options.expect_gpus or config.expect_gpus
    try:
        _known((*wanted, *options.skip))
        plan = make_plan(
            level,
            backend=backend,
            gpus=gpus,
            seed=options.seed,
            checks=chosen,
            shapes=config.shapes,
            options={} if expect_gpus is None else {"expect_gpus": expect_gpus},
            inject=options.inject,
            duration_s=options.duration_s,
        )
    except PlanError as error:
        raise GpuBurninError(f"{socket.gethostname()}: {error}") from error
    left_out = tuple(name for name in wanted if name not in chosen)
    return _Prepared(plan, found, host, left_out, tuple(_shortfalls(options, plan, found)))


def _known(names: tuple[str, ...]) -> None:
    unknown = sorted(set(names) - set(CHECK_NAMES))
    if unknown:
        raise PlanError(f"unknown checks {', '.join(unknown)}: choose from {', '.join(CHECK_NAMES)}")


def _shortfalls(options: RunOptions, plan: Plan, found: Found) -> Iterator[str]:
    """Where the caller asked for less than this host's configuration does: no PASS may come of that."""
    asked = options.config.level
    if asked is not None and LEVELS.index(plan.level) < LEVELS.index(asked):
        yield f"the level {plan.level} is less than {asked}, which this host's configuration asks for"
    testable = {gpu.uuid for gpu in found.gpus} - found.lost
    rest = len(testable) - len(plan.gpus)
    if rest:
        yield f"{rest} of {len(testable)} GPUs were left out"


def _died_before(store: Store, host: Host) -> str | None:
    """What the run before was doing when the host went down under it."""
    runs = store.runs()
    if not runs:
        return None
    try:
        return died_during(runs[-1].journal, host.boot_id)
    except ValueError:
        return "an unknown check (the journal is damaged)"


def _observe(options: RunOptions, prepared: _Prepared, done: ExecutionResult, died: str | None) -> Observations:
    log = open_kernel_log(options.config.kernel_log)
    extra: tuple[Reason, ...] = ()
    if died is not None:
        message = f"the host went down during the run before, while it ran: {died}"
        extra = (make_reason("DIED_DURING_CHECK", died.split(",")[0], message),)
    return Observations(
        plan=prepared.plan,
        gpus=prepared.found.gpus,
        results=done.results,
        selftests=done.selftests,
        kernel_log=_read(log, options.config.kernel_log),
        simulated=prepared.plan.backend == "cpu" or prepared.found.simulated or log.simulated,
        allow_simulated=options.allow_simulated or options.config.allow_simulated,
        killed_pids=frozenset(done.killed_pids),
        extra=extra,
        left_out=prepared.left_out,
        shortfalls=prepared.shortfalls,
        interrupted=done.interrupted,
    )


def _read(log: KernelLog, spec: str) -> KernelLogFindings:
    """Everything since boot: what happened before the run counts too."""
    events, gaps, sources = log.read()
    return KernelLogFindings(sources or spec, bool(sources), gaps, events)


def _check_kernel_log(spec: str) -> None:
    """Refuse what could not be read to its end, before anything is run."""
    open_kernel_log(spec)
    if Path(spec).is_char_device():
        raise GpuBurninError(f"{socket.gethostname()}: kernel_log {spec} is a device; write auto to read it")


def _write(run: Run, report: model.Report, prepared: _Prepared, judged: Judgement, config: Config) -> None:
    """Report, text, then evidence: a reader that sees the evidence finds the report it speaks of."""
    data = model.to_bytes(report)
    write_atomic(run.path / REPORT, data)
    write_atomic(run.path / REPORT_TEXT, text.render(report, what_to_do).encode())
    if prepared.plan.inject:
        return
    statement = evidence.Statement(
        node=report["node"],
        machine_id=prepared.host.machine_id,
        boot_id=prepared.host.boot_id,
        report_sha256=hashlib.sha256(data).hexdigest(),
        verdict=judged.verdict,
        level=report["level"],
        plan_sha256=report["plan_sha256"],
        hardware_sha256=report["hardware_sha256"],
        simulated=report["simulated"],
        sequence=run.sequence,
        finished_at=report["finished_at"],
    )
    evidence.write_evidence(run.path, statement, config.host_key)


def _ignore(_: object) -> None:
    """A display that shows nothing."""


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """SIGTERM (systemd stops the unit) ends a run the way Ctrl-C does."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    with _handlers(interrupt, (signal.SIGTERM,)):
        yield


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Judging and writing take a moment and must not be cut short by an impatient second Ctrl-C."""
    with _handlers(signal.SIG_IGN, (signal.SIGTERM, signal.SIGINT)):
        yield


@contextlib.contextmanager
def _handlers(handler: _Handler, numbers: tuple[signal.Signals, ...]) -> Iterator[None]:
    """Set signal handlers for a while; a caller outside the main thread cannot and keeps its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
