"""`muster mirror`: the programs that the hosts of a fleet fetch."""

from __future__ import annotations

import click


@click.command()
def mirror() -> None:
    """Have the programs that a fleet's hosts fetch, with their SHA256SUMS, and print the folder that holds them.

    It is in the cache of this user (~/.cache/muster, or MUSTER_CACHE); copy it to your web server. Where the
    publishers' sites answer, files are downloaded and held against the publishers' checksums; else they are built from
    the published Go modules, which takes minutes. A run that was cut goes on with what is missing. All are for x86_64.
    """
    from gpu_burnin.fleet.mirror.fill import ensure
    from gpu_burnin.fleet.mirror.programs import MIRROR
    from gpu_burnin.fleet.mirror.progress import Progress

    with Progress("prepare", each=True) as progress:
        folder = ensure(MIRROR, progress)
    click.echo(folder)
