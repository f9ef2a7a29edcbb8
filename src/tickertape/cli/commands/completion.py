"""`completion`: print the completion script of a shell."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

from tickertape.cli.support.option_types import NamedChoice

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=NamedChoice(SHELLS), metavar="SHELL")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script for SHELL (bash, zsh or fish) that completes commands and options of tickertape.

    \b
    eval "$(tickertape completion bash)"                                           in ~/.bashrc
    eval "$(tickertape completion zsh)"                                            in ~/.zshrc
    tickertape completion fish > ~/.config/fish/completions/tickertape.fish        once
    """
    made = get_completion_class(shell)
    assert made is not None, "a shell known to click"
    root = ctx.find_root()
    click.echo(made(root.command, {}, "tickertape", "_TICKERTAPE_COMPLETE").source())
