"""How text is shown: as wide as the terminal, verdicts in colour where a person looks."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping

import click

from gpu_burnin.system.prose import STANDARD_WIDTH

# Nobody reads columns of less.
_LEAST_WIDTH = 40
# As rich names them; the worst first: it is seen even where the live view is cut.
COLOURS: Mapping[str, str] = {"FAIL": "bold red", "INCONCLUSIVE": "yellow", "PASS": "green"}
# Words of tables that stand for a verdict.
_SHORT: Mapping[str, str] = {"LINK": "FAIL", "UNREADABLE": "INCONCLUSIVE", "INCONCL": "INCONCLUSIVE"}
_VERDICT = re.compile(rf"(?<![^\s(])(?:{'|'.join([*COLOURS, *_SHORT])})(?![^\s,:;.)])")
# What a terminal would obey: a report may come from another machine.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def width() -> int:
    """Columns of the terminal: $COLUMNS, else those of standard output, STANDARD_WIDTH where it is none."""
    return max(_LEAST_WIDTH, shutil.get_terminal_size((STANDARD_WIDTH, 24)).columns)


def show(text: str) -> None:
    """Print lines of text on standard output; on a terminal its verdicts are coloured, unless NO_COLOR is set."""
    shown = _CONTROL.sub("?", text)
    click.echo(_VERDICT.sub(_painted, shown) if _in_colour() else shown, nl=not text.endswith("\n"))


def note(text: str) -> None:
    """One line on standard error that tells a person why it takes a while; nothing where no person looks."""
    if sys.stderr.isatty():
        click.echo(text, err=True)


def _in_colour() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _painted(match: re.Match[str]) -> str:
    *bold, colour = COLOURS[_SHORT.get(match[0], match[0])].split()
    return click.style(match[0], fg=colour, bold=bool(bold) or None)
