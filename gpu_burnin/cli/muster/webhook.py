"""`muster webhook`: what adds the preflight taint to each new GPU Node of an attached cluster."""

from __future__ import annotations

from pathlib import Path

import click

from gpu_burnin.api.names import DEFAULT_DOMAIN
from gpu_burnin.cli.muster.listen import address
from gpu_burnin.cli.muster.termination import end_with_sigterm

_FOLDER = click.Path(path_type=Path, file_okay=False)


@click.command()
@click.option("--attached", "folder", type=_FOLDER, required=True, help="Folder of the ConfigMap muster-attached.")
@click.option("--ca", type=_FOLDER, required=True, help="Folder of the Secret muster-webhook-ca.")
@click.option("--listen", default="0.0.0.0:9443", show_default=True, metavar="ADDRESS:PORT", help="Where it serves.")
@click.option("--domain", default=DEFAULT_DOMAIN, show_default=True, help="Domain of the fleet's labels and taints.")
def webhook(folder: Path, ca: Path, listen: str, domain: str) -> None:
    """Add the preflight taint to GPU Nodes as they are created, until ended; `muster attach` starts it.

    It has no credential of the API, refuses nothing, and makes its own certificate anew before the old one ends.
    """
    from gpu_burnin.admission.webhook.server import Webhook, read_authority
    from gpu_burnin.api.attached import ATTACHED_KEY, parse_attached
    from gpu_burnin.api.names import Names
    from gpu_burnin.errors import GpuBurninError
    from gpu_burnin.system.files import read_text

    where = address(listen)
    try:
        text = read_text(folder / ATTACHED_KEY)
    except (OSError, UnicodeDecodeError) as error:
        raise GpuBurninError(f"{folder}: cannot be read ({error}); mount the ConfigMap muster-attached") from error
    end_with_sigterm()
    attached = parse_attached({"data": {ATTACHED_KEY: text}})
    Webhook(where, lambda: read_authority(ca), attached, Names(domain)).run()
