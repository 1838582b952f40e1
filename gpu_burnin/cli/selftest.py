"""`gpu-burnin selftest`: the whole table of faults, below the detectors of this node's GPUs."""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from gpu_burnin.checks import CHECK_NAMES, SELFTESTED
from gpu_burnin.checks.selftest import Sensitivity, sensitivity
from gpu_burnin.cli import progress
from gpu_burnin.cli.options import gpu_names, host_config, host_options, names, setting_flags
from gpu_burnin.engine.deadlines import deadlines
from gpu_burnin.engine.execution import shielded
from gpu_burnin.engine.executor import ExecutionResult, execute
from gpu_burnin.engine.plan import Plan, PlanError, make_plan
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS, GpuBurninError
from gpu_burnin.judge import telemetry_selftest
from gpu_burnin.node.store import Store
from gpu_burnin.settings.config import Config
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.interrupts import Interrupts
from gpu_burnin.system.own_name import host_name
from gpu_burnin.system.streams import readers_may_leave
from gpu_burnin.telemetry.discover import Found, choose_backend, discover, select
from gpu_burnin.telemetry.simulated_nvml.node import ENVIRONMENT
from gpu_burnin.types import Reason, SelftestResult, Verdict

SCHEMA = "muster-selftest/v1"
# What the whole table of faults is given in all; each check's part of it may take the most that a step may be late by.
FULL_TABLE_S = 1800.0


@click.command()
@click.option("--gpus", type=gpu_names, metavar="GPU,...|all", help="Only these GPUs: index, UUID or PCI address.")
@click.option("--checks", type=names, metavar="CHECK,...", help="Only the detectors of these checks.")
@setting_flags("backend")
@click.option("--seed", type=click.IntRange(0), help="Seed of all operands and patterns.  [default: random]")
@click.option("--json", "as_json", is_flag=True, help="Print results as JSON and nothing else on stdout.")
@host_options
def selftest(
    gpus: tuple[str, ...] | None,
    checks: tuple[str, ...] | None,
    backend: str | None,
    seed: int | None,
    as_json: bool,
    config_path: Path | None,
    state_dir: Path | None,
) -> None:
    """Prove this node's detectors: inject the whole table of faults and say which were seen.

    Prints for each check and precision the smallest fault seen and the longest time to see one. Exit code 0 when
    every fault was seen, 1 when one was missed or the hardware itself was wrong, 3 when one could not be injected or
    the test was interrupted.
    """
    config = host_config(config_path, state_dir)
    plan = selftest_plan(config, discover(), gpus, checks, backend, seed)
    # On a GPU a run under way would be disturbed; the CPU backend disturbs nobody and needs no rights.
    lock = Store(config.state_dir).locked() if plan.backend == "cuda" else contextlib.nullcontext()
    interrupts = Interrupts()
    kernels = tempfile.TemporaryDirectory(prefix="gpu-burnin-kernels-")
    with lock, kernels as folder, shielded(progress.display(plan.units)) as on_event, interrupts.taken():
        done = execute(plan, None, on_event, waiting=interrupts.raising, kernel_dir=Path(folder))
    results = (*done.selftests, *telemetry_selftest.run(plan.gpus))
    rows = sensitivity(results)
    reasons = (reason for result in done.results for reason in result.reasons)
    text = json.dumps(_document(plan, results, rows), indent=1) if as_json else render(plan, results, rows, reasons)
    with readers_may_leave("the results"):
        click.echo(text)
    sys.exit(exit_code(done, results))


def selftest_plan(
    config: Config,
    found: Found,
    gpus: tuple[str, ...] | None,
    checks: tuple[str, ...] | None,
    backend: str | None,
    seed: int | None,
) -> Plan:
    """What a self-test does with the GPUs that were found. Raises GpuBurninError."""
    host = host_name()
    known = [name for name in CHECK_NAMES if name in SELFTESTED]
    if unknown := sorted(set(checks or ()) - SELFTESTED):
        raise GpuBurninError(f"{host}: no self-test for {', '.join(unknown)}: choose from {', '.join(known)}")
    chosen = select(found.testable, gpus)
    if not chosen:
        simulated = f"; {ENVIRONMENT} names simulated ones" if backend == "cpu" else ""
        why = found.error or "none was found"
        raise GpuBurninError(f"{host}: there is no GPU to prove detectors on ({why}){simulated}")
    for gpu in chosen:
        if pids := found.busy.get(gpu.uuid):
            users = ", ".join(map(str, pids))
            raise GpuBurninError(
                f"{host}: GPU {gpu.index} ({gpu.uuid}) is in use by process {users}; stop it or leave the GPU out",
                EXIT_INCONCLUSIVE,
            )
    try:
        plan = make_plan(
            "quick",
            backend=choose_backend(backend or config.backend, found),
            gpus=chosen,
            seed=seed,
            checks=checks or known,
            shapes=config.shapes,
        )
    except PlanError as error:
        raise GpuBurninError(f"{host}: {error}") from error
    limits = deadlines(FULL_TABLE_S)
    return replace(plan, selftest_full=True, checks_off=True, deadlines=replace(limits, selftest_s=limits.late_s))


def exit_code(done: ExecutionResult, results: Iterable[SelftestResult]) -> int:
    """0 all seen, 1 a detector is blind or the hardware wrong, 3 not everything could be injected.

    With checks off the only results are those of self-tests that met a real fault or did not end.
    """
    found = list(results)
    if any(result.injected and not result.detected for result in found):
        return EXIT_FAIL
    if any(result.verdict is Verdict.FAIL for result in done.results):
        return EXIT_FAIL
    complete = found and not done.interrupted and not done.results and all(result.injected for result in found)
    return EXIT_PASS if complete else EXIT_INCONCLUSIVE


def _document(plan: Plan, results: Iterable[SelftestResult], rows: Iterable[Sensitivity]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "backend": plan.backend,
        "seed": plan.seed,
        "gpus": [gpu.uuid for gpu in plan.gpus],
        "sensitivity": [asdict(row) for row in rows],
        "results": to_json(tuple(results)),
    }


def render(
    plan: Plan, results: Iterable[SelftestResult], rows: Iterable[Sensitivity], reasons: Iterable[Reason] = ()
) -> str:
    """The table for a person; `reasons` are why a self-test came to no end, and real faults that one met."""
    lines = [f"{'check':12} {'part':14} {'seen':>9}  {'smallest fault':>14}  {'slowest':>10}  missed"]
    for row in rows:
        bits = "-" if row.smallest_bits is None else f"{row.smallest_bits} bit{'s' * (row.smallest_bits != 1)}"
        lines.append(
            f"{row.check:12} {row.part or '-':14} {row.detected:>4}/{row.injected:<4}  {bits:>14}  "
            f"{row.slowest_s * 1000:>7.1f} ms  {', '.join(row.missed)}".rstrip()
        )
    scopes = sorted({result.scope for result in results})
    lines.append(f"seed {plan.seed}; what a detection proves: {', '.join(scopes) or 'nothing was injected'}")
    lines += [f"{reason.severity} {reason.code} {reason.gpu or ''}: {reason.message}" for reason in reasons]
    return "\n".join(lines)
