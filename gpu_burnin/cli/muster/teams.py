"""`muster teams`: what each team has, uses, borrows and lends, and why the first of its queue waits."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect, namespace_of, page_option, write_page
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.option(
    "--team",
    metavar="TEAM",
    envvar="MUSTER_TEAM",
    show_envvar=True,
    help="Whose jobs to read where you may not read those of all teams.  [default: the namespace of the kubeconfig]",
)
@page_option
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@cluster_options
def teams(team: str | None, page: Path | None, as_json: bool, kubeconfig: Path, domain: str) -> None:
    """Say what each team has, uses, borrows and lends, what waits, and why the first of each queue waits.

    By model of GPU; with the nodes that teams have for themselves, the verified nodes that are free, and the sums of
    the fleet. What your rights do not show is said. Exit code 0 whatever it says.
    """
    if page is not None:
        # It needs an extra that people of teams do not have.
        from gpu_burnin.fleet.jobs import teams_page
    from gpu_burnin.fleet.jobs import read, teams_text

    api = connect(kubeconfig)
    found = read.read_teams(api, Names(domain), team or namespace_of(kubeconfig), datetime.now(UTC))
    with readers_may_leave("the teams", "muster"):
        if as_json:
            click.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(teams_text.render(found, terminal.width()))
    if page is not None:
        write_page(page, teams_page.render(found))
