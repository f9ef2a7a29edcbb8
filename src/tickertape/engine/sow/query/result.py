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
from tickertape.engine.sow.query.query import FoundRecords, StateQuery
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.wire.sow_command import encode_marks

_PUBLISHER: Final = 0
"""Publisher of the run. It has no meaning, because the marks have the publishers."""


class ResultFrame(NamedTuple):
    """Some records of a result."""

    batch: MessageBatch
    marks: bytes
    """24 bytes for each record: u64 publisher, u64 sequence, i64 order stamp."""


class ResultFrames:
    """Frames of a finished query, in its order.

    `content` has the select list, if any. A frame has `batch_size` records, or with 0 as many as fit
    `result_frame_bytes_max`. Frames with `batch_size` do not exceed this size either, except for one record.
    """

    def __init__(
        self,
        query: StateQuery,
        topics: RecordTopics,
        content: ContentFilter | None = None,
        batch_size: int = 0,
    ) -> None:
        self._query = query
        self._topics = topics
        self._content = content if content is not None and content.select is not None else None
        self._records_max = min(batch_size or sow_records_per_frame_max, sow_records_per_frame_max)
        self._waiting: FoundRecords | None = None
        """Records that were taken from the query, and did not fit the last frame."""
        self.returned = 0
        """Records in all frames."""

    @staticmethod
    def needs_keys(topics: RecordTopics) -> bool:
        """Return whether frames need the canonical keys of records."""
        return topics.over_pattern or topics.explicit

    def next(self) -> ResultFrame | None:
        """Return the next frame, or None at the end of the result. Bounded by the size of a frame."""
        found = self._take()
        if found is None:
            return None
        rows, keys = found
        bodies, offsets = self._bodies(found)
        count = len(rows.positions)
        crc = run_crc(lengths_of(offsets).tobytes(), bodies)
        names, columns = self._columns(keys)
        batch = assemble(
            runs=RUN.pack(_PUBLISHER, 0, 0, count, crc, RUN_BY_SERVER, 0),
            offsets=offsets.tobytes(),
            bodies=bodies,
            topics=names,
            optional=columns,
        )
        self.returned += count
        publishers = self._query.publisher_ids(rows.publishers)
        return ResultFrame(batch, encode_marks(publishers, rows.sequences, rows.order_stamps))

    def _take(self) -> FoundRecords | None:
        """Return the records of the next frame."""
        found = self._waiting
        self._waiting = None
        while found is None or (
            len(found.rows.positions) < self._records_max and _size(found)[-1] < result_frame_bytes_max
        ):
            have = 0 if found is None else len(found.rows.positions)
            more = self._query.take(min(self._records_max - have, query_piece_rows_max))
            if not len(more.rows.positions):
                break
            found = more if found is None else found.joined(more)
        if found is None:
            return None
        fitting = int(_size(found).searchsorted(result_frame_bytes_max, "right"))
        end = max(1, min(fitting, self._records_max))
        if end < len(found.rows.positions):
            self._waiting = found.part(end, None)
            found = found.part(0, end)
        return found

    def _bodies(self, found: FoundRecords) -> tuple[Buffer, Int32s]:
        if self._content is None:
            joined, offsets = self._query.gather(found.rows.views)
            return joined, offsets.astype(I4)
        bodies = self._query.bodies(found.rows.views)
        for type_name, some in self._topics.by_type(found.keys):
            if some is None:
                bodies = self._content.project_bodies(bodies, type_name)
                continue
            projected = self._content.project_bodies([bodies[at] for at in some], type_name)
            for at, body in zip(some, projected, strict=True):
                bodies[at] = body
        lengths = np.fromiter(map(len, bodies), I8, len(bodies))
        check_body_bytes(int(lengths.sum()))
        return b"".join(bodies), offsets_from(lengths)

    def _columns(self, keys: Sequence[bytes]) -> tuple[tuple[str, ...], Columns | None]:
        """Return the topics of a frame and its further columns, if any."""
        topics = self._topics
        names: tuple[str, ...] = (topics.name,)
        index: Int32s | None = None
        labels: Labels | None = None
        if topics.over_pattern:
            of_records = topics.topics(keys)
            numbers = {name: number for number, name in enumerate(dict.fromkeys(of_records))}
            names = tuple(numbers)
            if len(names) > 1:
                index = np.fromiter(map(numbers.__getitem__, of_records), I4, len(of_records))
        if topics.explicit:
            texts = topics.explicit_keys(keys)
            labels = Labels(offsets_from(np.fromiter(map(len, texts), I4, len(texts))), b"".join(texts))
        if index is None and labels is None:
            return names, None
        return names, Columns(topic_index=index, keys=labels)


def _size(found: FoundRecords) -> Int64s:
    """Return the size of the first n records, with their keys, for each n from 1 on."""
    sizes = lengths_in(found.rows.views)
    if found.keys:
        sizes = sizes + np.fromiter(map(len, found.keys), I8, len(found.keys))
    ends: Int64s = sizes.cumsum()
    return ends
