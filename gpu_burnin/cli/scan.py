"""`gpu-burnin scan`: a look at this node, without a test."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpu_burnin.cli import terminal
from gpu_burnin.cli.options import host_config, host_options
from gpu_burnin.node.scan import scan as look
from gpu_burnin.node.scan_text import document, render
from gpu_burnin.system.streams import readers_may_leave


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print what was seen as JSON and nothing else on stdout.")
@host_options
def scan(config_path: Path | None, state_dir: Path | None, as_json: bool) -> None:
    """Look at this node for some seconds: its GPUs, their state, XIDs since boot. It tests nothing.

    It needs no configuration, no key and no root, writes nothing and keeps no verdict. What only shows under load is
    not seen: that takes a run. Exit code 0 nothing found, 1 something that a burn-in would fail on, 3 a doubt, or
    something that could not be seen.
    """
    found = look(host_config(config_path, state_dir))
    with readers_may_leave("what was found"):
        if as_json:
            click.echo(json.dumps(document(found), indent=1, ensure_ascii=False))
        else:
            terminal.show(render(found, terminal.width()))
    sys.exit(found.exit_code)
