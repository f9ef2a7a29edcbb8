"""Owns writing the messages of a subscription to standard output.

Must never hold a message back, or say that one was dealt with before it was written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, BinaryIO

import click

from tickertape.cli.lines import json_lines

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch

Written = Callable[["MessageBatch", int], object]
"""Told of a batch how many of its messages, from its first on, were written and flushed."""

output_option = click.option(
    "--output",
    type=click.Choice(["data", "json"]),
    default="data",
    show_default=True,
    help="data: the message and a line end. json: an object a line, with the header fields.",
)


def print_batches(
    batches: Iterable[MessageBatch],
    count: int | None,
    out: BinaryIO,
    *,
    as_json: bool,
    written: Written | None = None,
) -> bool:
    """Write every batch as soon as it is there, up to `count` messages; False when they ended before."""
    left = count
    for batch in batches:
        lines = json_lines(batch) if as_json else iter(batch.bodies_list())
        taken = list(lines)[:left]
        taken.append(b"")
        out.write(b"\n".join(taken))
        out.flush()
        if written is not None:
            written(batch, len(taken) - 1)
        if left is not None:
            left -= len(taken) - 1
            if left == 0:
                return True
    return False
