"""From what the caller asks to a plan: GPUs, backend, checks, level. Refuses what cannot be run, before anything is."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path

from gpu_burnin.api.levels import LEVEL_NAMES
from gpu_burnin.checks import CHECK_NAMES, CHECKS, USUAL_CHECKS
from gpu_burnin.checks.power.wave import waves_for
from gpu_burnin.checks.spec import Scope
from gpu_burnin.engine.deadlines import deadlines
from gpu_burnin.engine.plan import Plan, PlanError, level_time_s, make_plan, parse_injection
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware import load_reasons, load_skus, load_xids
from gpu_burnin.hardware.policy import load_policy
from gpu_burnin.node.gate import check_gate
from gpu_burnin.node.known_gpus import KnownGpu, RecordError, new_gpus, read_known
from gpu_burnin.node.passes import deepest, with_evidence
from gpu_burnin.node.store import POWER_GRANT_DIR, Store
from gpu_burnin.settings import expectations
from gpu_burnin.settings.config import ALWAYS, Config
from gpu_burnin.settings.expectations import Expectations, expectations_of
from gpu_burnin.system import hardware_identity
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.host import Host, read_host
from gpu_burnin.system.own_name import host_name
from gpu_burnin.telemetry import node_links
from gpu_burnin.telemetry.discover import Found, choose_backend, discover, select
from gpu_burnin.telemetry.kernel_log import open_kernel_log
from gpu_burnin.telemetry.node_links import decide
from gpu_burnin.types import JSON, Gpu


@dataclass(frozen=True)
class RunOptions:
    """What the caller asks of one run; None leaves it to the configuration or the level.

    `gpus` are indices, UUIDs or PCI addresses. `duration_s` (seconds) goes with the level extended only. `expect` goes
    before the configuration's; where the two differ there is no PASS. `allow_simulated` lets a run on simulated
    hardware PASS; the evidence stays marked as simulated. `waves` is always, granted or never, and `wave_wait_s`
    (seconds) how long to wait for the grant. `cpu_time_s` is the time of a run on the CPU, in place of its level's.
    `asks_for_extended`: warn of GPUs that have not been through an extended burn-in.
    """

    config: Config = field(default_factory=Config)
    level: str | None = None
    duration_s: float | None = None
    gpus: tuple[str, ...] | None = None
    checks: tuple[str, ...] | None = None
    skip: tuple[str, ...] = ()
    backend: str | None = None
    expect: Expectations = field(default_factory=Expectations)
    seed: int | None = None
    inject: tuple[str, ...] = ()
    allow_simulated: bool = False
    waves: str | None = None
    wave_wait_s: float | None = None
    cpu_time_s: float | None = None
    asks_for_extended: bool = True


@dataclass(frozen=True)
class Prepared:
    """The plan with what it was made of.

    `left_out` are checks that are wanted on this host and not asked of this run, `shortfalls` sentences on where
    else it does less than that. `new_gpus` are GPUs of the plan that have not been through an extended burn-in here,
    as far as the record says; `record_problem` is what is wrong with it.
    """

    plan: Plan
    found: Found
    host: Host
    left_out: tuple[str, ...]
    shortfalls: tuple[str, ...]
    new_gpus: tuple[Gpu, ...] = ()
    record_problem: str = ""

    @property
    def simulated(self) -> bool:
        """Whether it is known beforehand that no real GPU is tested."""
        return self.plan.backend == "cpu" or self.found.simulated


BUSY = "only the check state ran, because a foreign process uses a GPU"


def check_options(options: RunOptions) -> None:
    """Refuse what contradicts itself on every host. Raises GpuBurninError (exit 2)."""
    _refuse_conflicts(options, wanted_checks(options.config))
    for expect in (options.config.expect, options.expect):
        if expect.model is not None and (problem := load_skus().problem(expect.model)):
            raise GpuBurninError(f"{host_name()}: expect.model {expect.model}: {problem}")
    try:
        level_time_s(level_of(options), options.duration_s)
        for spec in options.inject:
            parse_injection(spec)
    except PlanError as error:
        raise GpuBurninError(f"{host_name()}: {error}") from error


def check_surroundings(config: Config) -> None:
    """Refuse what could not be read or written to its end: data files, the report, kernel log, place of the metrics.

    Raises GpuBurninError (exit 2).
    """
    host = host_name()
    load_reasons()
    load_skus()
    load_xids()
    load_policy()
    try:
        import_module("jsonschema")  # only the end of a run needs it; without it the run would be for nothing
    except ImportError as error:
        raise GpuBurninError(
            f"{host}: no report could be made at the end of a run, since a Python package does not load ({error}); "
            "install gpu-burnin with all that it needs"
        ) from error
    open_kernel_log(config.kernel_log)
    log = Path(config.kernel_log)
    if config.kernel_log != "auto" and log.exists() and not log.is_file():
        raise GpuBurninError(f"{host}: kernel_log {log} is not a regular file; write auto to read this host's own log")
    if config.metrics_file and not os.access(config.metrics_file.parent, os.W_OK | os.X_OK):
        raise GpuBurninError(
            f"{host}: metrics_file {config.metrics_file} cannot be written, since its directory is "
            "missing or read-only; make the directory or correct the configuration"
        )


def prepare(options: RunOptions) -> Prepared:
    """Find the GPUs and make the plan. Where a foreign process uses a GPU only the checks of the node are planned.

    Raises GpuBurninError: exit 2 for anything that cannot be run as asked, 3 where no GPU answers.
    """
    check_options(options)
    found = discover(deadlines(level_time_s(level_of(options), options.duration_s)).discover_s)
    backend = choose_backend(options.backend or options.config.backend, found)
    # A damaged record makes every GPU new again; it is no reason to leave a node untested.
    try:
        known, problem = read_known(options.config.state_dir), ""
    except RecordError as error:
        known, problem = (), str(error)
    return replace(planned(options, found, backend, known), record_problem=problem)


def planned(options: RunOptions, found: Found, backend: str, known: Iterable[KnownGpu]) -> Prepared:
    """The plan for what was found here. Raises GpuBurninError (exit 2) for anything that cannot be run as asked."""
    config, wanted = options.config, wanted_checks(options.config)
    _refuse_conflicts(options, wanted)
    chosen = tuple(name for name in options.checks or wanted if name not in options.skip)
    shortfalls: list[str] = []
    if found.busy:
        chosen = wanted = tuple(name for name, row in CHECKS.items() if row.scope is Scope.NODE)
        shortfalls.append(BUSY)
    gpus = select(found.testable, options.gpus)
    if not options.expect.over(config.expect).mig:
        # What is in MIG mode by mistake is no set of instances to be tested, but MIG_MISMATCH.
        gpus = tuple(replace(gpu, instances=None) for gpu in gpus)
    elif any(gpu.instances is not None for gpu in gpus):
        wanted = tuple(name for name in wanted if not CHECKS[name].between_gpus)
        chosen = _without_links(chosen)
    new = new_gpus(gpus, known, simulated=backend == "cpu" or found.simulated)
    level, duration_s = level_and_time(options, new)
    try:
        plan = make_plan(
            level,
            backend=backend,
            gpus=gpus,
            seed=options.seed,
            checks=chosen,
            shapes=config.shapes,
            options=plan_options(options, found),
            inject=() if found.busy else options.inject,
            duration_s=duration_s,
            cpu_time_s=options.cpu_time_s,
        )
    except PlanError as error:
        raise GpuBurninError(f"{host_name()}: {error}") from error
    left_out = tuple(name for name in wanted if name not in chosen)
    host = read_host()
    return Prepared(plan, found, host, left_out, (*shortfalls, *_shortfalls(options, plan, found, host.kernel)), new)


def _without_links(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """The checks of GPUs that reach no other GPU. Raises GpuBurninError (exit 2) where none is left."""
    left = tuple(name for name in chosen if not CHECKS[name].between_gpus)
    if not left:
        raise GpuBurninError(
            f"{host_name()}: {', '.join(chosen)} cannot run: GPUs in MIG mode reach no other GPU; name others"
        )
    return left


def wanted_checks(config: Config) -> tuple[str, ...]:
    """The checks of a run that names none: those of the configuration or the usual ones, and DCGM where it says so."""
    wanted = config.checks or USUAL_CHECKS
    return (*wanted, "dcgm") if config.dcgm and "dcgm" not in wanted else wanted


def level_and_time(options: RunOptions, new: tuple[Gpu, ...]) -> tuple[str, float | None]:
    """The level and, for extended, its seconds: what was asked, or an extended burn-in for GPUs that are new here."""
    extended_s = options.config.extended_for_new_s
    if options.level is None and options.duration_s is None and extended_s is not None and new:
        return "extended", extended_s
    return level_of(options), options.duration_s


def plan_options(options: RunOptions, found: Found) -> dict[str, JSON]:
    """The free settings of the plan: what the checks read from CheckContext.options."""
    config = options.config
    expect = options.expect.over(config.expect)
    links = decide(found.states, expect, load_skus(), on_bus=found.on_bus, switches=found.switches)
    return {
        "power_waves": options.waves or config.power_waves or ALWAYS,
        "wave_dir": str(config.state_dir / POWER_GRANT_DIR),
        "wave_wait_s": config.wave_wait_s if options.wave_wait_s is None else options.wave_wait_s,
        expectations.KEY: expect.to_json(),
        node_links.KEY: to_json(links),
    }


def level_of(options: RunOptions) -> str:
    """The level asked for; a duration means extended, and without any word it is standard."""
    return options.level or ("extended" if options.duration_s is not None else options.config.level or "standard")


def _refuse_conflicts(options: RunOptions, wanted: tuple[str, ...]) -> None:
    """What contradicts itself, whatever the node has."""
    names = (*wanted, *(options.checks or ()), *options.skip)
    unknown = sorted(set(names) - set(CHECK_NAMES))
    both = sorted(set(options.checks or ()) & set(options.skip))
    problem = ""
    if unknown:
        problem = f"unknown checks {', '.join(unknown)}: choose from {', '.join(CHECK_NAMES)}"
    elif both:
        problem = f"--checks and --skip both name {', '.join(both)}; name each check once"
    elif not set(options.checks or wanted) - set(options.skip):
        problem = "--skip leaves no check to run; skip less"
    elif options.duration_s is not None and options.level not in (None, "extended"):
        problem = f"--for sets the time of the level extended and does not go with --level {options.level}"
    if problem:
        raise GpuBurninError(f"{host_name()}: {problem}")


def _stands(config: Config, level: str, hardware_sha256: str) -> bool:
    """Whether the gate is open for a pass of this level and hardware.

    A pass of a lower level then takes nothing away, as in tests of idle nodes.
    """
    try:
        newest = check_gate(config)
    except GpuBurninError:
        return False
    passed = deepest(with_evidence(Store(config.state_dir)))
    deep = passed is not None and passed.rank >= LEVEL_NAMES.index(level)
    return deep and newest.hardware_sha256 == hardware_sha256


def _shortfalls(options: RunOptions, plan: Plan, found: Found, kernel: str) -> Iterator[str]:
    """Where the caller asked for less than this host's configuration does: no PASS may come of that."""
    asked = options.config.level
    hardware = hardware_identity.identity(found.gpus, found.driver, kernel)
    if (
        asked is not None
        and LEVEL_NAMES.index(plan.level) < LEVEL_NAMES.index(asked)
        and not _stands(options.config, asked, hardware_identity.digest(hardware))
    ):
        yield (
            f"the level {plan.level} is less than {asked}, which this host's configuration asks for, and no pass of "
            f"{asked} stands that is of this boot and this hardware"
        )
    # Where waves need a grant, a run without them is what the configuration allows; only ALWAYS is broken by less.
    waves = plan.options["power_waves"]
    planned_waves = any(check.name == "power" for check in plan.checks) and waves_for(plan.level, plan.total_s)
    if planned_waves and options.config.power_waves == ALWAYS != waves:
        yield f"power waves are {waves} in this run, but this host's configuration says always"
    configured, asked_for = options.config.expect.to_json(), options.expect.to_json()
    for key in options.expect.contradictions(options.config.expect):
        yield f"the run expects {key} {asked_for[key]}, this host's configuration {configured[key]}"
    rest = len(found.testable) - len(plan.gpus)
    if rest:
        yield f"{rest} of {len(found.testable)} GPUs were left out"
    if any(check.name == "state" for check in plan.checks):
        return  # which tells more of what follows
    if untested := len(found.gpus) - len(found.testable):
        yield f"{untested} of {len(found.gpus)} GPUs no longer answer or have the same UUID"
    expected = expectations_of(plan.options).gpus
    if expected is not None and expected != len(found.gpus):
        yield f"{len(found.gpus)} GPUs were found, {expected} are expected"
