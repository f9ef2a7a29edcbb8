"""Result frames: message batches of the records of a result, each of one run by the server.

Publisher, sequence and order stamp of each record are in the marks of the frame, because one run for each
record would cost more than the record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.base.limits import sow_records_per_frame_max
from tickertape.batch import MessageBatch
from tickertape.batch.encode import assemble, check_body_bytes
from tickertape.batch.format import (
    I4,
    I8,
    RUN,
    RUN_BY_SERVER,
    Columns,
    Int32s,
    Int64s,
    Labels,
    lengths_of,
    offsets_from,
    run_crc,
)
from tickertape.engine.limits import query_piece_rows_max, result_frame_bytes_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.sow.query.few_records import FewRecords
from tickertape.engine.sow.query.query import StateQuery
from tickertape.engine.sow.query.record_copy import FoundRecords
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.state.labels import encoded, joined_labels, label_lengths
from tickertape.engine.sow.state.records import RecordRows
from tickertape.wire.sow_command import encode_marks

_PUBLISHER: Final = 0
"""Publisher of the run. It has no meaning, because the marks have the publishers."""


class ResultFrame(NamedTuple):
    """Some records of a result."""

    batch: MessageBatch
    marks: bytes
    """24 bytes for each record: u64 publisher, u64 sequence, i64 order stamp."""
    queue: str = ""
    """Name of the queue of the messages. Empty for records of SOW topics."""


class ResultFrames:
    """Frames of a finished query, in its order.

    `topics` are those of each source of the query. `content` has the select list, if any. A frame has
    `batch_size` records, or with 0 as many as fit `result_frame_bytes_max`. Frames with `batch_size` do not
    exceed this size either, except for one record.

    `queues` are the names of the queues of the sources, "" for a SOW topic. Empty: no source is a queue. A
    frame has messages of one queue only, or records of SOW topics only.
    """

    def __init__(
        self,
        query: StateQuery | FewRecords,
        topics: Sequence[RecordTopics],
        content: ContentFilter | None = None,
        batch_size: int = 0,
        queues: Sequence[str] = (),
    ) -> None:
        self._query = query
        self._topics = topics
        self._content = content if content is not None and content.select is not None else None
        self._records_max = min(batch_size or sow_records_per_frame_max, sow_records_per_frame_max)
        self._queues = queues
        self._kinds = (
            np.array([at if queue else -1 for at, queue in enumerate(queues)], I8) if queues else None
        )
        """Number of each source that is a queue, -1 for others. A frame has records of one kind."""
        self._waiting: FoundRecords | None = None
        """Records that were taken from the query, and did not fit the last frame."""

    @staticmethod
    def needs_keys(topics: RecordTopics) -> bool:
        """Return whether frames need the canonical keys of records."""
        return topics.over_pattern or topics.explicit

    @property
    def over(self) -> bool:
        """Whether `next` is known to return None."""
        return self._waiting is None and self._query.exhausted

    def next(self) -> ResultFrame | None:
        """Return the next frame, or None at the end of the result. Bounded by the size of a frame."""
        found = self._take()
        if found is None:
            return None
        bodies, offsets = self._bodies(found)
        count = len(found.rows.positions)
        crc = run_crc(lengths_of(offsets).tobytes(), bodies)
        names, columns = self._columns(found)
        batch = assemble(
            runs=RUN.pack(_PUBLISHER, 0, 0, count, crc, RUN_BY_SERVER, 0),
            offsets=offsets.tobytes(),
            bodies=bodies,
            topics=names,
            optional=columns,
        )
        publishers = self._query.publisher_ids(found)
        marks = encode_marks(publishers, found.rows.sequences, found.rows.order_stamps)
        return ResultFrame(batch, marks, self._queue_of(found) if self._queues else "")

    def _take(self) -> FoundRecords | None:
        """Return the records of the next frame."""
        parts: list[FoundRecords] = []
        have, size = 0, 0
        found, self._waiting = self._waiting, None
        while found is not None or (have < self._records_max and size < result_frame_bytes_max):
            if found is None:
                found = self._query.take(min(self._records_max - have, query_piece_rows_max))
            count = len(found.rows.positions)
            if not count:
                break
            ends = _size(found)
            fitting = int(ends.searchsorted(result_frame_bytes_max - size, "right"))
            end = min(max(fitting, not parts), self._records_max - have)
            if self._kinds is not None:
                end = min(end, self._of_one_kind(parts, found))
            if end < count:
                self._waiting = found.part(end, None)
                found = found.part(0, end)
            if end:
                parts.append(found)
                have, size = have + end, size + int(ends[end - 1])
            if end < count:
                break
            found = None
        return _joined(parts) if parts else None

    def _of_one_kind(self, parts: list[FoundRecords], found: FoundRecords) -> int:
        """Return how many of some records may be in the frame of `parts`."""
        first = (parts[0] if parts else found).sources
        if self._kinds is None or found.sources is None or first is None:
            return len(found.rows.positions)  # of the only source
        others = self._kinds[found.sources] != self._kinds[first[0]]
        return int(others.argmax()) if others.any() else len(others)

    def _queue_of(self, found: FoundRecords) -> str:
        """Return the queue of the records of a frame."""
        return self._queues[0 if found.sources is None else int(found.sources[0])]

    def _bodies(self, found: FoundRecords) -> tuple[Buffer, Int32s]:
        sources = self._query.by_source(found)
        if self._content is None and len(sources) == 1:
            joined, offsets = self._query.gather(sources[0][0], found.rows.views)
            return joined, offsets.astype(I4)
        bodies = [b""] * len(found.rows.positions)
        for source, some in sources:
            mine = found if some is None else found.some(some)
            for at, body in zip(_indices(some, bodies), self._bodies_of(source, mine), strict=True):
                bodies[at] = body
        lengths = np.fromiter(map(len, bodies), I8, len(bodies))
        check_body_bytes(int(lengths.sum()))
        return b"".join(bodies), offsets_from(lengths)

    def _bodies_of(self, source: int, found: FoundRecords) -> list[bytes]:
        """Return the bodies of records of one source, with the selected fields."""
        bodies = self._query.bodies(source, found.rows.views)
        if self._content is None:
            return bodies
        for type_name, some in self._topics[source].by_type(found.keys):
            if some is None:
                return self._content.project_bodies(bodies, type_name)
            projected = self._content.project_bodies([bodies[at] for at in some], type_name)
            for at, body in zip(some, projected, strict=True):
                bodies[at] = body
        return bodies

    def _columns(self, found: FoundRecords) -> tuple[tuple[str, ...], Columns | None]:
        """Return the topics of a frame and its further columns, if any."""
        sources = self._query.by_source(found)
        if len(sources) == 1:
            topics, texts = self._labels_of(sources[0][0], found.keys)
        else:
            count = len(found.rows.positions)
            topics, texts = [""] * count, [b""] * count
            for source, some in sources:
                assert some is not None
                mine, keys = self._labels_of(source, found.some(some).keys)
                for number, at in enumerate(some.tolist()):
                    topics[at] = mine[number if len(mine) > 1 else 0]
                    texts[at] = keys[number] if keys else b""
        names = tuple(dict.fromkeys(topics))
        index: Int32s | None = None
        labels: Labels | None = None
        if len(names) > 1:
            numbers = {name: number for number, name in enumerate(names)}
            index = np.fromiter(map(numbers.__getitem__, topics), I4, len(topics))
        if any(texts):
            labels = Labels(offsets_from(np.fromiter(map(len, texts), I4, len(texts))), b"".join(texts))
        correlation_ids = None if found.rows.labels is None else encoded(found.rows.labels)
        if index is None and labels is None and correlation_ids is None:
            return names, None
        return names, Columns(topic_index=index, keys=labels, correlation_ids=correlation_ids)

    def _labels_of(self, source: int, keys: Sequence[bytes]) -> tuple[list[str], list[bytes]]:
        """Return the topic of each record of one source, or its only topic, and the explicit keys, if any."""
        topics = self._topics[source]
        names = topics.topics(keys) if topics.over_pattern else [topics.name]
        return names, topics.explicit_keys(keys) if topics.explicit else []


def _indices(some: Int64s | None, items: Sequence[bytes]) -> Sequence[int]:
    return range(len(items)) if some is None else some.tolist()


def _joined(parts: list[FoundRecords]) -> FoundRecords:
    """Return the records of all parts."""
    if len(parts) == 1:
        return parts[0]
    columns = [
        None if column[0] is None else np.concatenate(column)
        for column in zip(*[part.rows[:-1] for part in parts], strict=True)
    ]
    sources = None if parts[0].sources is None else np.concatenate([part.sources for part in parts])
    counts = [len(part.rows.positions) for part in parts]
    labels = joined_labels([part.rows.labels for part in parts], counts)
    rows = RecordRows(*columns)._replace(labels=labels)  # type: ignore[arg-type]
    return FoundRecords(rows, [key for part in parts for key in part.keys], sources)


def _size(found: FoundRecords) -> Int64s:
    """Return the size of the first n records, with their keys and labels, for each n from 1 on."""
    sizes = lengths_in(found.rows.views)
    if found.rows.labels is not None:
        sizes = sizes + label_lengths(found.rows.labels)
    if found.keys:
        sizes = sizes + np.fromiter(map(len, found.keys), I8, len(found.keys))
    ends: Int64s = sizes.cumsum()
    return ends
