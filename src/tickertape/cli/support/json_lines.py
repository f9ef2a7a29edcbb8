"""Output of messages as JSON lines.

No byte of a body is lost: a body that is not JSON is printed as text, or as base64 if it is not UTF-8.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, Final, Protocol

import msgspec

from tickertape.base.bookmarks import format_timestamp, to_micros

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch


NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of `msgspec.json` for text that is not JSON, not UTF-8, or nested too deeply."""

_json_text = msgspec.json.Encoder().encode


def json_lines(batch: MessageBatch) -> Iterator[bytes]:
    """Yield each message as one JSON object. Columns are converted once per batch, for speed."""
    publishers, sequences = batch.publishers.tolist(), batch.sequences.tolist()
    topics = [_topic(batch, topic) for topic in batch.topics]
    index = [0] * batch.count if batch.topic_index is None else batch.topic_index.tolist()
    context = batch.context
    extras = (batch.expirations, batch.correlation_ids, batch.keys, context and context.sow_keys)
    labelled = any(extra is not None for extra in extras)
    record = b',"command":"sow"' if context is not None and context.command == "sow" else b""
    stamp, time = None, b""
    for i, (data, micros) in enumerate(zip(batch.bodies_list(), batch.timestamps.tolist(), strict=True)):
        if micros != stamp:
            stamp, time = micros, format_timestamp(micros).encode()
        name, body = body_field(data)
        yield (
            b'{"topic":%b,"bookmark":"%d|%d|","publisher":"%d","sequence":%d,"timestamp":"%b"%b%b,"%b":%b}'
            % (
                topics[index[i]],
                publishers[i],
                sequences[i],
                publishers[i],
                sequences[i],
                time,
                record,
                _labels(batch, i) if labelled else b"",
                name,
                body,
            )
        )


def _topic(batch: MessageBatch, topic: str) -> bytes:
    """Return the JSON after `"topic":` for messages of `topic`. For a queue message it has the queue name."""
    if batch.queue is None:
        return _json_text(topic)
    lease = b"" if batch.lease_expires is None else b',"lease_expires":%b' % _lease_end(batch.lease_expires)
    return b'%b,"underlying_topic":%b%b' % (_json_text(batch.queue), _json_text(topic), lease)


def _lease_end(end: datetime) -> bytes:
    return _json_text(format_timestamp(to_micros(end)))


def _labels(batch: MessageBatch, i: int) -> bytes:
    """Return the optional fields of a message."""
    from tickertape.batch.message_batch import sow_key_of  # imports numpy, which lines of files do not need

    labels = {
        "expiration": batch.expiration(i),
        "correlation_id": batch.correlation_id(i),
        "sow_key": sow_key_of(batch, i),
    }
    return b"".join(
        b',"%b":%b' % (name.encode(), _json_text(value)) for name, value in labels.items() if value
    )


def body_field(data: bytes) -> tuple[bytes, bytes]:
    """Return the name and value of the field for a body."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return b"base64", b'"%b"' % base64.b64encode(data)
    try:
        # Numbers and the order of keys are unchanged. Line ends between values are removed.
        return b"data", msgspec.json.format(data, indent=-1)
    except NOT_JSON:
        return b"text", _json_text(text)


Written = Callable[["MessageBatch", int], object]
"""Callback with a batch and the number of its messages, from the first, that were written and flushed."""


class Output(Protocol):
    """A binary stream for messages. Each write ends with a complete line."""

    def write(self, data: bytes, /) -> object:
        """Write `data`, which ends with a complete line."""

    def flush(self) -> object:
        """Flush the output."""


class TerminalOutput:
    """Output to a terminal with escaped control characters.

    A message may contain escape sequences for the terminal, for example one that sets the window title.
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
    """Return the escape sequence of a character, which is valid in a JSON string if the character is."""
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x20 else f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"


def message_output() -> Output:
    """Return standard output for messages. Output is escaped only on a terminal."""
    return TerminalOutput(sys.stdout.buffer) if sys.stdout.isatty() else sys.stdout.buffer


def print_batches(
    batches: Iterable[MessageBatch],
    limit: int | None,
    out: Output,
    *,
    as_json: bool,
    written: Written | None = None,
) -> bool:
    """Write each batch when it arrives, up to `limit` messages. Return False if the stream ends before."""
    left = limit
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
