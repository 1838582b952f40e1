"""`muster logs`: what a job's processes print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_burnin.cli.muster.cluster_options import cluster_options, connect
from gpu_burnin.errors import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.launch.logs import Pod


@click.command()
@click.argument("job", metavar="[TEAM/]JOB")
@click.option("--team", envvar="MUSTER_TEAM", show_envvar=True, help="The team, where JOB does not name it.")
@click.option("--rank", type=click.IntRange(min=0), metavar="R", help="One process alone.  [default: all]")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job ends.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="The last N lines of each node.  [default: all]")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@cluster_options
def logs(
    job: str,
    team: str | None,
    rank: int | None,
    follow: bool,
    tail: int | None,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Show what a job's processes print, each line with its rank.

    Node after node, also of pods that have crashed; with --follow as lines come, of 32 nodes at most. Of a gang that
    was started again there is the newest start: the pods before it are gone. Lines are passed on as they come and none
    is kept. Exit codes: 0 done (with --follow: the job succeeded), 1 nothing has run (the job failed), 2 there is no
    such job, 3 it is not known.
    """
    from gpu_burnin.launch import Outcome
    from gpu_burnin.launch.follow import follow_job
    from gpu_burnin.launch.shown import nodes_of, show_logs

    named, slash, name = job.rpartition("/")
    team = named if slash else team
    if not team:
        raise click.UsageError(f"which team's is {job}? Give TEAM/{job} or --team")
    if follow and tail is not None:
        raise click.UsageError("--tail does not go with --follow, which shows all of it")
    api = connect(kubeconfig)
    indexes = nodes_of(api, team, name, rank, follow=follow)
    show = _show_json(rank) if as_json else _show(rank)
    with readers_may_leave("the log", "muster"):
        if not follow:
            found = show_logs(api, team, name, indexes, show, _say, tail=tail)
            sys.exit(EXIT_PASS if found else EXIT_FAIL)
        outcome = follow_job(api, team, name, indexes=indexes, show=show)
    codes = {Outcome.FAILED: EXIT_FAIL, Outcome.UNCLEAR: EXIT_INCONCLUSIVE}
    sys.exit(codes.get(outcome, EXIT_PASS))


def _show(rank: int | None) -> Callable[[Pod, str, str], None]:
    prefix = None if rank is None else f"[{rank}] "

    def show(pod: Pod, moment: str, line: str) -> None:
        if prefix is None:
            click.echo(line)
        elif line.startswith(prefix):
            click.echo(line.removeprefix(prefix))

    return show


def _show_json(rank: int | None) -> Callable[[Pod, str, str], None]:
    def show(pod: Pod, moment: str, line: str) -> None:
        head, bracket, text = line.partition("] ")
        of = head.removeprefix("[")
        number = int(of) if bracket and head.startswith("[") and of.isdigit() else None
        if rank is None or number == rank:
            shown = {"time": moment, "pod": pod.name, "node": pod.node, "rank": number}
            click.echo(json.dumps({**shown, "text": line if number is None else text}, ensure_ascii=False))

    return show


def _say(sentence: str) -> None:
    click.echo(f"muster: {sentence}", err=True)
