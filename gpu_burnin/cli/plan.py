"""`gpu-burnin plan`: what a run would do on this node, without doing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gpu_burnin.cli.options import (
    host_config,
    host_options,
    selection_options,
    setting_flags,
)
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.hardware.skus import load_skus
from gpu_burnin.node.known_gpus import read_known
from gpu_burnin.node.prepare import RunOptions, planned
from gpu_burnin.report.plan_view import document, render
from gpu_burnin.telemetry.discover import Found, choose_backend, discover


@click.command()
@selection_options
@setting_flags("power_waves")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@host_options
def plan(
    config_path: Path | None, state_dir: Path | None, as_json: bool, skip: tuple[str, ...] | None, **asked: Any
) -> None:
    """Say what a run would do here: each check, its time, what it covers, and the rate of faults it could miss.

    Nothing is tested. It works without a GPU too, and says that it is simulated then.
    """
    options = RunOptions(config=host_config(config_path, state_dir), skip=skip or (), **asked)
    found = discover()
    backend, why = _backend(options.backend or options.config.backend, found)
    # The record is root's; it matters only where it decides on the level.
    known = read_known(options.config.state_dir) if options.config.extended_for_new_s else ()
    made = planned(options, found, backend, known)
    left_out = (f"the configuration asks for {', '.join(made.left_out)} too",) if made.left_out else ()
    no_pass = (*made.shortfalls, *left_out)
    if as_json:
        click.echo(json.dumps(document(made.plan, load_skus(), why, no_pass), indent=1))
    else:
        click.echo(render(made.plan, load_skus(), why, no_pass))


def _backend(asked: str, found: Found) -> tuple[str, str]:
    """The backend whose plan is shown, and why a run on it would be simulated ("" where it would not).

    Unlike a run, a plan for a GPU that is not there does no harm.
    """
    try:
        backend = choose_backend(asked, found)
    except GpuBurninError:
        backend = "cpu" if asked == "auto" else asked
    if found.error:
        why = found.error
    elif not found.gpus:
        why = "the NVIDIA driver lists no GPU"
    elif found.simulated:
        why = "NVML is a simulation here"
    elif backend == "cpu":
        why = "the CPU computes" if asked == "cpu" else "CuPy is not installed"
    else:
        why = ""
    return backend, why
