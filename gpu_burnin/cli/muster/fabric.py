"""`muster fabric`: tests between nodes, planned round by round, and what their results name."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.fabric_options import READS_INVENTORY, plan_options, show_report
from gpu_burnin.cli.muster.fabric_run import run
from gpu_burnin.cli.muster.inventory_option import inventories_option
from gpu_burnin.errors import EXIT_FAIL, GpuBurninError
from gpu_burnin.system.streams import readers_may_leave

_RUN = click.argument("run_file", metavar="RUN", type=click.Path(path_type=Path, exists=True, dir_okay=False))


@click.group()
def fabric() -> None:
    """Test nodes with each other, and say what the results name: nodes, links, leaf switches, paths.

    `run` does all of it. Who runs the tests by means of his own takes `plan`, and `next` for each round.
    """


@fabric.command(short_help="Say what the tests cost, and begin a run.")
@inventories_option
@plan_options
@click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="RUN", help="Begin a run: write its file."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON, with the first round.")
def plan(
    inventories: tuple[Path, ...],
    through: str,
    pairings: int,
    every_pair_of_leaves: bool,
    rates: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Say how many rounds and node-minutes the tests between the GPU nodes of an inventory take.

    No host is touched. Exit codes: 0 the places are what a plan needs, 1 they are not, 2 they cannot be read, or RUN is
    there already.
    """
    from gpu_burnin.fabric.model import Settings, Through
    from gpu_burnin.fleet.fabric import plan as plans
    from gpu_burnin.fleet.fabric import results
    from gpu_burnin.fleet.fabric.report import usual_rates

    if output is not None and output.exists():
        raise GpuBurninError(f"{output} is there already; go on with it by `muster fabric next`, or name another file")
    usual = usual_rates(results.state_of(results.read(rates))) if rates is not None else {}
    settings = Settings(Through(through), every_pair_of_leaves, pairings, usual=usual)
    terminal.note(READS_INVENTORY)
    places = plans.read([str(one) for one in inventories])
    made = plans.make(places, settings)
    if output is not None:
        results.write(output, results.begin(places, settings))
    with readers_may_leave("the plan", "muster"):
        if as_json:
            click.echo(json.dumps(made.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(plans.render(made, terminal.width()))
    sys.exit(EXIT_FAIL if made.problems else 0)


@fabric.command("next", short_help="Print the next round, after the results of the last.")
@_RUN
@click.argument("results", required=False, type=click.Path(path_type=Path, exists=True, dir_okay=False))
def next_(run_file: Path, results: Path | None) -> None:
    """Take the RESULTS of the round that RUN waits for, where they are given, and print the next round as JSON.

    RESULTS is a list with one entry for each test of the round; its views are empty where nobody answered.

    Exit codes: 0 printed (null: no test is left), 2 a file cannot be read, or the results are not of that round, or
    leave out a test of it.
    """
    from gpu_burnin.fabric.model import End
    from gpu_burnin.fleet.fabric import results as files
    from gpu_burnin.fleet.fabric.advance import advance
    from gpu_burnin.fleet.fabric.planner import next_round
    from gpu_burnin.system.codec import to_json

    known = files.read(run_file)
    state = files.state_of(known)
    following = next_round(state)
    if results is not None:
        if isinstance(following, End):
            raise GpuBurninError(f"{run_file} waits for no results; see `muster fabric report {run_file}`")
        taken = files.read_results(results)
        made = files.with_round(known, following, taken)
        files.refuse_incomplete(following, taken)
        files.write(run_file, made)
        following = next_round(advance(state, following, taken))
    with readers_may_leave("the round", "muster"):
        click.echo(json.dumps(None if isinstance(following, End) else to_json(following), ensure_ascii=False))


@fabric.command(short_help="Say what the results name, and why.")
@_RUN
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def report(run_file: Path, as_json: bool) -> None:
    """Say what the results of RUN name, what speaks for it, and what else could be the cause.

    Exit codes: 0 all nodes were tested and nothing is named, 1 something is named, 2 RUN cannot be read, 3 something is
    open: a round that was not run, a node that could not be tested or decided.
    """
    from gpu_burnin.fleet.fabric import results

    show_report(results.read(run_file), as_json=as_json)


@fabric.command()
def schema() -> None:
    """Print the JSON Schema of the RESULTS that `next` takes."""
    from gpu_burnin.fleet.fabric.results import results_schema

    with readers_may_leave("the schema", "muster"):
        click.echo(results_schema(), nl=False)


fabric.add_command(run)
