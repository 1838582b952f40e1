"""Commands about reports that are there already."""

from __future__ import annotations

import json
from pathlib import Path

import click


@click.command()
@click.argument("before", type=click.Path(path_type=Path), metavar="A")
@click.argument("after", type=click.Path(path_type=Path), metavar="B")
@click.option("--json", "as_json", is_flag=True, help="Print every difference as JSON.")
def compare(before: Path, after: Path, as_json: bool) -> None:
    """Say what changed between two reports.

    A and B are report files or directories of runs: of one node over time, or of two nodes. Exit code 0 whatever
    the verdicts are, 2 when a report cannot be read.
    """
    from gpu_burnin.cli import terminal
    from gpu_burnin.node import reports
    from gpu_burnin.report import compare as comparing

    found = comparing.compare(reports.load(before), reports.load(after))
    if as_json:
        click.echo(json.dumps(found.to_json(), indent=1, ensure_ascii=False))
    else:
        terminal.show(comparing.render(found, terminal.width()))
