"""Rows of the oracle of the state of the world, applied to a ranked fold one by one.

Must never compute a record: the fold and the oracle do.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from tests.helpers.sow_model import Deleted, Expired, Message, Published, State
from tickertape.batch import BatchBuilder, as_linked
from tickertape.engine.sow.state.delete import NO_PUBLISHER, DeleteKind, DeleteRecord
from tickertape.engine.sow.state.fold import DeleteRow, Source, StateFold
from tickertape.engine.sow.state.ranked_fold import RankedFold

OWN_LOG: Final = b"1" * 16


def delete_record(message: Deleted | Expired) -> DeleteRecord:
    """Return a delete as a record, as the log of the delete names messages of other logs."""
    if isinstance(message, Expired):
        named = {message.key: (0, OWN_LOG, message.publisher, message.sequence)}
        kind, own = DeleteKind.EXPIRED, OWN_LOG
    else:
        named = {key: rank or (0, message.log, 0, 0) for key, rank in sorted(message.named.items())}
        kind, own = DeleteKind.DELETED, message.log
    logs = tuple(sorted({rank[1] for rank in named.values()} - {own}))
    publishers = sorted({rank[2] for rank in named.values() if rank[3]})
    numbers = [publishers.index(rank[2]) if rank[3] else NO_PUBLISHER for rank in named.values()]
    offsets = np.cumsum([0, *map(len, named)]).astype(np.uint32)
    return DeleteRecord(
        topic="orders",
        key_fingerprint=bytes(16),
        kind=kind,
        more=False,
        publishers=np.array(publishers, np.uint64),
        sequences=np.array([rank[3] for rank in named.values()], np.uint64),
        order_stamps=np.array([rank[0] for rank in named.values()], np.int64),
        publisher_numbers=np.array(numbers, np.uint32),
        offsets=offsets,
        key_bytes=b"".join(named),
        logs=logs,
        log_numbers=np.array(
            [0 if rank[1] == own else logs.index(rank[1]) + 1 for rank in named.values()], np.uint16
        ),
    )


class RankedRows:
    """A ranked fold, and a subscription to its records."""

    def __init__(self) -> None:
        self.fold = RankedFold(StateFold(bytes(16)), OWN_LOG)
        self.stream: dict[bytes, bytes] = {}
        """Bodies by key, from rows that did not lose, deletes and restated messages."""

    def enter(self, message: Message, position: int) -> None:
        """Apply one message of the log, which is a commit of its own."""
        if isinstance(message, Published):
            self._publish([message], position)
            return
        record = delete_record(message)
        log = OWN_LOG if isinstance(message, Expired) else message.log
        stamp = 0 if isinstance(message, Expired) else message.stamp
        row = DeleteRow(record, message.publisher, message.sequence, stamp, position)
        before = self.records()
        restated = self.fold.delete(row, log, 0, record.count)
        for key in before.keys() - self.records().keys():
            del self.stream[key]
        for one in restated:
            assert one.content is not None
            self.stream[msgspec.json.decode(one.content.body)["key"].encode()] = one.content.body

    def _publish(self, messages: Sequence[Published], position: int) -> None:
        for message in messages:
            builder = BatchBuilder()
            body = msgspec.json.encode({"key": message.key.decode(), **message.body})
            builder.add("orders", body)
            batch = as_linked(
                builder.build(message.publisher, message.sequence), 1, message.stamp, late=False
            )
            source = Source(batch, position, position + 1)
            before = self.records()
            lost = self.fold.publish([message.key], source, np.array([0], np.int64), [message.log])
            if not lost:
                self.stream[message.key] = body
            elif lost[0].restated is not None:
                assert lost[0].restated.content is not None
                self.stream[message.key] = lost[0].restated.content.body
            elif message.key in before and message.key not in self.records():
                del self.stream[message.key]

    def records(self) -> dict[bytes, tuple[int, int, bytes]]:
        """Return publisher, sequence and body of the record of each key."""
        fold = self.fold.fold
        table = fold.records
        slots = table.live_slots(0, table.slot_end)
        rows = table.rows(slots)
        columns = zip(
            fold.keys.keys_of(slots),
            table.publishers.ids(rows.publishers).tolist(),
            rows.sequences.tolist(),
            table.blocks.take(rows.views),
            strict=True,
        )
        return {key: (publisher, sequence, body) for key, publisher, sequence, body in columns}


def as_records(state: State) -> dict[bytes, tuple[int, int, bytes]]:
    """Return the records of the oracle in the form of `RankedRows.records`."""
    return {
        key: (one.publisher, one.sequence, msgspec.json.encode({"key": key.decode(), **one.body}))
        for key, one in state.items()
    }
