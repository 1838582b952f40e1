"""`muster why`: what happened to a node, a pod or a job, and what set it off."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import (
    cluster_options,
    connect,
    namespace_of,
    page_option,
    state_beside,
    state_option,
    write_page,
)
from gpu_burnin.cli.options import duration
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.argument("subject", metavar="NODE|[NAMESPACE/]POD|[NAMESPACE/]JOB")
@state_option
@click.option(
    "--team",
    metavar="TEAM",
    envvar="MUSTER_TEAM",
    show_envvar=True,
    help="The team whose job it is: the same as TEAM/JOB.",
)
@click.option(
    "--audit",
    "audits",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="A copy of an API server's audit log, for what people did; also .gz. Can be given again.",
)
@click.option(
    "--since",
    "since_s",
    type=duration,
    default="7d",
    show_default=True,
    metavar="DURATION",
    help="How far back to look; plays are kept for a year.",
)
@page_option
@click.option(
    "--all", "all_of_them", is_flag=True, help="Show each entry, also those that come whenever kubelet starts."
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@cluster_options
def why(
    subject: str,
    team: str | None,
    state: Path | None,
    audits: tuple[Path, ...],
    since_s: float,
    page: Path | None,
    all_of_them: bool,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Say what happened to a node, a pod or a job, and what set it off; of a job also why it waits.

    One time line of all that tells of it: the NodeAdmission, Kubernetes' events, the pod itself, Kueue and the job's
    controllers, the node's agent, the burn-in's report, plays, and people's requests in the audit log. What was not
    looked at is said. A job is a JobSet or a Job. Exit code 0 whatever it says.
    """
    if page is not None:
        # It needs an extra that people of teams do not have.
        from gpu_burnin.fleet.why import page as pages
    from gpu_burnin.fleet.why import text
    from gpu_burnin.fleet.why.story import story_of
    from gpu_burnin.fleet.why.told import Files

    now = datetime.now(UTC)
    files = Files(state or state_beside(kubeconfig.expanduser()), audits)
    api, oldest = connect(kubeconfig), now - timedelta(seconds=since_s)
    own = team or namespace_of(kubeconfig)
    told = story_of(api, Names(domain), _in_team(subject, team), files, oldest, now, team=own)
    with readers_may_leave("the time line", "muster"):
        if as_json:
            click.echo(json.dumps(told.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(text.render(told, terminal.width(), all_of_them=all_of_them))
    if page is not None:
        write_page(page, pages.render(told, all_of_them=all_of_them))


def _in_team(subject: str, team: str | None) -> str:
    """NAMESPACE/JOB: the namespace of a team is named as the team."""
    return f"{team}/{subject}" if team and "/" not in subject else subject
