"""`completion`: the script that makes a shell complete commands and options."""

from __future__ import annotations

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print the completion script of a shell.")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that makes SHELL complete commands and options of tickertape.

    \b
    eval "$(tickertape completion bash)"                                           in ~/.bashrc
    eval "$(tickertape completion zsh)"                                            in ~/.zshrc
    tickertape completion fish > ~/.config/fish/completions/tickertape.fish        once
    """
    made = get_completion_class(shell)
    assert made is not None, "one of the shells that click knows"
    root = ctx.find_root()
    click.echo(made(root.command, {}, "tickertape", "_TICKERTAPE_COMPLETE").source())
