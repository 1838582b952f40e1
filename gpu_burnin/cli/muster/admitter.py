"""`muster admitter`: the service that admits nodes and takes them from work, on each API-server host."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.option(
    "--config",
    "config_path",
    type=click.Path(path_type=Path, dir_okay=False),
    default=Path("/etc/muster/admitter.yaml"),
    show_default=True,
    help="The admitter's configuration; role admitter writes it.",
)
@click.option("--check", is_flag=True, help="Read the configuration and end: 0 when it can be used, 2 when not.")
def admitter(config_path: Path, check: bool) -> None:
    """Admit nodes that passed, and take those in doubt from work, until ended.

    Of the processes on all API-server hosts one leads, by a Lease; each line on standard output is JSON.
    """
    from gpu_burnin.admission.settings import read_settings

    config = read_settings(config_path)
    if check:
        return
    from gpu_burnin.admission.service.service import Service

    Service(config).run()
