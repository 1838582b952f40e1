"""What commands that reach hosts over SSH share: their options, and what HOST means."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpu_burnin.fleet.model import Target
    from gpu_burnin.fleet.monitoring.places import Place

_Function = TypeVar("_Function", bound=Callable[..., Any])
_MOST_PORT = 65_535
# [USER@]ADDRESS[:PORT]; an IPv6 address with a port is written in brackets, as in known_hosts.
_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?"
    r"(?:\[(?P<bracketed>[^\]\s]+)\](?::(?P<port6>\d+))?|(?P<ipv6>[^@\s\[\]]*:[^@\s\[\]]*:[^@\s\[\]]*)|"
    r"(?P<address>[^:@\s\[\]]+)(?::(?P<port>\d+))?)"
)


def ssh_options(function: _Function) -> _Function:
    """Options that all commands which reach hosts share."""
    options = (
        click.option("--user", default="root", show_default=True, help="User to log in as."),
        click.option("--port", type=click.IntRange(1, _MOST_PORT), default=22, show_default=True, help="Port of sshd."),
        click.option(
            "--identity",
            type=click.Path(path_type=Path),
            help="Private key file. Without it: the agent's keys and the default ones.",
        ),
        click.option(
            "--known-hosts",
            type=click.Path(path_type=Path),
            default=Path("~/.ssh/known_hosts"),
            envvar="GPU_BURNIN_KNOWN_HOSTS",
            show_default=True,
            show_envvar=True,
            help="File with the pinned host keys.",
        ),
        click.option("--trust-new", is_flag=True, help="Accept and pin host keys seen for the first time."),
    )
    for option in reversed(options):
        function = option(function)
    return function


def parse_host(host_name: str, user: str, port: int, identity: Path | None) -> Target:
    """Where HOST is. Raises click.UsageError."""
    from gpu_burnin.fleet.model import Target

    match = _HOST.fullmatch(host_name)
    if match is None:
        raise click.UsageError(f"{host_name!r} is not [USER@]ADDRESS[:PORT]; write IPv6 addresses as [ADDRESS]:PORT")
    address = match["bracketed"] or match["ipv6"] or match["address"]
    port = int(match["port"] or match["port6"] or port)
    if not 1 <= port <= _MOST_PORT:
        raise click.UsageError(f"{host_name}: {port} is no port; give one from 1 to {_MOST_PORT}")
    return Target(
        name=address,
        address=address,
        port=port,
        user=match["user"] or user,
        identity=identity,
    )


def host_of_inventory(host: str, identity: Path | None, of_inventory: Mapping[str, Place]) -> Target:
    """A host by its name in the inventory, with what was given beside that; any other by its address."""
    given = parse_host(host, "root", 22, identity)
    place = of_inventory.get(given.name)
    if place is None:
        return given
    return replace(
        parse_host(host, place.user, place.port, identity or place.identity), name=place.name, address=place.address
    )
