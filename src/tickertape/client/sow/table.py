"""Table state: the records of a table, applied from the result of a query and the messages after it.

Invariants:
- A complete result replaces all records in one step. Until then, the earlier records remain.
- The changed keys are keys of the records at the last `take_changed` and of the records now, so their number
  is limited as well.
- A batch is kept only while at least half of its messages and of its bodies are records of the table.
"""

from __future__ import annotations

import re
from typing import Final

import numpy as np

from tickertape.base.errors import BadTopic, LimitReached, TickertapeError
from tickertape.base.names import is_pattern
from tickertape.batch.delivery_context import SowKeys
from tickertape.batch.derive import select
from tickertape.batch.format import I8
from tickertape.batch.message_batch import Message, MessageBatch, sow_key_of
from tickertape.client.sow.record_keys import RecordKeys

TableKey = str | tuple[str, str]
"""Key of a record: its `sow_key`. Of a table over a pattern: topic and `sow_key`."""

_APPLIED: Final = frozenset({"sow", "publish"})
"""Commands of batches whose messages become records. Others mark the start and the end of a result."""


class TableRecords:
    """Records by key, and the batches that they keep in memory.

    `over_topics`: whether keys include the topic.
    """

    def __init__(self, *, over_topics: bool) -> None:
        self.by_key: dict[TableKey, Message] = {}
        self._over_topics = over_topics
        self._kept: dict[MessageBatch, tuple[int, int]] = {}
        """Number of records of each batch, and the bytes of their bodies."""

    def key(self, batch: MessageBatch, row: int) -> TableKey | None:
        """Return the key of a message, or None if it cannot be a record."""
        key = sow_key_of(batch, row)
        return (batch.topic(row), key) if key is not None and self._over_topics else key

    def put(self, batch: MessageBatch, rows: dict[TableKey, Message]) -> None:
        """Add or replace the records `rows`, which are messages of `batch`."""
        by_key = self.by_key
        replaced = [old for key in rows if (old := by_key.get(key)) is not None]
        by_key.update(rows)
        if rows:
            self._kept[batch] = len(rows), sum(len(message.data) for message in rows.values())
        for old in replaced:
            self._release(old)
        for one in dict.fromkeys([batch, *(old.batch for old in replaced)]):
            self._compact(one)

    @property
    def kept_batches(self) -> int:
        """Number of batches in memory."""
        return len(self._kept)

    def _release(self, old: Message) -> None:
        count, size = self._kept.pop(old.batch)
        if count > 1:
            self._kept[old.batch] = count - 1, size - len(old.data)

    def _compact(self, batch: MessageBatch) -> None:
        """Replace a batch by a smaller one if less than half of it is needed."""
        count, size = self._kept.get(batch, (0, 0))
        if not count or count == batch.count or (2 * count >= batch.count and 2 * size >= batch.body_bytes):
            return
        found: dict[int, TableKey] = {}
        for row in range(batch.count):
            key = self.key(batch, row)
            message = None if key is None else self.by_key.get(key)
            if key is not None and message is not None and message.batch is batch and message.index == row:
                found[row] = key
        del self._kept[batch]
        # A selection may reference the bodies of the whole batch.
        rest = MessageBatch.parse(select(batch, np.array(list(found), I8)).encode())
        rest.context = batch.context
        self._kept[rest] = count, size
        for index, key in enumerate(found.values()):
            self.by_key[key] = Message(self.by_key[key].data, rest, index)


