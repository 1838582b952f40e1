"""`muster mirror`: the files that the hosts of a fleet fetch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from gpu_burnin.cli.options import goes_with

# Defaults are those of the roles gpu_burnin and admitter.
CUDAS = ("none", "12", "13")
MACHINES = ("x86_64", "aarch64")


@click.command()
@click.option(
    "--wheelhouse",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Have the archives of gpu-burnin and its packages too, built in this folder of the controller: "
    "gpu_burnin_wheelhouse, which is STATE/wheelhouse where the inventory does not say otherwise.",
)
@click.option(
    "--cuda",
    "cudas",
    multiple=True,
    type=click.Choice(CUDAS),
    default=("13",),
    show_default=True,
    help="A gpu_burnin_cuda of the inventory; may be repeated.",
)
@click.option(
    "--python",
    "pythons",
    multiple=True,
    default=("3.11", "3.12"),
    show_default=True,
    metavar="VERSION",
    help="One of gpu_burnin_python_versions; may be repeated.",
)
@click.option(
    "--machine",
    "machines",
    multiple=True,
    type=click.Choice(MACHINES),
    default=("x86_64",),
    show_default=True,
    help="One of gpu_burnin_machines; may be repeated.",
)
def mirror(
    wheelhouse: Path | None, cudas: tuple[str, ...], pythons: tuple[str, ...], machines: tuple[str, ...]
) -> None:
    """Have the programs that a fleet's hosts fetch, with their SHA256SUMS, and print the folder that holds them.

    It is in the cache of this user (~/.cache/muster, or MUSTER_CACHE); copy it to your web server. Where the
    publishers' sites answer, files are downloaded and held against the publishers' checksums; else they are built from
    the published Go modules, which takes minutes. A run that was cut goes on with what is missing. All are for x86_64.

    With --wheelhouse it is also what GPU nodes and API servers' hosts install gpu-burnin from (fleet_wheelhouse_url):
    1.2 GB with CUDA. Run it on the controller, from the checkout that the playbooks are run from.
    """
    for name in ("cudas", "pythons", "machines"):
        goes_with(name, "--wheelhouse", wheelhouse is not None)
    from gpu_burnin.fleet.mirror.fill import ensure
    from gpu_burnin.fleet.mirror.programs import MIRROR
    from gpu_burnin.fleet.mirror.progress import Progress
    from gpu_burnin.fleet.mirror.wheelhouse import Wanted, archives

    with Progress("prepare", each=True) as progress:
        contents = MIRROR
        if wheelhouse is not None:
            made = archives(wheelhouse, Wanted(cudas, pythons, machines), progress)
            contents = replace(MIRROR, made=(*MIRROR.made, *made))
        folder = ensure(contents, progress)
    click.echo(folder)
