"""What a command says of a run that has ended."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpu_burnin.run import Outcome


def print_report(outcome: Outcome, as_json: bool) -> None:
    """The report on standard output."""
    from gpu_burnin.cli import terminal
    from gpu_burnin.report import model, outputs

    if as_json:
        click.echo(model.to_bytes(outcome.report), nl=False)
    else:
        terminal.show(outputs.as_text(outcome.report, terminal.width()))
    sys.stdout.flush()


def print_files(outcome: Outcome) -> None:
    """Where the files of the run are, on standard error."""
    from gpu_burnin.report.file_names import REPORT, REPORT_HTML

    if (outcome.run_dir / REPORT).exists():
        click.echo(f"report: {outcome.run_dir}", err=True)
        if sys.stderr.isatty():
            click.echo(f"page: {outcome.run_dir}/{REPORT_HTML}", err=True)
