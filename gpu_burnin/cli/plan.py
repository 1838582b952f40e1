"""`gpu-burnin plan`: what a run would do, without doing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from gpu_burnin.cli import terminal
from gpu_burnin.cli.options import complete_models, host_config, host_options, selection_options, setting_flags
from gpu_burnin.hardware.skus import load_skus
from gpu_burnin.node.planning import DEFAULT_GPUS_COUNT, plan_for_model, plan_here
from gpu_burnin.node.prepare import RunOptions
from gpu_burnin.report import plan_view

# In place of a model's key.
_LIST = "list"


@click.command()
@click.option(
    "--model",
    metavar="KEY",
    shell_complete=complete_models,
    help="Plan for a node with GPUs of this model, from its data alone: nothing is looked at here. --model list shows "
    "the keys.",
)
@click.option(
    "--gpus-count",
    type=click.IntRange(1, 256),
    metavar="N",
    help=f"With --model: how many GPUs the node has.  [default: {DEFAULT_GPUS_COUNT}]",
)
@selection_options
@setting_flags("power_waves")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@host_options
def plan(
    model: str | None,
    gpus_count: int | None,
    config_path: Path | None,
    state_dir: Path | None,
    as_json: bool,
    skip: tuple[str, ...] | None,
    **asked: Any,
) -> None:
    """Say what a run would do: each check, its time, what it covers, and how rare a fault it would see.

    It is planned for the GPUs of this node, or with --model for those of another. Nothing is tested. Exit code 2
    where there is neither.
    """
    if gpus_count is not None and model is None:
        raise click.UsageError(
            "--gpus-count goes with --model KEY; --expect gpus=N says how many this node should have"
        )
    if model == _LIST:
        skus = load_skus()
        click.echo(json.dumps(plan_view.models_json(skus), indent=1) if as_json else plan_view.models_text(skus))
        return
    options = RunOptions(config=host_config(config_path, state_dir), skip=skip or (), **asked)
    shown = plan_for_model(options, model, gpus_count or DEFAULT_GPUS_COUNT) if model else plan_here(options)
    told = (shown.plan, load_skus(), shown.why_simulated, shown.no_pass, shown.model)
    if as_json:
        click.echo(json.dumps(plan_view.document(*told), indent=1))
    else:
        terminal.show(plan_view.render(*told, width=terminal.width()))
