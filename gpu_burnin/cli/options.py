"""Options that several commands share. Imports only click and the settings at the top, so that help is quick."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from gpu_burnin.settings.config import Config, load_config
from gpu_burnin.settings.durations import parse_duration
from gpu_burnin.settings.expectations import KEYS, Expectations, parse_arguments
from gpu_burnin.settings.options import Option, OptionError, options_of

# GPUs of a node that completion offers by their numbers.
_MOST_GPUS = 8
_Function = TypeVar("_Function", bound=Callable[..., Any])


class _FilePath(click.Path):
    """A path that says something: an empty one, of an unset shell variable, would be the working directory."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """The path. Fails where it is empty."""
        if value == "":
            self.fail("the path is empty; give one, or leave the option out", param, ctx)
        return super().convert(value, param, ctx)


def duration(text: str) -> float:
    """A time like 30m or 2h, in seconds."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def goes_with(parameter: str, other: str, present: bool) -> None:
    """Refuse a parameter of the command line that has no effect without `other`. Raises click.UsageError."""
    context = click.get_current_context()
    if not present and context.get_parameter_source(parameter) is ParameterSource.COMMANDLINE:
        [flag] = [one.opts[0] for one in context.command.params if one.name == parameter]
        raise click.UsageError(f"{flag} goes with {other}")


def names(text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise click.BadParameter("no name given; separate names by commas")
    return found


def complete_checks(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The names of checks that the last one of a list may become, for the shell."""
    from gpu_burnin.checks import CHECK_NAMES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in CHECK_NAMES if name.startswith(last)]


def complete_models(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """The keys of GPU models that begin so, for the shell."""
    from gpu_burnin.hardware.skus import load_skus

    return [key for key in load_skus().skus if key.startswith(incomplete)]


def complete_injections(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """CHECK:FAULT of each fault that can be injected; behind a whole one the GPUs of the usual nodes, for the shell."""
    from gpu_burnin.checks import CHECKS
    from gpu_burnin.engine.plan import faults_of

    known = [f"{check}:{fault}" for check in CHECKS for fault in faults_of(check)]
    whole = incomplete.rpartition(":")[0]
    if whole in known:
        known = [f"{whole}:gpu={index}" for index in range(_MOST_GPUS)]
    return [value for value in known if value.startswith(incomplete)]


def gpu_names(text: str) -> tuple[str, ...] | None:
    """GPUs separated by commas; None for all of them."""
    found = names(text)
    if "all" not in found:
        return found
    if len(found) > 1:
        raise click.BadParameter("give either all or names of GPUs, not both")
    return None


def _expectations(context: click.Context, parameter: click.Parameter, arguments: tuple[str, ...]) -> Expectations:
    try:
        return parse_arguments(arguments)
    except OptionError as error:
        raise click.BadParameter(str(error)) from error


def _complete_expect(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    return [f"{key}=" for key in KEYS if key.startswith(incomplete)]


def setting_flags(*keys: str) -> Callable[[_Function], _Function]:
    """The flags of these keys of the configuration, for a command that goes before it."""
    found = options_of(Config)

    def add(function: _Function) -> _Function:
        for key in reversed(keys):
            function = _flag(found[key])(function)
        return function

    return add


def _flag(setting: Option) -> Callable[[_Function], _Function]:
    kind, flag = setting.kind, setting.flag
    if kind is None or flag is None:
        raise ValueError(f"the setting {setting.key} has no flag")
    form: dict[str, Any] = {}
    match kind.name:
        case "choice":
            form = {"type": click.Choice(kind.ansible["choices"])}
        case "flag":
            form = {"is_flag": True}
        case "duration":
            form = {"type": duration, "metavar": "DURATION"}
        case "names":
            form = {"type": names, "metavar": "CHECK,...", "shell_complete": complete_checks}
    return click.option(*flag.names, flag.parameter or setting.name, help=flag.help, **form)


def expect_option(function: _Function) -> _Function:
    """--expect KEY=VALUE, for the commands that make a plan."""
    examples = ", ".join(f"{key}={one.example}" for key, one in options_of(Expectations).items())
    option = click.option(
        "--expect",
        multiple=True,
        metavar="KEY=VALUE",
        callback=_expectations,
        shell_complete=_complete_expect,
        help=f"What this node should look like: {examples}. A run that contradicts the configuration is no PASS.",
    )
    return option(function)


def selection_options(function: _Function) -> _Function:
    """What a run tests: its level and time, GPUs, checks, device, and what is expected of the node."""
    options: tuple[Callable[[_Function], _Function], ...] = (
        setting_flags("level"),
        click.option(
            "--for",
            "duration_s",
            type=duration,
            metavar="DURATION",
            help="Run the level extended, for so long: 90m, 2h.",
        ),
        click.option(
            "--gpus", type=gpu_names, metavar="GPU,...|all", help="Only these GPUs: index, UUID or PCI address."
        ),
        setting_flags("checks"),
        click.option(
            "--skip", type=names, metavar="CHECK,...", help="Not these checks.", shell_complete=complete_checks
        ),
        setting_flags("backend"),
        expect_option,
    )
    for option in reversed(options):
        function = option(function)
    return function


def host_options(function: _Function) -> _Function:
    """--config and --state-dir, for the commands that work on this node's own state."""
    options = (
        click.option(
            "--config",
            "config_path",
            type=_FilePath(path_type=Path),
            help="Configuration file of this host.  [default: /etc/gpu-burnin/config.yaml, if it exists]",
        ),
        click.option(
            "--state-dir",
            "--out",
            type=_FilePath(path_type=Path, file_okay=False),
            help="Where runs, reports and evidence are kept.  [default: /var/lib/gpu-burnin; not as root: "
            "$XDG_STATE_HOME/gpu-burnin or ~/.local/state/gpu-burnin]",
        ),
    )
    for option in reversed(options):
        function = option(function)
    return function


def host_config(config_path: Path | None, state_dir: Path | None) -> Config:
    """The configuration with the state directory of the command line. Raises GpuBurninError.

    Of a run in another directory than the configured one no gate hears: it need not be signed.
    """
    config = load_config(config_path)
    if state_dir is None or state_dir.absolute() == config.state_dir:
        return config
    return replace(config, state_dir=state_dir.absolute(), require_evidence=False)
