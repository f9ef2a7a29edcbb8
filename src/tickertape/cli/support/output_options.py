"""Options of output, the same in every command: `--output` and `--limit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from tickertape.cli.support.option_types import Count, NamedChoice

Command = TypeVar("Command", bound=Callable[..., Any])


def _is_json(ctx: click.Context, param: click.Parameter, value: str) -> bool:  # noqa: ARG001 - click's form
    return value == "json"


output_option = click.option(
    "--output",
    "as_json",
    type=NamedChoice(("text", "json")),
    default="text",
    show_default=True,
    callback=_is_json,
    help="Output format. json: one object, or for a list one object per line.",
)

table_output_option = click.option(
    "--output",
    type=NamedChoice(("text", "json", "csv", "arrow")),
    default="text",
    show_default=True,
    help="Output format. json: one object per line. arrow: an Arrow IPC stream, for files and pipes.",
)


def limit_option(text: str, default: int | None = None) -> Callable[[Command], Command]:
    """Return the option `--limit` with the help `text`. Without `default` the output has no limit."""
    return click.option(
        "--limit",
        type=Count(),
        metavar="N",
        default=default,
        show_default=default is not None,
        help=text,
    )
