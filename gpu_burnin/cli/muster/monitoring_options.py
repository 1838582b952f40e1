"""Where the numbers of a fleet's monitoring are to be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from gpu_burnin.cli.ssh_hosts import host_of_inventory

if TYPE_CHECKING:
    from gpu_burnin.fleet.monitoring.line import Monitoring

_Function = TypeVar("_Function", bound=Callable[..., Any])


def monitoring_options(function: _Function) -> _Function:
    """--monitoring, --prometheus, --alertmanager, and how to log in."""
    path = click.Path(path_type=Path)
    options = (
        click.option(
            "--monitoring",
            multiple=True,
            envvar="MUSTER_MONITORING",
            show_envvar=True,
            metavar="HOST",
            help="Read numbers and alerts from this monitoring host over SSH: its name in the inventory, or "
            "[USER@]ADDRESS[:PORT]. Of several, the first that answers counts.",
        ),
        click.option(
            "--prometheus",
            callback=_address,
            metavar="URL",
            help="Prometheus; with --monitoring as that host sees it.  [default with --monitoring: "
            "http://127.0.0.1:9090]",
        ),
        click.option(
            "--alertmanager",
            callback=_address,
            metavar="URL",
            help="Alertmanager, likewise.  [default: port 9093 of the same address]",
        ),
        click.option(
            "--identity",
            type=path,
            help="Private key file for SSH.  [default: the inventory's for a host that is given by its name, else as "
            "`muster probe`]",
        ),
        click.option(
            "--known-hosts",
            type=path,
            envvar="GPU_BURNIN_KNOWN_HOSTS",
            show_envvar=True,
            help="File with the pinned host keys.  [default: known_hosts of the state directory that the kubeconfig is "
            "in, else ~/.ssh/known_hosts]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def monitoring_places(
    hosts: tuple[str, ...],
    prometheus: str | None,
    alertmanager: str | None,
    identity: Path | None,
    known_hosts: Path | None,
    state: Path | None,
) -> list[Monitoring]:
    """The places to ask, in order. `state` is the inventory's fleet_state_dir. Raises click.UsageError."""
    from gpu_burnin.fleet.monitoring import places
    from gpu_burnin.fleet.monitoring.line import PROMETHEUS, Monitoring

    if alertmanager and not (hosts or prometheus):
        raise click.UsageError("--alertmanager needs --prometheus or --monitoring: its alerts are compared")
    first = prometheus or PROMETHEUS
    parts = urlsplit(first)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    second = alertmanager or f"{parts.scheme}://{host}:9093"
    if not hosts:
        return [Monitoring(first, second)] if prometheus else []
    of_inventory = places.named(state)
    known = known_hosts or (state / "known_hosts" if state else Path("~/.ssh/known_hosts"))
    return [Monitoring(first, second, host_of_inventory(one, identity, of_inventory), known) for one in hosts]


def _address(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is None:
        return None
    try:
        parts = urlsplit(value)
        good = parts.scheme in ("http", "https") and parts.hostname and (parts.port or True) and not parts.query
    except ValueError:
        good = False
    if not good:
        raise click.BadParameter(f"{value!r} is not http://HOST:PORT")
    return value