class TableState:
    """State of one table of at most `max_records` records of `topic`."""

    def __init__(self, topic: str, max_records: int) -> None:
        self._topic = topic
        self._max_records = max_records
        self._records = self._empty()
        self._next: TableRecords | None = None
        """Records of the result that is not complete yet."""
        self._next_changed: set[TableKey] = set()
        """Keys of `_next` whose records are new or differ."""
        self._changed: dict[TableKey, bool] = {}
        """Changed keys, and whether each had a record at the last `take_changed`."""
        self._checked_keys: SowKeys | None = None
        """Keys of the last checked query."""
        self.as_of: str | None = None
        """Bookmark of the last message in the log before the last complete result. None without a result."""
        self.results = 0
        """Number of results that have started."""
        self.restarts = 0
        """Number of repeated results that have started, without those of a refresh."""
        self.error: TickertapeError | None = None
        """Error that ended the table, or None."""
        self.closed = False
        """Whether the application closed the table."""

    # -- reads ------------------------------------------------------------------------------------------

    @property
    def by_key(self) -> dict[TableKey, Message]:
        """The records. The caller must not change them."""
        return self._records.by_key

    @property
    def complete(self) -> bool:
        """Whether the last result is complete."""
        return self.results > 0 and self._next is None

    @property
    def over(self) -> bool:
        """Whether the table receives nothing more."""
        return self.closed or self.error is not None

    @property
    def is_changed(self) -> bool:
        """Whether `take_changed` would return a key."""
        return bool(self._changed)

    @property
    def kept_batches(self) -> int:
        """Number of batches in memory."""
        return self._records.kept_batches + (0 if self._next is None else self._next.kept_batches)

    def take_changed(self) -> set[TableKey]:
        """Return the keys whose records changed since the last call."""
        changed, self._changed = set(self._changed), {}
        return changed

    # -- input of the subscription ----------------------------------------------------------------------

    def begin(self, *, restarted: bool) -> None:
        """Start a result. `restarted`: a new connection repeats the query."""
        self.results += 1
        self.restarts += restarted
        self._next, self._next_changed = self._empty(), set()

    def take(self, batch: MessageBatch) -> None:
        """Apply a batch of the result, or of the messages after it.

        Raises `LimitReached` and `BadTopic`. Then nothing of the batch is applied.
        """
        context = batch.context
        if context is None or context.command not in _APPLIED:
            return
        if context.sow_keys is not self._checked_keys:
            self._check_keys(context.sow_keys)
        rows: dict[TableKey, Message] = {}
        for message in batch:
            key = self._records.key(batch, message.index)
            if key is not None:
                rows[key] = message
        target = self._records if self._next is None else self._next
        self._check_room(target, rows)
        before = self._records.by_key
        if self._next is None:
            for key in rows:
                self._changed.setdefault(key, key in before)
        else:
            self._next_changed.update(key for key in rows if not _is_same(before.get(key), rows[key]))
        target.put(batch, rows)

    def end(self, as_of: str, records: int) -> None:
        """Replace all records by the `records` of the complete result.

        `as_of`: bookmark of the last message in the log before the result.
        """
        if self._next is None or not records:  # a result without SOW topics has no start
            self._next, self._next_changed = self._empty(), set()
        before, after = self._records.by_key, self._next.by_key
        for key in self._next_changed:
            self._changed.setdefault(key, key in before)
        for key in before.keys() - after.keys():
            self._note_removed(key)
        self._records, self._next, self._next_changed = self._next, None, set()
        self.as_of = as_of

    def fail(self, error: TickertapeError) -> None:
        """End the table with an error, unless it is over."""
        if not self.over:
            self.error = error
            self._stop()

    def close(self) -> None:
        """End the table. The records remain."""
        self.closed = True
        self._stop()

    # -- internals --------------------------------------------------------------------------------------

    def _stop(self) -> None:
        self._next, self._next_changed = None, set()

    def _empty(self) -> TableRecords:
        return TableRecords(over_topics=is_pattern(self._topic))

    def _note_removed(self, key: TableKey) -> None:
        if self._changed.get(key) is False:
            del self._changed[key]  # added and removed since the last call
        else:
            self._changed[key] = True

    def _check_room(self, target: TableRecords, rows: dict[TableKey, Message]) -> None:
        by_key = target.by_key
        new = sum(key not in by_key for key in rows)
        if len(by_key) + new > self._max_records:
            raise LimitReached(
                f"Cannot add records to the table of {self._topic!r}: it would have more than max_records "
                f"({self._max_records:,}). Pass a filter, or a larger max_records."
            )

    def _check_keys(self, keys: SowKeys | None) -> None:
        """Refuse explicit keys of several topics without the topic in the key. Raises `BadTopic`."""
        self._checked_keys = keys
        for group in keys.topics if isinstance(keys, RecordKeys) else ():
            if group.pattern and not group.fields and group.topic == self._topic:
                raise BadTopic(
                    f"Cannot make a table of {self._topic!r}: its SOW has records of several topics, and "
                    "keys are unique only within each topic. Pass the pattern "
                    f"'^{re.escape(self._topic)}$', so that the keys of the table include the topic."
                )


def _is_same(old: Message | None, new: Message) -> bool:
    """Return whether two records are the same message."""
    if old is None:
        return False
    before, after, i, j = old.batch, new.batch, old.index, new.index
    return (
        before.sequence(i) == after.sequence(j)
        and before.publisher(i) == after.publisher(j)
        and old.data == new.data
    )
