"""What both programs share: commands that are imported on use, and the way from arguments to an exit code."""

from __future__ import annotations

import difflib
import errno
import importlib
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import click

from gpu_burnin.errors import EXIT_INCONCLUSIVE, EXIT_USAGE, GpuBurninError, install_hint
from gpu_burnin.system.streams import OutputLost, drop_output

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# A command that is imported on use: its module, its name there, one line of help.
Row: TypeAlias = tuple[str, str, str]
# Modules that only an extra of this distribution brings, and which one.
EXTRA_OF: Mapping[str, str] = {
    **dict.fromkeys(("jinja2", "jsonschema", "markupsafe", "ml_dtypes", "numpy", "pynvml", "rich"), "node"),
    **dict.fromkeys(("ansible_runner", "cryptography", "kubernetes", "paramiko", "sushy"), "controller"),
    "prometheus_client": "admitter",
}
# Commands whose extra brings less than a controller needs: what people of teams run, and services of the API servers.
_LESS: Mapping[str, tuple[frozenset[str], str]] = {
    **dict.fromkeys(("logs", "run", "teams", "why"), (frozenset({"kubernetes"}), "launch")),
    **dict.fromkeys(
        ("admitter", "gate-probe", "scaler", "webhook"),
        (frozenset({"cryptography", "kubernetes", "sushy"}), "admitter"),
    ),
}


class LazyGroup(click.Group):
    """A group that imports the commands of its table only when one is called."""

    def __init__(self, *args: Any, table: Mapping[str, Row], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*super().list_commands(ctx), *self.table})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, attribute, _ = self.table[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # click looks for near names among the commands that are imported, which those of the table are not.
        name = args[0]
        if not ctx.resilient_parsing and not name.startswith("-") and self.get_command(ctx, name) is None:
            near = difflib.get_close_matches(name, self.list_commands(ctx), 1)
            ctx.fail(f"No such command {name!r}.{f' Did you mean {near[0]!r}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        helps = {name: self.table[name][2] if name in self.table else "" for name in self.list_commands(ctx)}
        commands = [CompletionItem(name, help=text) for name, text in helps.items() if name.startswith(incomplete)]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, self.table[name][2] if name in self.table else self.commands[name].get_short_help_str(60))
            for name in self.list_commands(ctx)
        ]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def complete_variable(name: str) -> str:
    """The environment variable in which the shell asks a program of this name for completions."""
    return f"_{name.replace('-', '_').upper()}_COMPLETE"


def call(program: click.Group) -> int:
    """Run the command of the process' own arguments; its exit code. An error is one sentence on standard error.

    An unexpected error is a fault of this program: 3, because 1 would mean FAIL. A reader that stops
    (head, less) has what it wanted: 0, but for the commands whose exit code is their answer. Raises KeyboardInterrupt.
    """
    name = program.name or ""
    complete = complete_variable(name)
    try:
        if complete in os.environ:
            from gpu_burnin.cli.bash import use_own_bash

            use_own_bash()
            program.main(prog_name=name, complete_var=complete)
        # Not cli.main(), which ends with 1 when a reader went away.
        with program.make_context(name, sys.argv[1:]) as context:
            program.invoke(context)
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
        click.echo(f"{name}: {error}", err=True)
        return error.exit_code
    except OutputLost as lost:
        drop_output()
        if lost.errno == errno.EPIPE:
            return 0
        click.echo(f"{name}: standard output cannot be written ({lost.strerror}); make room", err=True)
        return EXIT_USAGE
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and (extra := _extra_of(error.name or "", sys.argv[1:2])):
            click.echo(f"{name}: {error.name} is not installed; {install_hint(extra)} brings it", err=True)
            return EXIT_USAGE
        import traceback

        traceback.print_exc()
        click.echo(f"{name}: this is a fault of {name} itself ({error!r}); report it with the lines above", err=True)
        return EXIT_INCONCLUSIVE
    return 0


def _extra_of(module: str, command: list[str]) -> str:
    """Which extra brings a module for a command, "" for none."""
    brings, extra = _LESS.get("".join(command), (frozenset[str](), ""))
    return extra if module in brings else EXTRA_OF.get(module, "")
