"""`muster status`: the fleet by state and reason, those first that need a person."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli import terminal
from gpu_burnin.cli.muster.cluster_options import (
    cluster_options,
    connect,
    page_option,
    state_beside,
    state_option,
    write_page,
)
from gpu_burnin.cli.muster.monitoring_options import monitoring_options, monitoring_places
from gpu_burnin.system.streams import readers_may_leave

if TYPE_CHECKING:
    from gpu_burnin.fleet.cluster.admissions import Snapshot
    from gpu_burnin.fleet.monitoring.line import Monitoring
    from gpu_burnin.fleet.monitoring.numbers import Numbers


@click.command()
@click.option("--watch", "watches", is_flag=True, help="Show it again whenever something changes, until Ctrl-C.")
@click.option(
    "--control-plane",
    "of_control_plane",
    is_flag=True,
    help="Instead of the nodes: members of etcd, API servers, balancers, snapshots, and when certificates end.",
)
@state_option
@page_option
@click.option(
    "--docs",
    metavar="URL|DIR",
    envvar="MUSTER_DOCS",
    show_envvar=True,
    help="Where the page's links to runbooks lead: the repository as a website has it, or a clone of it.",
)
@monitoring_options
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
@cluster_options
def status(
    watches: bool,
    of_control_plane: bool,
    state: Path | None,
    page: Path | None,
    docs: str | None,
    monitoring: tuple[str, ...],
    prometheus: str | None,
    alertmanager: str | None,
    identity: Path | None,
    known_hosts: Path | None,
    as_json: bool,
    kubeconfig: Path,
    domain: str,
) -> None:
    """Say how the fleet's nodes stand: by state and reason, those first that need a person. Each is counted once.

    With --monitoring or --prometheus also what fires, how the states went, and how the control plane does; numbers that
    cannot be had are said to be missing, and why. With --control-plane the API is not asked, which may be what is down.
    Exit code 0 whatever it says.
    """
    if of_control_plane and (watches or page):
        raise click.UsageError("--control-plane is text or --json; leave --watch and --html out")
    if of_control_plane and not (monitoring or prometheus):
        raise click.UsageError("--control-plane reads monitoring: give --monitoring HOST or --prometheus URL")
    if watches and as_json:
        raise click.UsageError("--watch shows text; with --json, call it again")
    if watches and (monitoring or prometheus):
        raise click.UsageError("--watch follows the cluster alone; without it the numbers of monitoring are read too")
    from gpu_burnin.fleet import REPORTS
    from gpu_burnin.fleet.cluster import admissions
    from gpu_burnin.fleet.monitoring import numbers

    folder = state or state_beside(kubeconfig.expanduser())
    places = monitoring_places(monitoring, prometheus, alertmanager, identity, known_hosts, folder)
    if of_control_plane:
        _show_control_plane(places, as_json=as_json)
        return
    api, names = connect(kubeconfig), Names(domain)
    reports = folder / REPORTS if folder is not None else None
    if watches:
        for fleet in admissions.followed(api, names, lambda: datetime.now(UTC), reports=reports):
            click.clear()
            _show(fleet, numbers.nothing(), page, docs, as_json=False)
    else:
        fleet = admissions.read(api, names, datetime.now(UTC), reports)
        _show(fleet, numbers.read(places, datetime.now(UTC)), page, docs, as_json=as_json)


def _show_control_plane(places: Sequence[Monitoring], *, as_json: bool) -> None:
    from gpu_burnin.fleet.monitoring import control_plane, control_plane_text

    found = control_plane.read(places, datetime.now(UTC))
    with readers_may_leave("the control plane", "muster"):
        if as_json:
            click.echo(json.dumps({"control_plane": found.to_json()}, indent=1, ensure_ascii=False))
        else:
            terminal.show(control_plane_text.render(found, terminal.width()))


def _show(fleet: Snapshot, found: Numbers, page: Path | None, docs: str | None, *, as_json: bool) -> None:
    from gpu_burnin.fleet.cluster import status_page, status_text

    with readers_may_leave("the nodes", "muster"):
        if as_json:
            click.echo(json.dumps({**fleet.to_json(), "monitoring": found.to_json()}, indent=1, ensure_ascii=False))
        else:
            terminal.show(status_text.render(fleet, terminal.width(), found))
    if page is not None:
        write_page(page, status_page.render(fleet, found, docs or ""))
