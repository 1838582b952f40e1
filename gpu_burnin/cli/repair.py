"""The commands that the repair ladder calls on a node: `gpu-burnin repair look` and `reset`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from gpu_burnin.cli.options import host_config, host_options
from gpu_burnin.errors import EXIT_FAIL
from gpu_burnin.system.codec import to_json


@click.group()
def repair() -> None:
    """What playbooks/repair.yml does on this node."""


@repair.command()
@host_options
def look(config_path: Path | None, state_dir: Path | None) -> None:
    """Print as JSON what the ladder has to know before each rung."""
    from gpu_burnin.node.repair.facts import look as look_at

    click.echo(json.dumps(to_json(look_at(host_config(config_path, state_dir)))))


@repair.command(short_help="Reset GPUs, and print as JSON what became of it.")
@click.argument("uuids", nargs=-1, metavar="[GPU]...")
def reset(uuids: tuple[str, ...]) -> None:
    """Reset GPUs, all or those of these UUIDs, and print as JSON what became of it.

    GPUs that cannot be reset one by one are reset together. Exit code 1 when the reset failed, 2 when a process works
    on a GPU: then nothing is done.
    """
    from gpu_burnin.node.repair.reset import reset as reset_gpus

    done = reset_gpus(uuids)
    click.echo(json.dumps(to_json(done)))
    sys.exit(0 if done.done else EXIT_FAIL)
