"""`muster plan`: what the planned size of a fleet asks for, before anything is built."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import page_option, write_page
from gpu_burnin.errors import EXIT_FAIL
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.option(
    "-i",
    "--inventory",
    required=True,
    type=click.Path(path_type=Path),
    metavar="INVENTORY",
    help="The inventory, as for ansible-playbook.",
)
@click.option(
    "--gpu-watts",
    type=click.FloatRange(1, 10_000),
    metavar="W",
    help="What one GPU draws at full load, for the swing of power.  [default: power_limit_w of gpu_burnin_expect]",
)
@page_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def plan(inventory: Path, gpu_watts: float | None, page: Path | None, as_json: bool) -> None:
    """Say what the planned nodes of an inventory ask for: control plane, disks, certificates, time, power, addresses.

    No host is touched. Each figure says where it comes from. Exit codes: 0 the inventory fits, 1 it contradicts the
    plan, 2 it cannot be read.
    """
    from gpu_burnin.fleet.plan import inventory as inventories
    from gpu_burnin.fleet.plan import page as pages
    from gpu_burnin.fleet.plan import text
    from gpu_burnin.fleet.plan.make import make

    made = make(inventories.read(inventory), gpu_watts)
    with readers_may_leave("the plan", "muster"):
        if as_json:
            click.echo(json.dumps(made.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(text.render(made, terminal.width()))
    if page is not None:
        write_page(page, pages.render(made))
    sys.exit(EXIT_FAIL if made.problems else 0)
