"""Part fold: folds one part of the log into the states of its SOW topics, in bounded pieces.

Invariants:
- Each row is applied once, in the order of the log.
- A piece has at most `rows_max` messages, or `delete_step_keys_max` keys of a delete.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from tickertape.base.errors import JournalCorrupt
from tickertape.batch import MessageBatch
from tickertape.batch.format import I8, KINDS, Int64s
from tickertape.engine.limits import delete_step_keys_max, fold_step_rows_max
from tickertape.engine.sow.accepted import AcceptedRows, TopicKeys
from tickertape.engine.sow.state.delete import decode
from tickertape.engine.sow.state.fold import DeleteRow, Source
from tickertape.engine.sow.topic import StateTopic
from tickertape.journal.reading.log_view import LogPart
from tickertape.wire.sow_command import SOW_TOPIC


class States(NamedTuple):
    """The SOW topics of a server."""

    of: Callable[[str], StateTopic | None]
    """Return the SOW topic with the records of a topic, or None."""
    named: Callable[[str], StateTopic | None]
    """Return the SOW topic with this name, or None."""


class _Delete(NamedTuple):
    topic: StateTopic
    row: DeleteRow


class PartFold:
    """The fold of one part, which has all messages of a commit. `rows_max`: messages of a piece."""

    def __init__(
        self, part: LogPart, states: States, accepted: AcceptedRows, rows_max: int = fold_step_rows_max
    ) -> None:
        batch = part.batch
        self._rows_max = rows_max
        self._batch = batch
        self._source = Source(batch, part.first_position, part.end_position)
        self._states = states
        self._accepted = accepted
        self._owners = [states.of(topic) for topic in batch.topics]
        self.topics = [state for state in dict.fromkeys(self._owners) if state is not None]
        """The SOW topics with messages in the part."""
        self._records = _record_rows(batch) if SOW_TOPIC in batch.topics else []
        """Indices of deletes and expiries that are not applied, in order."""
        self._delete: _Delete | None = None
        self._deleted = 0
        """Keys of the current delete that are applied."""
        self._low = 0
        """Index of the first row that is not applied."""

    @property
    def concerns(self) -> bool:
        """Whether the part has messages of SOW topics, deletes or expiries."""
        return bool(self.topics) or bool(self._records)

    @property
    def over(self) -> bool:
        """Whether the whole part is applied."""
        return self._low >= self._batch.count

    def step(self) -> None:
        """Apply one piece. Raises `JournalCorrupt` for an invalid delete or expiry."""
        if self._records and self._records[0] == self._low:
            self._step_delete()
            return
        low = self._low
        stop = self._records[0] if self._records else self._batch.count
        high = min(low + self._rows_max, stop)
        found: dict[StateTopic, list[TopicKeys]] = {}
        at = low
        while at < high:
            at = self._take(at, high, found)
        self._low = high
        for topic, parts in found.items():
            keys = _joined(topic, parts)
            topic.fold.publish(keys.keys, self._source, keys.rows)

    # -- messages ---------------------------------------------------------------------------------------

    def _take(self, at: int, high: int, found: dict[StateTopic, list[TopicKeys]]) -> int:
        """Find the keys of rows from `at` on: rows whose keys are kept, or all before the next such row."""
        first = self._source.first_position
        kept = self._accepted.at(first + at)
        if kept is None or kept.first >= first + high:
            self._read(at, high, found)
            return high
        begin = kept.first - first
        if begin > at:
            self._read(at, begin, found)
            return begin
        end = min(kept.end - first, high)
        for topic, rows, keys in kept.topics:
            lo, hi = (int(n) for n in np.searchsorted(rows, (at - begin, end - begin)))
            if hi > lo:
                whole = hi - lo == len(keys)
                mine = TopicKeys(topic, rows[lo:hi] + begin, keys if whole else keys[lo:hi])
                found.setdefault(topic, []).append(mine)
        return end

    def _read(self, low: int, high: int, found: dict[StateTopic, list[TopicKeys]]) -> None:
        """Read the keys of rows that the intake did not see: of transactions, and of earlier runs."""
        for topic in self.topics:
            rows = own_rows(self._batch, [owner is topic for owner in self._owners], low, high)
            if not len(rows):
                continue
            read = topic.read_keys(self._batch, rows)
            topic.fold.unkeyed += len(read.bad)
            if len(read.rows):
                found.setdefault(topic, []).append(TopicKeys(topic, read.rows, read.keys))

    # -- deletes ----------------------------------------------------------------------------------------

    def _step_delete(self) -> None:
        if self._delete is None:
            self._delete = self._decoded(self._low)
            self._deleted = 0
        if self._delete is not None:
            topic, row = self._delete
            if topic not in self.topics:
                self.topics.append(topic)
            high = min(self._deleted + delete_step_keys_max, row.record.count)
            if row.record.key_fingerprint == topic.key_fingerprint:
                topic.fold.delete(row, self._deleted, high)
            else:
                topic.fold.delete_messages(row, self._deleted, high)
            self._deleted = high
            if high < row.record.count:
                return
        self._delete = None
        self._records.pop(0)
        self._low += 1

    def _decoded(self, index: int) -> _Delete | None:
        """Return a delete, or None if its SOW topic is not configured."""
        batch, position = self._batch, self._source.first_position + index
        try:
            record = decode(batch.body(index))
        except JournalCorrupt as error:
            raise JournalCorrupt(
                f"Cannot read position {position}, which the state of the world needs: {error}. Run "
                "`tickertape journal verify`."
            ) from None
        topic = self._states.named(record.topic)
        if topic is None:
            return None
        stamp = batch.timestamp(index)
        if batch.order_stamps is not None:
            run = int(np.searchsorted(batch.run_starts, index, side="right")) - 1
            stamp = int(batch.order_stamps[run])
        row = DeleteRow(record, batch.publisher(index), batch.sequence(index), stamp, position)
        return _Delete(topic, row)


def own_rows(batch: MessageBatch, own: list[bool], low: int, high: int) -> Int64s:
    """Return the indices in `[low, high)` of messages on the topics `own`, without control records."""
    if batch.topic_index is None:
        chosen = np.full(high - low, own[0])
    else:
        chosen = np.array(own)[batch.topic_index[low:high]]
    if batch.columns & KINDS:
        assert batch.kinds is not None
        chosen &= batch.kinds[low:high] == 0
    found: Int64s = (chosen.nonzero()[0] + low).astype(I8)
    return found


def _record_rows(batch: MessageBatch) -> list[int]:
    """Return the indices of control records on the topic of deletes."""
    if batch.kinds is None:
        return []
    own = batch.kinds == 1
    if batch.topic_index is not None:
        own &= batch.topic_index == batch.topics.index(SOW_TOPIC)
    found: list[int] = own.nonzero()[0].tolist()
    return found


def _joined(topic: StateTopic, parts: list[TopicKeys]) -> TopicKeys:
    if len(parts) == 1:
        return parts[0]
    rows = np.concatenate([part.rows for part in parts])
    return TopicKeys(topic, rows, [key for part in parts for key in part.keys])
