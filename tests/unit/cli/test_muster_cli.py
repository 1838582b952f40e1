"""The command line of `muster`: its table, its exit codes, its completion, and that it starts quickly."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from gpu_burnin import __main__
from gpu_burnin.cli import main as burnin
from gpu_burnin.cli import program
from gpu_burnin.cli.bash import Bash
from gpu_burnin.cli.muster import main as muster
from tests.support.clocks import PATIENCE_S
from tests.support.command_line import called

ROOT = Path(__file__).resolve().parents[3]


def call(*arguments: str) -> subprocess.CompletedProcess[str]:
    code = "from gpu_burnin.__main__ import muster; muster()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


def test_help_names_every_command() -> None:
    done = call("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: muster ")
    assert all(f"\n  {name} " in done.stdout for name in muster.TABLE)
    assert call("--version").stdout.split()[0] == "muster,"


@pytest.mark.parametrize("name", sorted(muster.TABLE))
def test_each_row_leads_to_its_command(name: str) -> None:
    module, attribute, help_line = muster.TABLE[name]
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command) and command.name == name
    assert help_line.endswith(".")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nonsense",), "No such command 'nonsense'.\n"),
        (("plann",), "No such command 'plann'. Did you mean 'plan'?"),
        (("probe",), "Missing argument 'HOST...'"),
        (("probe", "gpu-1:99999"), "gpu-1:99999: 99999 is no port; give one from 1 to 65535"),
    ],
)
def test_mistakes_are_exit_code_2(arguments: tuple[str, ...], says: str) -> None:
    done = called(muster.cli, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("program", [muster.cli, burnin.cli], ids=lambda one: one.name)
def test_no_line_of_help_is_cut(program: click.Group) -> None:
    inner = (_group(program, name) for name in program.list_commands(click.Context(program)))
    helps = [group.get_help(click.Context(group)) for group in (program, *filter(None, inner))]
    assert len(helps) >= 2
    assert [line for text in helps for line in text.splitlines() if line.endswith("...") and "Usage" not in line] == []


def _group(program: click.Group, name: str) -> click.Group | None:
    command = program.get_command(click.Context(program), name)
    return command if isinstance(command, click.Group) else None


def test_completion_is_of_this_program(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "_MUSTER_COMPLETE=bash_complete" in called(muster.cli, "completion", "bash").stdout
    monkeypatch.setenv("COMP_WORDS", "muster pro")
    monkeypatch.setenv("COMP_CWORD", "1")
    answer = Bash(muster.cli, {}, muster.NAME, program.complete_variable(muster.NAME)).complete()
    assert answer == "plain,probe"


def test_the_package_installs_both_programs() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"gpu-burnin": "gpu_burnin.__main__:main", "muster": "gpu_burnin.__main__:muster"}
    assert callable(__main__.muster)
