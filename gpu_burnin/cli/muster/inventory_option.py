"""The inventories of commands that read more than one."""

from __future__ import annotations

from pathlib import Path

import click

inventories_option = click.option(
    "-i",
    "--inventory",
    "inventories",
    required=True,
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="INVENTORY",
    help="The inventory, as for ansible-playbook; may be repeated.",
)
