"""Ranked fold: contents, positions and logs of records that lost and return."""

from __future__ import annotations

import numpy as np

from tests.helpers.ranked_rows import OWN_LOG, delete_record
from tests.helpers.sow_model import Deleted, Expired
from tickertape.batch import BatchBuilder, MessageBatch, as_linked
from tickertape.engine.sow.state.candidates import Rank
from tickertape.engine.sow.state.fold import DeleteRow, Source, StateFold
from tickertape.engine.sow.state.ranked_fold import LostRow, RankedFold

KEY = b"k"
THERE = b"2" * 16
P, Q = 1, 2
"""Publishers."""


def message(publisher: int, sequence: int, stamp: int, body: bytes = b"{}", **more: object) -> MessageBatch:
    builder = BatchBuilder()
    builder.add("orders", body, **more)  # type: ignore[arg-type]
    return as_linked(builder.build(publisher, sequence), 1, stamp, late=False)


def publish(
    fold: RankedFold, position: int, batch: MessageBatch, log: bytes = OWN_LOG, key: bytes = KEY
) -> list[LostRow]:
    source = Source(batch, position, position + batch.count)
    return fold.publish([key] * batch.count, source, np.arange(batch.count), [log] * batch.run_count)


def row_of(fold: RankedFold, key: bytes = KEY) -> tuple[int, int, bytes | None, int, bytes | None]:
    """Return position, order stamp, body, life and label of the record of a key."""
    records = fold.fold.records
    slots = fold.fold.keys.find([key])
    rows = records.rows(slots)
    assert rows.lives is not None
    label = None if rows.labels is None else rows.labels[0]
    return (
        int(rows.positions[0]),
        int(rows.order_stamps[0]),
        records.body(int(slots[0])),
        int(rows.lives[0]),
        label,
    )


def made() -> RankedFold:
    return RankedFold(StateFold(bytes(16), expires=True), OWN_LOG)


def test_restated_message_keeps_content_and_gets_the_position_of_the_row() -> None:
    fold = made()
    publish(fold, 0, message(P, 1, 10, b"old", expiration_ms=60_000, correlation_id="c"))
    publish(fold, 1, message(Q, 5, 20, b"new"), THERE)
    assert row_of(fold) == (1, 20, b"new", 0, None)
    lost = publish(fold, 2, message(Q, 6, 5, b"late"), THERE)
    assert row_of(fold) == (2, 10, b"old", 60_000, b"c")
    (one,) = lost
    assert one.restated is not None
    assert (one.row, one.restated.publisher, one.restated.sequence) == (0, P, 1)
    assert fold.fold.lives is not None
    assert fold.fold.lives.next_due is not None


def test_rows_of_one_batch_are_applied_in_order() -> None:
    fold = made()
    builder = BatchBuilder()
    for body in (b"1", b"2", b"3"):
        builder.add("orders", body)
    batch = as_linked(builder.build(P, 1), 1, 10, late=False)
    assert publish(fold, 7, batch) == []
    assert row_of(fold)[:3] == (9, 10, b"3")
    assert publish(fold, 10, message(P, 2, 99, b"late")) == [LostRow(0, None)]
    assert not fold.unsettled, "one publisher needs no candidates"


def test_log_of_a_record_decides_between_equal_stamps() -> None:
    fold = made()
    publish(fold, 0, message(P, 1, 10), THERE)
    assert publish(fold, 1, message(Q, 1, 10)) == [LostRow(0, None)]
    assert fold.highest(KEY) == Rank(10, THERE, P, 1)


def test_reused_slot_has_the_log_of_the_new_record() -> None:
    fold = made()
    publish(fold, 0, message(P, 1, 10), THERE)
    record = delete_record(Expired(KEY, P, 1))
    assert fold.delete(DeleteRow(record, 9, 1, 0, 1), OWN_LOG, 0, 1) == []
    assert fold.fold.expired == 1
    fold.forget(2, 10)
    publish(fold, 2, message(Q, 1, 20), key=b"other")
    assert fold.highest(b"other") == Rank(20, OWN_LOG, Q, 1)


def test_delete_of_a_key_without_candidates_ends_older_messages_of_the_publisher() -> None:
    fold = made()
    record = delete_record(Deleted(P, 5, 50, THERE, {KEY: None}))
    fold.delete(DeleteRow(record, P, 5, 50, 0), THERE, 0, 1)
    assert publish(fold, 1, message(P, 4, 40), THERE) == [LostRow(0, None)]
    assert publish(fold, 2, message(Q, 1, 60)) == []
    assert row_of(fold)[:2] == (2, 60)
