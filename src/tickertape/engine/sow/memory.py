"""State memory: the memory of all records, and the growth by accepted messages that are not folded.

Invariants:
- A message that needs more memory than `bytes_max` leaves is refused before it is accepted.
- Columns never cause a refusal: they are dropped when records need their memory.
- Deletes, expiry, and updates that are not larger than their records are never refused.
- Indexes of record keys use memory that messages leave, and are given up before a message is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from tickertape.base.errors import SowFull
from tickertape.base.text_format import shown
from tickertape.batch import MessageBatch
from tickertape.batch.format import CORRELATION_IDS, I8, Int64s
from tickertape.engine.limits import fold_step_rows_max
from tickertape.engine.runtime.outbox import Outbox
from tickertape.engine.sow.accepted import AcceptedRows, TopicKeys, growth_of
from tickertape.engine.sow.query.column_memory import ColumnMemory
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.labels import LABEL_PLACE_BYTES, label_memory, label_memory_of
from tickertape.engine.sow.topic import StateTopic


class StateMemory:
    """The memory of the records of all SOW topics, with keys and indexes. `bytes_max`: its limit, which
    `columns` share.

    Logs `sow_full` at the first refusal, and `sow_resumed` when the last refused messages would fit."""

    def __init__(self, accepted: AcceptedRows, columns: ColumnMemory, outbox: Outbox, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used = 0
        """Memory of the folded records."""
        self.refusals = 0
        """Frames that were refused."""
        self._needed: int | None = None
        """Memory that the last refused messages need. None while nothing is refused."""
        self._accepted = accepted
        self._columns = columns
        self._outbox = outbox
        self._sizes: dict[StateFold, int] = {}

    @property
    def expected(self) -> int:
        """Memory once all accepted messages are folded, at most."""
        return self.used + self._accepted.growth

    @property
    def free(self) -> int:
        """Memory that more messages may use. Negative above the limit."""
        return self.bytes_max - self.expected

    def measure(self, folds: Iterable[StateFold]) -> None:
        """Measure the records of SOW topics that changed."""
        for fold in folds:
            size = fold.record_bytes
            self.used += size - self._sizes.get(fold, 0)
            self._sizes[fold] = size
        self._columns.fit(self.bytes_max - self.expected)
        if self._needed is not None and self.expected + self._needed <= self.bytes_max:
            self._needed = None
            self._outbox.log_event("sow_resumed", True, {"bytes": self.used})

    def check(self, batch: MessageBatch, topics: Sequence[TopicKeys]) -> None:
        """Raise `SowFull` for a batch whose messages need more memory than is left."""
        labelled = _first_labels(batch, topics) if batch.columns & CORRELATION_IDS else []
        places = LABEL_PLACE_BYTES * sum([fold.records.slot_end for fold in labelled])
        if sum(growth_of(batch, own) for own in topics) + places > self.free:
            self._check_growth(batch, topics, places)
        if labelled:
            for fold in labelled:
                fold.records.keep_labels()
            self.measure(labelled)

    def _check_growth(self, batch: MessageBatch, topics: Sequence[TopicKeys], growth: int) -> None:
        """Raise `SowFull` unless the memory suffices for the messages, compared with the folded records.

        `growth` is further memory that they need."""
        for own in topics:
            growth += _real_growth(batch, own)
            if growth > max(self.free, 0) and not self._give_up_indexes(growth):
                error = SowFull(
                    f"Cannot store messages of SOW topic {shown(own.topic.name)}: the records of all SOW "
                    f"topics need {self.expected:,} bytes, the messages at least {growth:,} more, and "
                    f"`sow_bytes_max` is {self.bytes_max:,}. "
                    "Delete records, or raise `sow_bytes_max`."
                )
                self._refused(own.topic, growth, error)
                raise error

    def index_record_keys(self, fold: StateFold) -> Iterator[None]:
        """Build the index of record keys of a SOW topic in bounded steps, unless messages need its memory."""
        index = fold.record_keys
        if index is None:
            return
        if not index.active:
            if index.nbytes_for(fold.records.slot_end) > self.free:
                return
            index.begin(fold.records)
            self.measure((fold,))
        while index.active and not index.ready:
            index.step(fold.keys, fold.records)
            yield
        self.measure((fold,))

    def _give_up_indexes(self, growth: int) -> bool:
        """Free the indexes of record keys. Return whether messages then have the memory that they need."""
        folds = [fold for fold in self._sizes if fold.record_keys is not None]
        for fold in folds:
            if fold.record_keys is not None:
                fold.record_keys.give_up()
        self.measure(folds)
        return growth <= max(self.free, 0)

    def _refused(self, topic: StateTopic, growth: int, error: SowFull) -> None:
        self.refusals += 1
        if self._needed is None:
            self._outbox.log_event("sow_full", True, {"topic": topic.name, "text": str(error)})
        self._needed = growth


def _first_labels(batch: MessageBatch, topics: Sequence[TopicKeys]) -> list[StateFold]:
    """Return the folds that get their first correlation ids from a batch with such ids."""
    return [
        own.topic.fold
        for own in topics
        if not own.topic.fold.records.has_labels and label_memory_of(batch, own.rows).any()
    ]


def _real_growth(batch: MessageBatch, own: TopicKeys) -> int:
    """Return the growth by the messages of a topic, compared with its folded records.

    Each record counts once, with its largest message. Messages of keys that are not folded yet count as new,
    so the result is never too small."""
    fold = own.topic.fold
    growth = 0
    updated: list[Int64s] = [np.empty(0, I8)]
    differences: list[Int64s] = [np.empty(0, I8)]
    for low in range(0, len(own.keys), fold_step_rows_max):
        keys, rows = own.keys[low : low + fold_step_rows_max], own.rows[low : low + fold_step_rows_max]
        slots = fold.keys.find(keys)
        known = slots >= 0
        before = lengths_in(fold.records.rows(np.maximum(slots, 0)).views)
        old_labels = fold.records.labels(np.maximum(slots, 0))
        if old_labels is not None:
            before = before + label_memory(old_labels)
        new = own.topic.record_memory_bytes + np.fromiter(map(len, keys), I8, len(keys))
        sizes = (batch.offsets[rows + 1] - batch.offsets[rows]).astype(I8)
        sizes += label_memory_of(batch, rows)
        growth += int((sizes + new)[~known].sum())
        updated.append(slots[known])
        differences.append((sizes - before)[known].astype(I8))
    records, at = np.unique(np.concatenate(updated), return_inverse=True)
    largest = np.full(len(records), np.iinfo(I8).min, I8)
    np.maximum.at(largest, at, np.concatenate(differences))
    return growth + int(largest.sum())
