"""Owns the text form of messages: a JSON object a line.

Must never lose a byte of a body: what is not JSON is shown as text, and what is not text as base64.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec

from tickertape.base.timestamps import format_timestamp, to_micros

if TYPE_CHECKING:
    from tickertape.batch import MessageBatch

NOT_JSON: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Exceptions of `msgspec.json` for text that is not JSON, not UTF-8, or nested too deeply."""

_json_text = msgspec.json.Encoder().encode


def json_lines(batch: MessageBatch) -> Iterator[bytes]:
    """Each message as one JSON object; columns are read at once, because a message costs little then."""
    publishers, sequences = batch.publishers.tolist(), batch.sequences.tolist()
    topics = [_topic(batch, topic) for topic in batch.topics]
    index = [0] * batch.count if batch.topic_index is None else batch.topic_index.tolist()
    extras = (batch.expirations, batch.correlation_ids, batch.keys)
    labelled = any(column is not None for column in extras)
    stamp, time = None, b""
    for i, (data, micros) in enumerate(zip(batch.bodies_list(), batch.timestamps.tolist(), strict=True)):
        if micros != stamp:
            stamp, time = micros, format_timestamp(micros).encode()
        name, body = _body(data)
        yield (
            b'{"topic":%b,"bookmark":"%d|%d|","publisher":"%d","sequence":%d,"timestamp":"%b"%b,"%b":%b}'
            % (
                topics[index[i]],
                publishers[i],
                sequences[i],
                publishers[i],
                sequences[i],
                time,
                _labels(batch, i) if labelled else b"",
                name,
                body,
            )
        )


def _topic(batch: MessageBatch, topic: str) -> bytes:
    """What stands behind `"topic":` of messages of `topic`: as of a message, of one out of a queue that."""
    if batch.queue is None:
        return _json_text(topic)
    lease = b"" if batch.lease_expires is None else b',"lease_expires":%b' % _lease_end(batch.lease_expires)
    return b'%b,"underlying_topic":%b%b' % (_json_text(batch.queue), _json_text(topic), lease)


def _lease_end(end: datetime) -> bytes:
    return _json_text(format_timestamp(to_micros(end)))


def _labels(batch: MessageBatch, i: int) -> bytes:
    """What only some messages have."""
    labels = {
        "expiration": batch.expiration(i),
        "correlation_id": batch.correlation_id(i),
        "sow_key": batch.key(i),
    }
    return b"".join(
        b',"%b":%b' % (name.encode(), _json_text(value)) for name, value in labels.items() if value
    )


def _body(data: bytes) -> tuple[bytes, bytes]:
    """The field that a body is shown in, and its value."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return b"base64", b'"%b"' % base64.b64encode(data)
    try:
        # Numbers and the order of keys stay as they are; line ends between values go, it must be one line.
        return b"data", msgspec.json.format(data, indent=-1)
    except NOT_JSON:
        return b"text", _json_text(text)
