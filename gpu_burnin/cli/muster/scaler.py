"""`muster scaler`: the service that switches machines on and off, on each API-server host."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("/etc/muster-scaler/scaler.yaml"),
    show_default=True,
    help="The scaler's configuration; role scaler writes it.",
)
@click.option("--check", is_flag=True, help="Read the configuration and end: 0 when it can be used, 2 when not.")
@click.option("--dry-run", is_flag=True, help="Say what would be done now, and what not and why, and end.")
def scaler(config_path: Path, check: bool, dry_run: bool) -> None:
    """Switch machines on for jobs that wait, and off when they are idle, until ended.

    Of the processes on all API-server hosts one leads, by a Lease; each line on standard output is JSON.
    """
    from gpu_burnin.scaler.settings import read_settings

    config = read_settings(config_path)
    if check:
        return
    from gpu_burnin.scaler import service

    if dry_run:
        for line in service.dry_run(config):
            click.echo(line)
        return
    service.Service(config).run()
