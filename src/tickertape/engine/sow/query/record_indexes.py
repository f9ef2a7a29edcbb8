"""Record indexes: the hash indexes of one SOW topic, and the records that may pass a filter.

Invariants:
- `candidates` has each record that passes the filter, so an index changes no result.
- An index follows each change of the records in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Final

import numpy as np

from tickertape.batch.format import I8, Int64s
from tickertape.engine.limits import query_index_buckets_max
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.state.hash_index import ANY_VALUE, Bucket, HashIndex, short, value_of
from tickertape.filter.index.columns import ColumnReading
from tickertape.payload import message_type
from tickertape.payload.paths import Path, parse_path

_NO_VALUES: Final[frozenset[Bucket]] = frozenset()


class RecordIndexes:
    """Hash indexes of `fields`, a list of paths for each index."""

    def __init__(self, fields: Sequence[Sequence[str]], topics: RecordTopics) -> None:
        self._topics = topics
        self._indexes = [
            (tuple(parse_path(path) for path in paths), HashIndex(len(paths))) for paths in fields
        ]
        self._paths = list(dict.fromkeys(path for paths, _ in self._indexes for path in paths))
        self._readings: dict[str, ColumnReading | None] = {}
        """By message type. None: the type cannot have the fields, so no filter on them matches."""

    @property
    def nbytes(self) -> int:
        """Approximate memory of all indexes."""
        return sum(index.nbytes for _, index in self._indexes)

    @property
    def row_bytes(self) -> int:
        """Memory of one more record at most."""
        return sum(index.row_bytes for _, index in self._indexes)

    def put(self, slots: Int64s, keys: Sequence[bytes], bodies: Sequence[bytes]) -> None:
        """Set the records of distinct slots, given by canonical keys and bodies."""
        if not len(slots):
            return
        for type_name, some in self._topics.by_type(keys):
            if some is None:
                self._put(slots.tolist(), bodies, type_name)
            else:
                self._put(slots[some].tolist(), [bodies[at] for at in some], type_name)

    def drop(self, slots: Int64s) -> None:
        """Remove the records of slots."""
        for _, index in self._indexes:
            index.drop(slots.tolist())

    def candidates(self, content: ContentFilter, most: int) -> Int64s | None:
        """Return the slots whose records may pass the filter, ascending.

        None without an index for it, or if they are more than `most`."""
        wanted: dict[Path, set[Bucket]] = {
            choice[0].path: {*map(short, choice[0].keys)}
            for choice in content.required().choices
            if len(choice) == 1
        }
        best: tuple[int, HashIndex, list[Bucket]] | None = None
        for paths, index in self._indexes:
            values = [wanted.get(path, _NO_VALUES) for path in paths]
            if not 0 < prod(map(len, values)) <= query_index_buckets_max:
                continue
            buckets = [*(values[0] if len(values) == 1 else product(*values)), ANY_VALUE]
            count = index.count(buckets)
            if count <= most and (best is None or count < best[0]):
                best = count, index, buckets
        if best is None:
            return None
        return np.array(best[1].slots(best[2]).to_array(), I8)

    def _put(self, slots: list[int], bodies: Sequence[bytes], type_name: str) -> None:
        reading = self._reading(type_name)
        if reading is None:
            for _, index in self._indexes:
                index.put(slots, [None] * len(slots))
            return
        columns = reading.read(bodies)
        if columns.readable is not None:
            unread = [slot for slot, good in zip(slots, columns.readable.tolist(), strict=True) if not good]
            slots = [slot for slot, good in zip(slots, columns.readable.tolist(), strict=True) if good]
            for _, index in self._indexes:
                index.put(unread, [ANY_VALUE] * len(unread))
        values = {path: [*map(value_of, columns.values(path))] for path in self._paths}
        for paths, index in self._indexes:
            index.put(slots, _buckets([values[path] for path in paths]))

    def _reading(self, type_name: str) -> ColumnReading | None:
        if type_name not in self._readings:
            self._readings[type_name] = ColumnReading.of(message_type(type_name), self._paths)
        return self._readings[type_name]


def _buckets(columns: list[list[Bucket]]) -> list[Bucket]:
    """Return the bucket of each row of values."""
    if len(columns) == 1:
        return columns[0]
    return [
        None if None in row else ANY_VALUE if ANY_VALUE in row else row for row in zip(*columns, strict=True)
    ]
