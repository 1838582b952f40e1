"""`muster who`: who can do what in a namespace, and who did what."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click

from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect, state_beside, state_option
from gpu_burnin.cli.options import duration
from gpu_burnin.cli.ssh_hosts import host_of_inventory
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.argument("namespace")
@state_option
@click.option(
    "--api",
    "hosts",
    multiple=True,
    metavar="HOST",
    help="Read the audit log of this API server's host over SSH: its name in the inventory, or [USER@]ADDRESS[:PORT]. "
    "Can be given again.  [default: all that api_servers.json of the state directory names]",
)
@click.option(
    "--audit",
    "audits",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Read a copy of an audit log instead; also .gz. Can be given again.",
)
@click.option(
    "--identity",
    type=click.Path(path_type=Path),
    help="Private key file for SSH.  [default: the inventory's for a host that is given by its name]",
)
@click.option(
    "--known-hosts",
    type=click.Path(path_type=Path),
    envvar="GPU_BURNIN_KNOWN_HOSTS",
    show_envvar=True,
    help="File with the pinned host keys.  [default: known_hosts of the state directory, else ~/.ssh/known_hosts]",
)
@click.option(
    "--since", "since_s", type=duration, default="24h", show_default=True, metavar="DURATION", help="How far back."
)
@click.option(
    "--most", type=click.IntRange(min=1), default=200, show_default=True, help="So many entries, the newest first."
)
@click.option("--all", "all_of_them", is_flag=True, help="Show the rights of Kubernetes' and the fleet's parts too.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON and nothing else.")
@cluster_options
def who(
    namespace: str,
    state: Path | None,
    hosts: tuple[str, ...],
    audits: tuple[Path, ...],
    identity: Path | None,
    known_hosts: Path | None,
    since_s: float,
    most: int,
    all_of_them: bool,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Say who can do what in a namespace, and who did what there.

    Rights are those that RBAC gives, in words, with the members of groups by the certificates that this controller
    made. Deeds are of the API servers' audit logs: sessions in pods, secrets, what was made and deleted, and all that
    was refused, with the reason. What could not be read is said. Exit code 0 whatever it says.
    """
    from gpu_burnin.fleet.jobs import who as asked
    from gpu_burnin.fleet.jobs import who_text
    from gpu_burnin.fleet.monitoring import places

    place = state or state_beside(kubeconfig.expanduser())
    of_inventory = places.named(place, asked.API_SERVERS)
    named = hosts or (() if audits else tuple(of_inventory))
    known = known_hosts or (place / "known_hosts" if place else Path("~/.ssh/known_hosts"))
    logs = asked.Logs([host_of_inventory(one, identity, of_inventory) for one in named], known, audits)
    since = datetime.now(UTC) - timedelta(seconds=since_s)
    found = asked.who_of(connect(kubeconfig), namespace, logs, place, since, most)
    with readers_may_leave("the answer", "muster"):
        if as_json:
            click.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(who_text.render(found, terminal.width(), all_of_them=all_of_them))
