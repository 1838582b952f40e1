"""`gpu-burnin explain`: what a reason code or an XID means, and what to do."""

from __future__ import annotations

import json

import click

from gpu_burnin.admission import explain as explaining
from gpu_burnin.cli import terminal


def _complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return explaining.completions(incomplete)


@click.command()
@click.argument("code", nargs=-1, shell_complete=_complete)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def explain(code: tuple[str, ...], as_json: bool) -> None:
    """Say what a reason CODE or an XID means, and what to do.

    An XID is given by its number: 79, XID79 or xid 79; that of an NVSwitch as sxid 20034. Several are explained one
    after the other. Without CODE all codes are listed.
    """
    found = explaining.find_all(code) if code else None
    if as_json:
        click.echo(json.dumps(explaining.document(found), indent=1, ensure_ascii=False))
    else:
        terminal.show(explaining.render(found, terminal.width()))
