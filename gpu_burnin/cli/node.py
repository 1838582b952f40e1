"""The commands about this node's own burn-in: `gpu-burnin start`, `status` and `power-grant`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpu_burnin.checks.power import grant_request as grants
from gpu_burnin.cli import terminal
from gpu_burnin.cli.options import duration, goes_with, host_config, host_options
from gpu_burnin.node import follow, unit
from gpu_burnin.node.status import read_status, render
from gpu_burnin.node.store import POWER_GRANT_DIR
from gpu_burnin.system.codec import to_json
from gpu_burnin.system.streams import readers_may_leave

_INTERRUPTED = 130


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("run_options", nargs=-1, type=click.UNPROCESSED, metavar="[RUN OPTIONS]...")
@click.option("--follow", "follows", is_flag=True, help="Show its progress until it ends, with the exit code of run.")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON whether it was started.")
def start(run_options: tuple[str, ...], follows: bool, as_json: bool) -> None:
    """Start a burn-in of this node in a systemd unit, unless one runs there already.

    All options that are not listed here are those of `gpu-burnin run`. The run goes on when this command, its
    terminal or its SSH session ends. Exit code 0 when one is under way, 2 when systemd refuses.
    """
    run = unit.start(run_options)
    if as_json:
        click.echo(json.dumps({"unit": unit.UNIT, "started": run.started, "invocation": run.invocation}))
    else:
        how = "started in" if run.started else "under way already, with the options of its start, in"
        click.echo(f"burn-in {how} {unit.UNIT}; its progress is in {unit.RUN_DIR / unit.PROGRESS}", err=True)
    if not follows:
        return
    try:
        sys.exit(unit.follow(run.invocation, lambda line: click.echo(line, err=True)))
    except KeyboardInterrupt:
        click.echo("the run goes on; `gpu-burnin start --follow` follows it", err=True)
        sys.exit(_INTERRUPTED)


@click.command()
@click.option(
    "--wait-for",
    "event",
    type=click.Choice([event.value for event in follow.Event]),
    help="First wait until the burn-in under way ends, or until it ends or asks for power waves.",
)
@click.option(
    "--timeout",
    "timeout_s",
    type=duration,
    default="30m",
    show_default=True,
    metavar="DURATION",
    help="Longest time to wait; exit code 3 after it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@host_options
def status(
    event: str | None, timeout_s: float, as_json: bool, config_path: Path | None, state_dir: Path | None
) -> None:
    """Say what this node knows of its burn-in.

    That is: whether one is under way, the newest run and its evidence, the gate, a request for power waves, and the
    GPUs that have passed an extended burn-in here. Exit code 0 whatever they say.
    """
    goes_with("timeout_s", "--wait-for", event is not None)
    config = host_config(config_path, state_dir)
    if event is not None:
        follow.wait_for(config, follow.Event(event), timeout_s)
    found = read_status(config)
    with readers_may_leave("the status"):
        if as_json:
            click.echo(json.dumps(to_json(found), indent=1))
        else:
            terminal.show(render(found, terminal.width()))


@click.command(name="power-grant")
@click.option("--wait", is_flag=True, help="Wait until the waves are over; nothing where none are asked for.")
@click.option(
    "--timeout",
    "timeout_s",
    type=duration,
    default="30m",
    show_default=True,
    metavar="DURATION",
    help="Longest time to wait, beside the length of the waves; exit code 3 after it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the request as JSON.")
@host_options
def power_grant(wait: bool, timeout_s: float, as_json: bool, config_path: Path | None, state_dir: Path | None) -> None:
    """Grant the power waves that this node's burn-in asks for. `gpu-burnin status` says whether it does.

    Exit code 2 when none are asked for and not --wait.
    """
    goes_with("timeout_s", "--wait", wait)
    config = host_config(config_path, state_dir)
    directory = config.state_dir / POWER_GRANT_DIR
    request = follow.grant_and_wait(config, timeout_s) if wait else grants.grant(directory)
    if as_json:
        click.echo(json.dumps(to_json(request)))
    elif wait:
        click.echo(f"power waves: {request.state}")
    else:
        click.echo(f"granted: power waves of {request.waves_s:.0f} s, asked for at {request.asked_at}")
