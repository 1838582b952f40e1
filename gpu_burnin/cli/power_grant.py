"""`gpu-burnin waves`: whether this node's burn-in waits for a grant of its power waves, and giving it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_burnin.cli.options import host_config, host_options

if TYPE_CHECKING:
    from gpu_burnin.checks.power.grant_request import Request

_WORDS = {
    "none": "no burn-in asks for power waves",
    "waiting": "a burn-in waits for a grant of {waves_s:.0f} s of power waves; give it with: gpu-burnin waves grant",
    "running": "power waves are under way, {waves_s:.0f} s in all",
    "over": "the last power waves are over",
    "given_up": "the last burn-in waited {wait_s:.0f} s for a grant and went on without power waves",
}


@click.group(invoke_without_command=True)
@host_options
@click.option("--json", "as_json", is_flag=True, help="Print the request as JSON.")
@click.pass_context
def waves(context: click.Context, config_path: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Show whether this node's burn-in waits for a grant of its power waves.

    Exit code 0 whatever the state is. With power_waves: granted in the configuration, a burn-in asks before the load
    of all GPUs swings together, and goes on without waves when no grant comes in time.
    """
    directory = _directory(config_path, state_dir)
    context.obj = (directory, as_json)
    if context.invoked_subcommand is None:
        from gpu_burnin.checks.power.grant_request import state

        _say(state(directory), as_json)


@waves.command()
@host_options
@click.option("--json", "as_json", is_flag=True, help="Print the request as JSON.")
@click.pass_obj
def grant(before: tuple[Path, bool], config_path: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Grant the request that waits; exit code 2 when none does."""
    from gpu_burnin.checks.power import grant_request as requests

    # The options may stand before `grant` as well as behind it.
    directory, asked = before
    as_json = as_json or asked
    request = requests.grant(_directory(config_path, state_dir) if config_path or state_dir else directory)
    if as_json:
        _say(request, as_json)
    else:
        click.echo(f"granted: power waves of {request.waves_s:.0f} s, asked for at {request.asked_at}")


def _directory(config_path: Path | None, state_dir: Path | None) -> Path:
    from gpu_burnin.node.store import WAVE_DIR

    return host_config(config_path, state_dir).state_dir / WAVE_DIR


def _say(request: Request, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(request.to_json()))
    else:
        click.echo(_WORDS[str(request.state)].format(**request.to_json()))
