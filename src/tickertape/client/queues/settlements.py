"""Settlements: bookmarks and options of an application as the bodies that are published."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from tickertape.base.bookmarks import AtBookmarks, Bookmark, parse_bookmark
from tickertape.base.errors import BadBookmark, BadFilter, BadOption, UsageError
from tickertape.base.names import check_topic
from tickertape.base.options import parse_options
from tickertape.base.text_format import shown
from tickertape.batch.message_batch import Message, MessageBatch, marks_of
from tickertape.batch.queue_lease import Action, Gathered, extension_ms
from tickertape.wire.settlement import Settlement, encode_settlement, runs_of

Bookmarks = str | Bookmark | Message | MessageBatch | Sequence[str | Bookmark | Message | MessageBatch]
"""Bookmarks of messages: text, with commas between several; a `Message`, a `MessageBatch`, or a list."""

_RUN: Final = struct.Struct("<QQQ")
_SEQUENCE_END: Final = 2**64 - 1
_ALLOWED: Final = "a bookmark (publisher|sequence|) and a list of them with commas between"
_EXTENSION: Final = "lease_extension"


def action_of(option: str | None) -> tuple[Action, int]:
    """Return the action that an option asks for, and the milliseconds of an extension. Raises
    `BadOption`."""
    if option is not None and not isinstance(option, str):
        raise BadOption(f"the option of an acknowledgement is text, not {type(option).__name__}")
    options = parse_options(option or "")
    if not options:
        return "ack", 0
    if options == {"cancel": None}:
        return "cancel", 0
    if options == {"expire": None}:
        return "expire", 0
    length = options.get(_EXTENSION)
    if list(options) == [_EXTENSION] and length is not None:
        return "extend", extension_ms(length)
    raise BadOption(
        f"{shown(option or '')} is not what becomes of a message: cancel, expire or {_EXTENSION}=60s"
    )


def bookmarks_in(bookmarks: object) -> list[tuple[int, int]]:
    """Publisher and sequence of each bookmark, in their order. Raises `BadBookmark`, `UsageError`."""
    marks: list[tuple[int, int]] = []
    if isinstance(bookmarks, list | tuple) and not isinstance(bookmarks, Bookmark):
        for one in bookmarks:
            marks += _marks_of_one(one)
    else:
        marks += _marks_of_one(bookmarks)
    if not marks:
        raise UsageError("an acknowledgement names at least one bookmark")
    return marks


def _marks_of_one(bookmark: object) -> list[tuple[int, int]]:
    if isinstance(bookmark, Message):
        batch, index = bookmark.batch, bookmark.index
        return [(batch.publisher(index), batch.sequence(index))]
    if isinstance(bookmark, MessageBatch):
        return marks_of(bookmark)
    if isinstance(bookmark, Bookmark):
        return [(bookmark.publisher, bookmark.sequence)]
    if not isinstance(bookmark, str):
        raise UsageError(
            f"what is acknowledged is a bookmark, a message, a batch or a list of them, not a "
            f"{type(bookmark).__name__}"
        )
    point = parse_bookmark(bookmark, _ALLOWED)
    if not isinstance(point, AtBookmarks) or point.unknown or not point.bookmarks:
        raise BadBookmark(f"{shown(bookmark)} names no messages; allowed are {_ALLOWED}")
    for mark in point.bookmarks:
        if not 0 < mark.sequence < _SEQUENCE_END:
            raise BadBookmark(f"{mark} names no message: sequences are 1 to {_SEQUENCE_END - 1}")
    return [(mark.publisher, mark.sequence) for mark in point.bookmarks]


def check_queue(topic: str) -> str:
    """`topic`, which can be the name of a queue. Raises `BadTopic`."""
    check_topic(topic)
    return topic


def check_filter(filter: object) -> str:
    """`filter`, as far as can be told here. Raises `BadFilter`."""
    if not isinstance(filter, str) or not filter.strip():
        raise BadFilter("the filter of a sow_delete is text, and not empty")
    return filter


def bodies_of(
    queue: str, action: Action, marks: Sequence[tuple[int, int]], extend_ms: int, marks_max: int
) -> Iterator[bytes]:
    """The settlements of these messages, each of at most `marks_max` of them."""
    for begin in range(0, len(marks), marks_max):
        runs = _runs(*zip(*marks[begin : begin + marks_max], strict=True))
        yield _body(queue, runs, action, extend_ms)


def bodies_of_gathered(items: Sequence[Gathered], marks_max: int) -> Iterator[bytes]:
    """Make settlements of gathered acknowledgements, one for each run of one queue."""
    begin = 0
    while begin < len(items):
        some = items[begin : begin + marks_max]
        begin += len(some)
        queues, publishers, sequences = zip(*some, strict=True)
        if queues.count(queues[0]) == len(some):  # what most are
            yield _body(queues[0], _runs(publishers, sequences))
            continue
        for queue, group in groupby(some, itemgetter(0)):
            yield from bodies_of(queue, "ack", [item[1:] for item in group], 0, marks_max)


def body_of_filter(queue: str, action: Action, filter: str, extend_ms: int) -> bytes:
    """The settlement of all messages of a queue that pass a filter."""
    return encode_settlement(Settlement(queue=queue, action=action, filter=filter, extend_ms=extend_ms))


def _body(queue: str, runs: bytes, action: Action = "ack", extend_ms: int = 0) -> bytes:
    return encode_settlement(Settlement(queue=queue, action=action, runs=runs, extend_ms=extend_ms))


def _runs(publishers: tuple[int, ...], sequences: tuple[int, ...]) -> bytes:
    count, publisher, first = len(sequences), publishers[0], sequences[0]
    if (
        sequences[-1] - first == count - 1
        and publishers.count(publisher) == count
        and sequences == tuple(range(first, first + count))
    ):  # what most are
        return _RUN.pack(publisher, first, count)
    return runs_of(publishers, sequences)
