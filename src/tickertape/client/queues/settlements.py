"""Settlements: conversion of bookmarks and options into message bodies for publishing."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final

from tickertape.base.bookmarks import AtBookmarks, Bookmark, parse_bookmark
from tickertape.base.errors import BadBookmark, BadOption, UsageError
from tickertape.base.names import check_topic
from tickertape.base.options import parse_options
from tickertape.base.text_format import did_you_mean, shown, wrong_type
from tickertape.batch.message_batch import Message, MessageBatch, marks_of
from tickertape.batch.queue_lease import Action, Gathered, extension_ms
from tickertape.wire.settlement import Settlement, encode_settlement, runs_of

Bookmarks = str | Bookmark | Message | MessageBatch | Sequence[str | Bookmark | Message | MessageBatch]
"""Bookmarks of messages: text (comma-separated), a `Bookmark`, `Message`, `MessageBatch`, or a list."""

_RUN: Final = struct.Struct("<QQQ")
_SEQUENCE_END: Final = 2**64 - 1
_ALLOWED: Final = "a bookmark (publisher|sequence|) or a comma-separated list of bookmarks"
_EXTENSION: Final = "lease_extension"


def action_of(option: str | None) -> tuple[Action, int]:
    """Return the action of an option, and the milliseconds of an extension. Raises `BadOption`."""
    if option is not None and not isinstance(option, str):
        raise BadOption(wrong_type("acknowledgement option", option, "str"))
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
        f"Invalid acknowledgement option {shown(option or '')}.{_near_action(options)} "
        f"Use cancel, expire or {_EXTENSION}=60s."
    )


def _near_action(options: dict[str, str | None]) -> str:
    return did_you_mean(next(iter(options)), ("cancel", "expire", _EXTENSION)) if len(options) == 1 else ""


def bookmarks_in(bookmarks: object) -> list[tuple[int, int]]:
    """Return publisher and sequence of each bookmark, in order. Raises `BadBookmark`, `UsageError`."""
    marks: list[tuple[int, int]] = []
    if isinstance(bookmarks, list | tuple) and not isinstance(bookmarks, Bookmark):
        for one in bookmarks:
            marks += _marks_of_one(one)
    else:
        marks += _marks_of_one(bookmarks)
    if not marks:
        raise UsageError("Cannot acknowledge without bookmarks. Pass at least one.")
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
        raise UsageError(wrong_type("bookmark", bookmark, "bookmarks, messages, batches or a list of them"))
    point = parse_bookmark(bookmark, _ALLOWED, "bookmark")
    if not isinstance(point, AtBookmarks):
        raise BadBookmark(
            f"Invalid bookmark {shown(bookmark)}: it is not the bookmark of a message. Use {_ALLOWED}."
        )
    if point.unknown:
        wrong = next(part for part in map(str.strip, bookmark.split(",")) if not _is_known(part))
        raise BadBookmark(
            f"Invalid bookmark {shown(wrong)}: it is not two numbers up to {_SEQUENCE_END}, each followed "
            f"by |. Use {_ALLOWED}."
        )
    for mark in point.bookmarks:
        if not 0 < mark.sequence < _SEQUENCE_END:
            raise BadBookmark(
                f"Invalid bookmark {str(mark)!r}. Use a sequence from 1 to {_SEQUENCE_END - 1}."
            )
    return [(mark.publisher, mark.sequence) for mark in point.bookmarks]


def _is_known(part: str) -> bool:
    """Return whether a member of a list has the form of a bookmark."""
    point = parse_bookmark(part)
    return isinstance(point, AtBookmarks) and not point.unknown


def check_queue(topic: str) -> str:
    """Return `topic` if it is a valid queue name. Raises `BadTopic`."""
    check_topic(topic)
    return topic


def bodies_of(
    queue: str, action: Action, marks: Sequence[tuple[int, int]], extend_ms: int, marks_max: int
) -> Iterator[bytes]:
    """Yield the settlements of these messages, each with at most `marks_max` of them."""
    for begin in range(0, len(marks), marks_max):
        runs = _runs(*zip(*marks[begin : begin + marks_max], strict=True))
        yield _body(queue, runs, action, extend_ms)


def bodies_of_gathered(items: Sequence[Gathered], marks_max: int) -> Iterator[bytes]:
    """Yield settlements of gathered acknowledgements, each for one queue."""
    begin = 0
    while begin < len(items):
        some = items[begin : begin + marks_max]
        begin += len(some)
        queues, publishers, sequences = zip(*some, strict=True)
        if queues.count(queues[0]) == len(some):  # fast path for the most common case
            yield _body(queues[0], _runs(publishers, sequences))
            continue
        for queue, group in groupby(some, itemgetter(0)):
            yield from bodies_of(queue, "ack", [item[1:] for item in group], 0, marks_max)


def body_of_filter(queue: str, action: Action, filter: str, extend_ms: int) -> bytes:
    """Return the settlement of all messages of a queue that match a filter."""
    return encode_settlement(Settlement(queue=queue, action=action, filter=filter, extend_ms=extend_ms))


def _body(queue: str, runs: bytes, action: Action = "ack", extend_ms: int = 0) -> bytes:
    return encode_settlement(Settlement(queue=queue, action=action, runs=runs, extend_ms=extend_ms))


def _runs(publishers: tuple[int, ...], sequences: tuple[int, ...]) -> bytes:
    count, publisher, first = len(sequences), publishers[0], sequences[0]
    if (
        sequences[-1] - first == count - 1
        and publishers.count(publisher) == count
        and sequences == tuple(range(first, first + count))
    ):  # fast path for the most common case
        return _RUN.pack(publisher, first, count)
    return runs_of(publishers, sequences)
