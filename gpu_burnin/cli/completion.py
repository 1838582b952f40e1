"""`gpu-burnin completion`: the script by which a shell asks for completions."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from gpu_burnin.cli.main import COMPLETE, NAME, cli


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    For bash: eval "$(gpu-burnin completion bash)" in ~/.bashrc; for zsh the same in ~/.zshrc; for fish: gpu-burnin
    completion fish | source.
    """
    kind = get_completion_class(shell)
    assert kind is not None  # click has all that the choice above names
    click.echo(kind(cli, {}, NAME, COMPLETE).source())
