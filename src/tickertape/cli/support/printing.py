"""Owns writing the messages of a subscription to standard output.

Must never hold a message back, or say that one was dealt with before it was written out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, BinaryIO, Protocol

import click

from tickertape.cli.support.json_lines import json_lines

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


class Output(Protocol):
    """A binary stream that messages are written to, whole lines at a time."""

    def write(self, data: bytes, /) -> object:
        """Write `data`, which ends at the end of a line."""

    def flush(self) -> object:
        """Hand on what was written."""


class TerminalOutput:
    """Writes messages to a terminal, with every control character escaped.

    A message may hold a sequence that a terminal obeys, for example one that sets the title of its window.
    """

    def __init__(self, out: BinaryIO) -> None:
        self._out = out
        self.flush = out.flush

    def write(self, data: bytes) -> None:
        """Write `data` with control characters as `\\x1b` or `\\u009b` and invalid UTF-8 as `\\xff`."""
        text = data.decode("utf-8", "backslashreplace")
        if not text.replace("\n", "").replace("\t", "").isprintable():
            text = "".join(c if c.isprintable() or c in "\n\t" else _escaped(c) for c in text)
        self._out.write(text.encode("utf-8"))


def _escaped(character: str) -> str:
    """Return the escape of a character: valid inside a JSON string where the character is."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def message_output() -> Output:
    """Return standard output for messages: bytes as they are, escaped only if it is a terminal."""
    return TerminalOutput(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def print_batches(
    batches: Iterable[MessageBatch],
    count: int | None,
    out: Output,
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
