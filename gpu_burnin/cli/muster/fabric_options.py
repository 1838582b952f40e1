"""What the commands of `muster fabric` share: how a run is planned, and how its report is shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from gpu_burnin.cli import terminal
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.fleet.fabric.results import Run

READS_INVENTORY = "reads the inventory with Ansible: some seconds for each thousand hosts"
_Function = TypeVar("_Function", bound=Callable[..., Any])


def plan_options(function: _Function) -> _Function:
    """How a run is planned: --through, --pairings, --every-pair-of-leaves, --rates."""
    options = (
        click.option(
            "--through",
            type=click.Choice(["nodes", "leaves", "spines"]),
            default="spines",
            show_default=True,
            help="How far: pairs of nodes, whole leaves too, or leaves with leaves too.",
        ),
        click.option(
            "--pairings", type=click.IntRange(2, 64), default=2, show_default=True, help="Tests of each node in pairs."
        ),
        click.option(
            "--every-pair-of-leaves", is_flag=True, help="Test each leaf with each other one, and not with some."
        ),
        click.option(
            "--rates",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            metavar="RUN",
            help="An earlier run, whose usual rates hold where peers are few or slow together.",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def show_report(made: Run, *, as_json: bool) -> NoReturn:
    """What a run names, and its exit code."""
    from gpu_burnin.fleet.fabric import report as reports

    found = reports.of_run(made)
    with readers_may_leave("the report", "muster"):
        if as_json:
            click.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(reports.render(found, terminal.width()))
    sys.exit(found.exit_code)
