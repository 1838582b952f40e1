"""`gpu-burnin completion` and `muster completion`: the script by which a shell asks for completions."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpu_burnin.cli.program import complete_variable


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for SHELL.

    For bash: eval "$(gpu-burnin completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc; for fish: gpu-burnin
    completion fish | source. The same for muster.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has all that the choice above names
    program = context.find_root().command
    name = program.name or ""
    click.echo(kind(program, {}, name, complete_variable(name)).source())
