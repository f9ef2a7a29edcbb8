"""Batch filter: applies one filter to batches whose messages may be of any message type.

The filter is compiled once per message type. If a type cannot have the fields of the filter, no message of
that type matches. Callers filter a batch in bounded pieces (`piece_end`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from tickertape.base.errors import BadFilter
from tickertape.base.limits import filter_bytes_max
from tickertape.batch import MessageBatch, bodies_between
from tickertape.batch.format import I8, Int64s
from tickertape.filter.compiler.compile import Filter, FilterInputs, compile_filter, inputs_of
from tickertape.filter.limits import filter_piece_bytes_max
from tickertape.payload import message_type

SUBSCRIBER_INPUTS: Final = frozenset({"user", "client_name", "client_version"})
"""Fields of `FilterInputs` whose values depend on the subscriber."""
_NOTHING: Final = "FALSE"
_NO_INPUTS: Final = FilterInputs()


class BatchFilter:
    """A filter for messages whose types depend on their topics."""

    __slots__ = ("_bytes_max", "_filters", "_type_of", "needs", "text", "unreadable", "work")

    def __init__(
        self, text: str, type_of: Callable[[str], str], *, bytes_max: int = filter_bytes_max
    ) -> None:
        """`type_of` maps a topic to the name of its message type. Raises `BadFilter` for text that is invalid
        for every type."""
        self.text = text
        self.needs = inputs_of(text, bytes_max)
        """Fields of `FilterInputs` that the filter reads."""
        self.work = 1
        """Maximum steps per message, over the types seen."""
        self.unreadable = 0
        """Unreadable bodies. A body counts each time it is filtered."""
        self._bytes_max = bytes_max
        self._type_of = type_of
        self._filters: dict[str, Filter] = {}

    @property
    def types(self) -> list[str]:
        """Message types for which the filter is compiled."""
        return list(self._filters)

    def prepare(self, type_name: str) -> BadFilter | None:
        """Compile the filter for a message type. Return the error of a type that cannot have its fields."""
        error = None
        kind = message_type(type_name)
        try:
            compiled = compile_filter(self.text, kind, bytes_max=self._bytes_max)
        except BadFilter as misfit:
            compiled, error = compile_filter(_NOTHING, kind), misfit
        self._filters[type_name] = compiled
        self.work = max(self.work, compiled.work)
        return error

    def filter_of(self, type_name: str) -> Filter:
        """Return the filter for a message type."""
        compiled = self._filters.get(type_name)
        if compiled is None:
            self.prepare(type_name)
            compiled = self._filters[type_name]
        return compiled

    def passing(self, bodies: Sequence[bytes], type_name: str, inputs: FilterInputs | None = None) -> Int64s:
        """Return the indices of the matching bodies of one message type, ascending.

        `inputs` has the inputs in `needs`: columns with one value for each body, and constants.
        """
        compiled = self.filter_of(type_name)
        before = compiled.unreadable
        found = np.array(compiled.select(bodies, inputs if compiled.needs else None), I8)
        self.unreadable += compiled.unreadable - before
        return found

    def matching_rows(
        self, batch: MessageBatch, rows: Int64s, constants: FilterInputs | None = None
    ) -> Int64s:
        """Return the matching rows among `rows` (ascending) of a batch.

        `constants` has the inputs that are equal for all messages. Some filters need them.
        """
        if not len(rows):
            return rows
        found = []
        for type_name, some in rows_by_type(self._type_of, batch, rows):
            compiled = self.filter_of(type_name)
            needs, before = compiled.needs, compiled.unreadable
            inputs = None
            if needs:
                inputs = filter_inputs(constants or _NO_INPUTS, needs, batch, some.tolist())
            found.append(some[compiled.select(bodies_of(batch, some), inputs)])
            self.unreadable += compiled.unreadable - before
        return found[0] if len(found) == 1 else np.sort(np.concatenate(found))


def piece_end(batch: MessageBatch, low: int, messages_max: int) -> int:
    """Return the end of the piece that starts at row `low`.

    A piece has at most `messages_max` messages and `filter_piece_bytes_max` bytes, but at least one
    message."""
    offsets = batch.offsets
    by_bytes = int(offsets.searchsorted(int(offsets[low]) + filter_piece_bytes_max, "right")) - 1
    return min(max(min(by_bytes, low + messages_max), low + 1), batch.count)


def filter_inputs(
    constants: FilterInputs, needs: frozenset[str], batch: MessageBatch, rows: list[int]
) -> FilterInputs:
    """Return `constants` with the columns that a filter needs for some rows of a batch."""
    return FilterInputs(
        topics=[batch.topic(i) for i in rows] if "topics" in needs else (),
        bookmarks=[batch.bookmark(i) for i in rows] if "bookmarks" in needs else (),
        correlation_ids=[batch.correlation_id(i) for i in rows] if "correlation_ids" in needs else (),
        sow_keys=[batch.key(i) for i in rows] if "sow_keys" in needs else (),
        user=constants.user,
        client_name=constants.client_name,
        client_version=constants.client_version,
        now=constants.now,
    )


def rows_by_type(
    type_of: Callable[[str], str], batch: MessageBatch, rows: Int64s
) -> list[tuple[str, Int64s]]:
    """Group `rows` of a batch by the message types of their topics."""
    topics = batch.topics
    if batch.topic_index is None:
        return [(type_of(topics[0]), rows)]
    numbers = batch.topic_index[rows]
    # Only the topics of these rows: a batch may have thousands, and this may be called for each one.
    names = {number: type_of(topics[number]) for number in np.unique(numbers).tolist()}
    different = dict.fromkeys(names.values())
    if len(different) == 1:
        return [(name, rows) for name in different]
    return [
        (name, rows[np.isin(numbers, [n for n, other in names.items() if other == name])])
        for name in different
    ]


def bodies_of(batch: MessageBatch, rows: Int64s) -> list[bytes]:
    """Return the bodies of ascending rows, at least one."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first == len(rows) - 1:
        return bodies_between(batch, first, last + 1)
    begin, end = int(batch.offsets[first]), int(batch.offsets[last + 1])
    begins, ends = (batch.offsets[rows] - begin).tolist(), (batch.offsets[rows + 1] - begin).tolist()
    joined = bytes(batch.bodies[begin:end])
    return [joined[a:b] for a, b in zip(begins, ends, strict=True)]
