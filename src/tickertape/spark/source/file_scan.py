"""Filter commits when a task reads journal files directly, as the server would.

It selects messages by position, topic and filter, leaves out control records, and looks at bodies only for a
filter.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

import numpy as np

from tickertape.base.errors import BadFilter, BadOption
from tickertape.base.names import is_pattern
from tickertape.batch import KIND_MESSAGE, MessageBatch, select
from tickertape.batch.format import Bools, Int64s
from tickertape.filter import Filter, FilterInputs, Pattern, compile_filter, compile_topic_pattern
from tickertape.journal.offline.range_reader import StoredCommit
from tickertape.payload import message_type
from tickertape.spark.common.column_block import ColumnBlock, piece_of_batch, plain_piece

_DEFAULT_TYPE: Final = "json"
_OF_SUBSCRIBER: Final = {"user": "USER", "client_name": "CLIENT_NAME", "client_version": "CLIENT_VERSION"}
_NOTHING: Final = "FALSE"


class FileScan:
    """Of one part. `types` maps a topic to its message type where that is not JSON."""

    def __init__(
        self, topic: str, start: int, end: int, filter: str | None, types: Mapping[str, str]
    ) -> None:
        self._start, self._end = start, end
        self._pattern: Pattern | None = compile_topic_pattern(topic) if is_pattern(topic) else None
        self._fitting: dict[str, bool] = {} if self._pattern is not None else {topic: True}
        """Which topics are known to be wanted or not."""
        self._filter, self._types = filter, types
        self._filters: dict[str, Filter] = {}
        """By message type."""

    def piece(self, commit: StoredCommit) -> ColumnBlock | None:
        """What of a commit is handed on; None when nothing is."""
        first, count = commit.header.first_position, commit.header.messages
        if self._filter is None and self._start <= first and first + count <= self._end:
            piece = plain_piece(commit.body, first)
            if piece is not None and piece.messages == count:
                return piece if self._fits(piece.topics[0]) else None
        batch = commit.batch()
        own = [self._fits(topic) for topic in batch.topics]
        if not any(own):
            return None
        wanted = np.zeros(count, np.bool_)
        wanted[max(self._start - first, 0) : min(self._end - first, count)] = True
        if batch.topic_index is not None:
            wanted &= np.array(own)[batch.topic_index]
        if batch.kinds is not None:
            wanted &= batch.kinds == KIND_MESSAGE
        if self._filter is not None:
            self._pass(self._filter, batch, wanted)
        if not wanted.any():
            return None
        return piece_of_batch(select(batch, wanted), wanted.nonzero()[0] + first)

    def _fits(self, topic: str) -> bool:
        known = self._fitting.get(topic)
        if known is None:
            known = self._fitting[topic] = self._pattern is not None and self._pattern.search(topic)
        return known

    def _pass(self, text: str, batch: MessageBatch, wanted: Bools) -> None:
        """Take out of `wanted` what does not pass the filter."""
        kinds = [self._types.get(topic, _DEFAULT_TYPE) for topic in batch.topics]
        for kind in dict.fromkeys(kinds):
            own = wanted
            if len(set(kinds)) > 1 and batch.topic_index is not None:
                own = wanted & np.array([other == kind for other in kinds])[batch.topic_index]
            which = own.nonzero()[0]
            if not len(which):
                continue
            compiled = self._filters.get(kind)
            if compiled is None:
                compiled = self._filters[kind] = _compiled(text, kind)
            bodies = batch.bodies_between(int(which[0]), int(which[-1]) + 1)
            if len(bodies) > len(which):
                bodies = [bodies[i] for i in (which - which[0]).tolist()]
            passing = compiled.select(bodies, _context(compiled.needs, batch, which))
            wanted[np.delete(which, passing)] = False


def _compiled(text: str, kind: str) -> Filter:
    """As the server does: of a type that cannot have the fields nothing passes. Raises `BadOption` for a
    filter that asks who reads: nobody is known to, where files are read."""
    try:
        compiled = compile_filter(text, message_type(kind))
    except BadFilter:
        compiled = compile_filter(_NOTHING, message_type(kind))
    asked = sorted(name for field, name in _OF_SUBSCRIBER.items() if field in compiled.needs)
    if asked:
        raise BadOption(
            f"option filter asks for {', '.join(asked)}, which only a server knows; leave option journal out"
        )
    return compiled


def _context(needs: frozenset[str], batch: MessageBatch, which: Int64s) -> FilterInputs | None:
    if not needs:
        return None
    context, rows = FilterInputs(now=time.time()), which.tolist()
    if "topics" in needs:
        context.topics = [batch.topic(i) for i in rows]
    if "bookmarks" in needs:
        context.bookmarks = [batch.bookmark(i) for i in rows]
    if "correlation_ids" in needs:
        context.correlation_ids = [batch.correlation_id(i) for i in rows]
    if "sow_keys" in needs:
        context.sow_keys = [batch.key(i) for i in rows]
    return context
