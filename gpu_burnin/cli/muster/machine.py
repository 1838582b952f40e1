"""`muster machine`: what people ask of machines that the scaler switches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gpu_burnin.api.names import Names
from gpu_burnin.cli.muster.cluster_options import cluster_options, connect
from gpu_burnin.errors import EXIT_PASS, EXIT_USAGE, GpuBurninError


@click.group()
def machine() -> None:
    """Keep the scaler's hands off machines, or give machines back to it.

    Exit code 2 when one of them could not be asked.
    """


@machine.command()
@click.argument("machines", nargs=-1, required=True, metavar="NODE...")
@click.option("--reason", required=True, metavar="TEXT", help="Why; everybody can read it.")
@cluster_options
def hold(machines: tuple[str, ...], reason: str, kubeconfig: Path, domain: str) -> None:
    """Leave the machine of NODE on or off, as it is."""
    from gpu_burnin.fleet.cluster import machines as asks

    _each(machines, reason, kubeconfig, domain, asks.hold)


@machine.command(short_help="Let the scaler switch the machine of NODE again.")
@click.argument("machines", nargs=-1, required=True, metavar="NODE...")
@click.option("--reason", required=True, metavar="TEXT", help="Why; everybody can read it.")
@cluster_options
def release(machines: tuple[str, ...], reason: str, kubeconfig: Path, domain: str) -> None:
    """Let the scaler switch the machine of NODE again, after a hold or a failure that keeps it for a person."""
    from gpu_burnin.fleet.cluster import machines as asks

    _each(machines, reason, kubeconfig, domain, asks.release)


def _each(names: tuple[str, ...], reason: str, kubeconfig: Path, domain: str, act: Callable[..., str]) -> None:
    from gpu_burnin.fleet.cluster import asks

    if not reason.strip():
        raise click.BadParameter("it is empty; say why in a few words: people will read it", param_hint="--reason")
    api = connect(kubeconfig)
    who, failed = asks.user(api), False
    for name in names:
        given: tuple[Any, ...] = (api, Names(domain), name, who, reason.strip(), datetime.now(UTC))
        try:
            click.echo(act(*given))
        except GpuBurninError as error:
            click.echo(f"muster: {error}", err=True)
            failed = True
    sys.exit(EXIT_USAGE if failed else EXIT_PASS)
