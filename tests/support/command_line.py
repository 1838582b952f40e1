"""A command in this process, from its arguments to its exit code; what only a process of its own shows is not here."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path
from unittest import mock

import click

from gpu_burnin.cli import program


def called(group: click.Group, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """What `gpu-burnin` or `muster` answers to these arguments."""
    words = [group.name or "", *map(str, arguments)]
    out, err = io.StringIO(), io.StringIO()
    with mock.patch.object(sys, "argv", words), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = program.call(group)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())
