"""Checkpoint writer: copies the records of one SOW topic into a base or delta file, in bounded steps.

The state changes between the steps. A load therefore folds the log from P0 on, the position at the start of
the copy (ADR 44).

Invariant: dead keys precede records, and a later copy of a key is newer than an earlier one.
"""

from __future__ import annotations

import numpy as np

from tickertape.base.interfaces import Buffer
from tickertape.batch.format import I4
from tickertape.engine.limits import sow_piece_bytes, sow_piece_slots, sow_record_bytes
from tickertape.engine.sow.state.blocks import lengths_in
from tickertape.engine.sow.state.fold import StateFold
from tickertape.engine.sow.state.labels import encoded, label_lengths
from tickertape.engine.sow.state.records import RecordRows
from tickertape.journal.format.sow_blocks import DeadKeys, RecordBlock, key_column
from tickertape.journal.format.sow_checkpoint import StateFile, StateFileWriter


class StateCopy:
    """The copy of one base or delta file. `since`: a delta has the records from this position on."""

    def __init__(self, fold: StateFold, file: StateFile, since: int) -> None:
        self._fold = fold
        self._writer = StateFileWriter(file)
        self.is_delta = file.delta
        self._since = since if file.delta else 0
        self._dead_pieces = fold.deleted_keys.scan(since) if file.delta else iter(())
        self._dead: list[bytes] | None = []
        """Dead keys that are not copied. None: all are."""
        self._low = 0
        self._begun = False
        self.over = False
        """Whether all slots are copied."""
        self.rows = 0
        """Records and dead keys of the file."""
        self.positions_end = 0
        """Position above those of all copied records."""

    @property
    def size(self) -> int:
        """Bytes of all returned buffers."""
        return self._writer.size

    @property
    def checksum(self) -> int:
        """Checksum of the file, after `end`."""
        return self._writer.checksum

    def step(self) -> list[Buffer]:
        """Copy the next records. Return the next bytes of the file, perhaps none."""
        if not self._begun:
            self._begun = True
            return [self._writer.begin()]
        if self._dead is not None and not self._dead:
            self._dead = next(self._dead_pieces, None)
        return self._records() if self._dead is None else self._dead_keys(self._dead)

    def end(self) -> bytes:
        """Return the last bytes of the file."""
        return self._writer.end()

    def _dead_keys(self, dead: list[bytes]) -> list[Buffer]:
        """Return a block of dead keys, or nothing without any."""
        high = size = 0
        while high < len(dead) and size < sow_piece_bytes:
            size += len(dead[high]) + sow_record_bytes
            high += 1
        keys, self._dead = dead[:high], dead[high:]
        if not keys:
            return []
        self.rows += len(keys)
        return self._writer.dead_keys(DeadKeys(topics=(), topic_numbers=None, keys=key_column(keys)))

    def _records(self) -> list[Buffer]:
        """Return a block with the records of the next slots, if they have any."""
        table = self._fold.records
        low, high = self._low, min(self._low + sow_piece_slots, table.slot_end)
        self._low = high
        if high >= table.slot_end:
            self.over = True
        slots = table.live_slots(low, high)
        if not len(slots):
            return []
        rows = table.rows(slots)
        if self._since:
            later = rows.positions >= self._since
            slots, rows = slots[later], rows.select(later.nonzero()[0])
        if not len(slots):
            return []
        keys = self._fold.keys.keys_of(slots)
        count = _fitting(rows, keys)
        if count < len(slots):
            self._low, self.over = int(slots[count - 1]) + 1, False
            keys, rows = keys[:count], rows.select(slice(0, count))
        self.rows += count
        self.positions_end = max(self.positions_end, int(rows.positions.max()) + 1)
        return self._writer.records(self._block(keys, rows))

    def _block(self, keys: list[bytes], rows: RecordRows) -> RecordBlock:
        table = self._fold.records
        bodies, offsets = table.blocks.gather(rows.views)
        return RecordBlock(
            positions=rows.positions,
            sequences=rows.sequences,
            timestamps=None,
            order_stamps=rows.order_stamps,
            publishers=table.publishers.ids(rows.publishers),
            publisher_numbers=None,
            origins=None,
            topics=(),
            topic_numbers=None,
            expirations=rows.lives,
            keys=key_column(keys),
            correlation_ids=None if rows.labels is None else encoded(rows.labels),
            message_keys=None,
            headers=None,
            body_offsets=offsets.astype(I4),
            bodies=(bodies,),
        )


def _fitting(rows: RecordRows, keys: list[bytes]) -> int:
    """Return how many records one piece takes. The last one may exceed the size."""
    sizes = lengths_in(rows.views) + np.fromiter(map(len, keys), np.int64, len(keys)) + sow_record_bytes
    if rows.labels is not None:
        sizes += label_lengths(rows.labels)
    return min(int(np.searchsorted(sizes.cumsum(), sow_piece_bytes)) + 1, len(keys))
