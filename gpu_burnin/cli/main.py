"""The command line: options in, one call, exit code out.

Imports only click and the settings at the top, so that help is quick.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpu_burnin import __version__
from gpu_burnin.cli.options import (
    complete_injections,
    duration,
    host_config,
    host_options,
    selection_options,
    setting_flags,
)
from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_USAGE, GpuBurninError, install_hint
from gpu_burnin.system.streams import OutputLost, drop_output, readers_may_leave

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

NAME = "gpu-burnin"
# The environment variable in which the shell asks for completions.
COMPLETE = "_GPU_BURNIN_COMPLETE"
# Modules that only an extra of this distribution brings, and which one.
_EXTRA_OF: Mapping[str, str] = {"paramiko": "controller"}
# Commands that are imported on use: name, where it is, one line of help.
_LAZY: Mapping[str, tuple[str, str, str]] = {
    "compare": ("gpu_burnin.cli.compare", "compare", "Say what changed between two reports."),
    "completion": ("gpu_burnin.cli.completion", "completion", "Print the completion script for SHELL."),
    "demo": ("gpu_burnin.cli.demo", "demo", "Show a whole burn-in on simulated GPUs."),
    "explain": ("gpu_burnin.cli.explain", "explain", "Say what a reason code or an XID means, and what to do."),
    "fleet": ("gpu_burnin.cli.fleet", "fleet", "Look at many hosts from the controller."),
    "gate": ("gpu_burnin.cli.gate", "gate", "Say whether kubelet may start on this node."),
    "host": ("gpu_burnin.cli.fleet", "host", "Run a burn-in on HOST and bring its report back."),
    "power-grant": ("gpu_burnin.cli.node", "power_grant", "Grant the power waves that a burn-in here asks for."),
    "plan": ("gpu_burnin.cli.plan", "plan", "Say what a run would do here, and how long it takes."),
    "scan": ("gpu_burnin.cli.scan", "scan", "Look at this node's GPUs for some seconds; test nothing."),
    "selftest": ("gpu_burnin.cli.selftest", "selftest", "Prove this node's detectors with injected faults."),
    "start": ("gpu_burnin.cli.node", "start", "Start a burn-in in a systemd unit of its own."),
    "status": ("gpu_burnin.cli.node", "status", "Say what this node knows of its burn-in."),
}


class _LazyGroup(click.Group):
    """A group that imports the commands in _LAZY only when one is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *_LAZY})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _LAZY:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = _LAZY[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        helps = {name: _LAZY[name][2] if name in _LAZY else "" for name in self.list_commands(ctx)}
        commands = [CompletionItem(name, help=text) for name, text in helps.items() if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, _LAZY[name][2] if name in _LAZY else self.commands[name].get_short_help_str(60))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", prog_name="gpu-burnin")
def cli() -> None:
    """Burn-in of GPU nodes. Exit codes: 0 PASS, 1 FAIL, 2 usage or configuration error, 3 INCONCLUSIVE."""


@cli.command()
@selection_options
@setting_flags("power_waves", "wave_wait")
@click.option("--seed", type=click.IntRange(0), help="Seed of all operands and patterns.  [default: random]")
@setting_flags("allow_simulated")
@click.option(
    "--inject",
    multiple=True,
    metavar="CHECK:FAULT",
    shell_complete=complete_injections,
    help="Inject a fault, e.g. gemm:bitflip, or gemm:bitflip:gpu=0 on one GPU. Such a run never passes and is never "
    "evidence. A wrong FAULT lists the known ones.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON and nothing else on stdout.")
@host_options
def run(
    config_path: Path | None, state_dir: Path | None, as_json: bool, skip: tuple[str, ...] | None, **asked: Any
) -> None:
    """Test this node; leave a report and signed evidence.

    Options that are not given come from the configuration. A run of less than the configuration asks for is
    never a PASS.
    """
    from gpu_burnin.cli import progress
    from gpu_burnin.cli.outcome import tell, tell_files
    from gpu_burnin.run import RunOptions, run_burnin
    from gpu_burnin.system import private_shm
    from gpu_burnin.system.interrupts import Interrupts

    private_shm.enter()
    options = RunOptions(config=host_config(config_path, state_dir), skip=skip or (), **asked)
    outcome = run_burnin(options, progress.display, Interrupts(last=True))
    # The exit code is the verdict's, whoever reads along and whatever signal comes now.
    with readers_may_leave(f"the report of this {outcome.verdict}"):
        tell(outcome, as_json)
        tell_files(outcome)
    for problem in outcome.problems:
        click.echo(f"{NAME}: {problem}", err=True)
    sys.exit(outcome.exit_code)


@cli.command()
@click.argument("file", type=click.Path(path_type=Path), required=False, metavar="[FILE|DIR]")
@click.option("--json", "as_json", is_flag=True, help="Print the report, or the hosts, as JSON.")
@click.option(
    "--html",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="For many hosts: also write a page that leads to the pages of their reports.",
)
@host_options
def report(
    file: Path | None, as_json: bool, html: Path | None, config_path: Path | None, state_dir: Path | None
) -> None:
    """Show a report, the latest of this node by default; or who is held of many hosts, and why.

    FILE is a report; DIR a run's directory, a node's state directory, or a folder with a folder for each host, as
    site.yml (fleet_state_dir/reports) and gpu-burnin host (--reports) keep them. Of one report: exit code 1, and no
    report, when it is not the one that its run signed. Of many hosts: 0 when each has a PASS on real hardware, 1 when
    one has a FAIL, 3 when one is INCONCLUSIVE, simulated, or its report cannot be read, 2 when there is no report.
    """
    from gpu_burnin.cli import held, terminal
    from gpu_burnin.fleet.held import is_fleet
    from gpu_burnin.node import authentic, reports
    from gpu_burnin.node.store import Store
    from gpu_burnin.report import model, outputs

    path = file or Store(host_config(config_path, state_dir).state_dir).root
    host_key = None
    with contextlib.suppress(GpuBurninError):  # a configuration that matters for the key alone
        host_key = host_config(config_path, state_dir).host_key
    if file is not None and is_fleet(file):
        sys.exit(held.show(file, html, host_key, as_json=as_json))
    if html is not None:
        raise click.UsageError("--html is for a folder of many hosts; the page of one run is report.html beside it")
    chosen, data = reports.find(path), reports.read(path)
    authentic.refuse_changed(chosen, data, host_key)
    found = model.parse(data, str(chosen))
    if as_json:
        click.echo(data, nl=False)
    else:
        terminal.show(outputs.as_text(found, terminal.width()))
    begun = None
    with contextlib.suppress(GpuBurninError):  # a damaged counter is the gate's to tell
        begun = Store(chosen.parent.parent).begun_after(chosen)
    if begun is not None:
        click.echo(
            f"{NAME}: {chosen}: this is not the newest run: run {begun} began after it and has left no report (yet, if "
            "it is under way); until it does, the gate is closed: run gpu-burnin run",
            err=True,
        )


@cli.command()
@click.option(
    "--deadline",
    "deadline_s",
    type=duration,
    default="2m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for the kubelet's certificate, the API server and the Node object.",
)
@host_options
def publish(config_path: Path | None, state_dir: Path | None, deadline_s: float) -> None:
    """Write the newest evidence to this node's own Node object.

    Uses the kubelet's client certificate.
    """
    from gpu_burnin.node.publish import publish as publish_evidence

    config = host_config(config_path, state_dir)
    changed = publish_evidence(config, deadline_s)
    click.echo(f"{config.node_name}: evidence {'published' if changed else 'was there already'}")


@cli.command()
def schema() -> None:
    """Print the JSON Schema of the report."""
    from gpu_burnin.report.model import schema_text

    click.echo(schema_text(), nl=False)


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(__version__)


def call() -> int:
    """Run the command of the process' own arguments; its exit code. An error is one sentence on standard error.

    An unexpected error is a fault of this program: 3, because 1 would mean FAIL. A reader that stops
    (head, less) has what it wanted: 0, but for the commands whose exit code is their answer. Raises KeyboardInterrupt.
    """
    try:
        if COMPLETE in os.environ:
            from gpu_burnin.cli.bash import use_own_bash

            use_own_bash()
            cli.main(prog_name=NAME, complete_var=COMPLETE)
        # Not cli.main(), which ends with 1 when a reader went away.
        with cli.make_context(NAME, sys.argv[1:]) as context:
            cli.invoke(context)
        sys.stdout.flush()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort:
        raise KeyboardInterrupt from None
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except GpuBurninError as error:
        click.echo(f"{NAME}: {error}", err=True)
        return error.exit_code
    except OutputLost as lost:
        drop_output()
        if lost.errno == errno.EPIPE:
            return 0
        click.echo(f"{NAME}: standard output cannot be written ({lost.strerror}); make room", err=True)
        return EXIT_USAGE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (extra := _EXTRA_OF.get(error.name or "")):
            click.echo(f"{NAME}: {error.name} is not installed; {install_hint(extra)} brings it", err=True)
            return EXIT_USAGE
        import traceback

        traceback.print_exc()
        click.echo(
            f"{NAME}: this is a fault of gpu-burnin itself ({error!r}); report it with the lines above", err=True
        )
        return EXIT_INCONCLUSIVE
    return 0
