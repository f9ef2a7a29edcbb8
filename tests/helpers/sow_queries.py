"""A state of the world without a log, queries of its records, and an oracle of their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest

from tests.helpers.engine_parts import make_filter_context
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.batch.format import I8
from tickertape.engine.matching.content_filter import ContentFilter
from tickertape.engine.runtime.clock import EngineClock
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sessions.session import Subscriber
from tickertape.engine.sow.query.column_memory import ColumnMemory
from tickertape.engine.sow.query.few_records import FewRecords
from tickertape.engine.sow.query.field_columns import FieldColumns
from tickertape.engine.sow.query.order import RecordSorter, SortOrder
from tickertape.engine.sow.query.query import QuerySource, StateQuery
from tickertape.engine.sow.query.record_copy import WantedKeys
from tickertape.engine.sow.query.record_filter import RecordFilter, RecordKeyFilter
from tickertape.engine.sow.query.record_indexes import RecordIndexes
from tickertape.engine.sow.query.record_topics import RecordTopics
from tickertape.engine.sow.query.result import ResultFrame, ResultFrames
from tickertape.engine.sow.query.runs import KeyRuns, PositionRuns
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind
from tickertape.engine.sow.state.fold import DeleteRow, Source, StateFold
from tickertape.engine.sow.state.record_key_index import RecordKeyIndex

encode_key = msgspec.msgpack.Encoder().encode
SUBSCRIBER = Subscriber("ann", "desk", "1.0")


class Answer(NamedTuple):
    """Result of a query."""

    batches: list[MessageBatch]
    marks: list[tuple[int, int, int]]
    """Publisher, sequence and order stamp of each record."""
    matches: int
    topic_matches: int

    @property
    def bodies(self) -> list[bytes]:
        return [body for batch in self.batches for body in batch.bodies_list()]

    @property
    def topics(self) -> list[str]:
        return [batch.topic(at) for batch in self.batches for at in range(batch.count)]

    @property
    def labels(self) -> list[str | None]:
        return [batch.correlation_id(at) for batch in self.batches for at in range(batch.count)]

    @property
    def keys(self) -> list[str | None]:
        return [batch.key(at) for batch in self.batches for at in range(batch.count)]


class Terms(NamedTuple):
    """The records of a query, and the part of its result."""

    source: QuerySource
    top_n: int | None = None
    skip_n: int = 0


class QueryWorld:
    """The state of one SOW topic. Publishes and deletes are applied at once."""

    def __init__(self, definition: SowDefinition | None = None, **types: str) -> None:
        self.definition = definition or SowDefinition("orders", key=("/id",))
        self.filter_context = make_filter_context(types)
        self.topics = RecordTopics(self.definition, self.filter_context)
        index = self.definition.index
        self.indexes = RecordIndexes(index, self.topics) if index else None
        self.record_keys = RecordKeyIndex(self.topics, b"s" * 16)
        self.fold = StateFold(b"s" * 16, index=self.indexes, record_keys=self.record_keys)
        self.clock = EngineClock()
        self.column_memory = ColumnMemory(self.clock)
        self.columns = FieldColumns(self.fold, self.topics, self.column_memory)
        self.position = 0
        self.stamp = 1_000_000
        self.sequences: dict[int, int] = {}

    def publish(
        self,
        messages: Sequence[tuple[Any, bytes]],
        publisher: int = 7,
        topics: Sequence[str] | None = None,
        labels: Sequence[str] = (),
    ) -> None:
        """Commit bodies with the values of their keys. `topics` are for a SOW over a pattern. `labels` are
        correlation ids, empty for none."""
        builder = BatchBuilder()
        keys = []
        for at, (key, body) in enumerate(messages):
            topic = topics[at] if topics else self.definition.name
            builder.add(topic, body, correlation_id=labels[at] if labels else "")
            keys.append(encode_key([topic, key] if self.topics.over_pattern else key))
        first = self.sequences.get(publisher, 0) + 1
        self.sequences[publisher] = first + len(messages) - 1
        self.stamp += 1
        batch = builder.build(publisher, first_sequence=first, timestamp=self.stamp)
        start, self.position = self.position, self.position + len(messages)
        self.fold.publish(keys, Source(batch, start, self.position), np.arange(len(messages), dtype=I8))

    def delete(
        self, keys: Sequence[bytes], publisher: int = 7, kind: DeleteKind = DeleteKind.DELETED
    ) -> None:
        """Commit a delete or the expiry of records by canonical keys."""
        builder = DeleteBuilder(self.definition.name, self.definition.key_fingerprint(), kind)
        sequence = self.sequences[publisher] = self.sequences.get(publisher, 0) + 1
        self.stamp += 1
        for key in sorted(set(keys)):
            slot = self.fold.keys.find([key])
            if slot[0] < 0:
                continue
            rows = self.fold.records.rows(slot)
            builder.add(
                [key],
                self.fold.records.publishers.ids(rows.publishers),
                rows.sequences,
                rows.order_stamps,
            )
        if builder.count:
            record = builder.build()
            row = DeleteRow(record, publisher, sequence, self.stamp, self.position)
            self.fold.delete(row, 0, record.count)
        self.position += 1

    def content(self, filter: str | None = None, select: str | None = None) -> ContentFilter:
        types = [self.filter_context.type_of(self.definition.name)]
        return ContentFilter(filter, select, types, self.filter_context, SUBSCRIBER)

    def terms(
        self,
        filter: str | None = None,
        order_by: str = "",
        *,
        keys: Sequence[bytes] | None = None,
        names: Sequence[str] = (),
        only: Sequence[str] | None = None,
        top_n: int | None = None,
        skip_n: int = 0,
        columns: bool = True,
    ) -> Terms:
        """Return the terms of a query. `columns`: whether it may use columns."""
        records = self.fold.records
        content, slots, search = None, None, None
        if filter is not None or only is not None:
            chosen = None if only is None else frozenset(only)
            content = RecordFilter(self.content(filter), self.topics, records.publishers, chosen)
            if self.indexes is not None and keys is None:
                slots = self.indexes.candidates(self.content(filter), records.record_count)
            if slots is None and keys is None and columns:
                search = self.columns.search(self.content(filter))
        needs = ResultFrames.needs_keys(self.topics) or (content is not None and content.needs_keys)
        passing: RecordFilter | RecordKeyFilter | None = content
        if names:
            passing, needs = RecordKeyFilter(self.topics, frozenset(names), content), True
            slots = self.record_keys.candidates(names)
        order = RecordSorter(SortOrder.parse(order_by), self.topics, records.publishers) if order_by else None
        wanted = None if keys is None else WantedKeys(keys)
        return Terms(QuerySource(self.fold, passing, wanted, needs, order, slots, search), top_n, skip_n)

    def start(self, terms: Terms) -> StateQuery:
        return StateQuery([terms.source], self.position, terms.top_n, terms.skip_n)

    def answer(
        self, query: StateQuery | FewRecords, select: str | None = None, batch_size: int = 0
    ) -> Answer:
        """Execute the rest of a query, and close it."""
        while not query.over:
            query.step()
        content = None if select is None else self.content(select=select)
        frames = ResultFrames(query, [self.topics], content, batch_size)
        found: list[ResultFrame] = [*iter(frames.next, None)]
        marks = np.frombuffer(b"".join(frame.marks for frame in found), "<i8").reshape(-1, 3).tolist()
        assert sum(frame.batch.count for frame in found) == len(marks)
        query.close()
        assert query.nbytes < 20_000
        return Answer(
            [frame.batch for frame in found], list(map(tuple, marks)), query.matches, query.topic_matches
        )

    def query(self, *args: Any, select: str | None = None, batch_size: int = 0, **terms: Any) -> Answer:
        """Execute a query with the terms of `terms`."""
        return self.answer(self.start(self.terms(*args, **terms)), select, batch_size)


class Place(NamedTuple):
    """Place of a value in the ascending order: NULL, number, NaN or text, and its value."""

    kind: int
    number: Any = 0
    text: bytes = b""


def place_of(value: Any, *, as_text: bool = False) -> Place:
    """Return the place of a decoded value."""
    if isinstance(value, list):
        value = value[0] if value and not isinstance(value[0], list) else None
    if value is None or isinstance(value, dict) or value in ("", b""):
        return Place(0)
    if isinstance(value, str):
        return Place(3, text=value.encode())
    if isinstance(value, bytes):
        return Place(3, text=value)
    if as_text:
        return Place(3, text=_text_of(value))
    if value != value:
        return Place(2)
    return Place(1, value if isinstance(value, float) and abs(value) == float("inf") else Fraction(value))


def _text_of(value: int | float) -> bytes:
    if value != value:
        return b"NaN"
    if value in (float("inf"), float("-inf")):
        return b"Infinity" if value > 0 else b"-Infinity"
    if value == 0:
        return b"0"
    if isinstance(value, int) and -(2**63) <= value < 2**64:
        return str(int(value)).encode()
    return repr(float(value)).removesuffix(".0").encode()


def sorted_by(
    documents: Sequence[Any], fields: Sequence[tuple[str, bool, bool]], ranks: Sequence[Any]
) -> list[int]:
    """Return the indices of documents in the order of fields: name, descending, as text. Ties by rank."""
    order = sorted(range(len(documents)), key=lambda at: ranks[at])
    for name, descending, as_text in reversed(fields):
        key = partial(_place_in, documents, name, as_text)
        order.sort(key=key, reverse=descending)
    return order


def _place_in(documents: Sequence[Any], name: str, as_text: bool, at: int) -> Place:
    document = documents[at]
    return place_of(document.get(name) if isinstance(document, dict) else None, as_text=as_text)


def stepped(query: StateQuery) -> Iterator[int]:
    """Execute a query, and yield the number of each step."""
    number = 0
    while not query.over:
        query.step()
        number += 1
        yield number


def count_sorted_rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the number of rows of each sort of runs."""
    counts: list[int] = []

    def counted(kind: type[PositionRuns | KeyRuns]) -> None:
        joined = kind._joined

        def count(runs: Any, parts: list[Any]) -> Any:
            counts.append(sum(map(len, parts)))
            return joined(runs, parts)

        monkeypatch.setattr(kind, "_joined", count)

    counted(PositionRuns)
    counted(KeyRuns)
    return counts
