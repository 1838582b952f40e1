"""`gpu-burnin report` for a folder of many hosts."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from gpu_burnin.cli import terminal
from gpu_burnin.errors import GpuBurninError
from gpu_burnin.fleet import held, held_page, held_text
from gpu_burnin.system.files import write_atomic
from gpu_burnin.system.streams import readers_may_leave

# Fewer reports are read before anybody wonders.
_SHOWN_FROM = 500


def show(directory: Path, page: Path | None, host_key: Path | None, *, as_json: bool) -> int:
    """Print who is held, and why; write `page` where one is asked for. The exit code. Raises GpuBurninError."""
    fleet = held.read_fleet(directory, _with_progress, host_key)
    with readers_may_leave("the hosts"):
        if as_json:
            click.echo(json.dumps(fleet.to_json(), indent=1, ensure_ascii=False))
        else:
            terminal.show(held_text.render(fleet, terminal.width()))
    if page is not None:
        try:
            write_atomic(page, held_page.render(fleet, page.absolute()).encode(), mode=0o644)
        except OSError as error:
            raise GpuBurninError(f"cannot write {page} ({error.strerror}); give --html another place") from error
        click.echo(f"page: {page}", err=True)
    return fleet.exit_code


def _with_progress(names: list[str]) -> Iterable[str]:
    if len(names) < _SHOWN_FROM or not sys.stderr.isatty():
        return names
    return _counted(names)


def _counted(names: list[str]) -> Iterable[str]:
    with click.progressbar(
        names, label="reading reports", file=sys.stderr, show_pos=True, width=20, update_min_steps=50
    ) as bar:
        yield from bar
