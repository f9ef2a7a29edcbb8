"""Batches of messages picked one by one, read back."""

from __future__ import annotations

import pytest

from tests.helpers.reserved_batches import header_entries
from tickertape.base.errors import UsageError
from tickertape.batch import RUN_BY_SERVER, MessageBatch
from tickertape.batch.builders.rows import Row, batch_from_rows

_END = 2**64 - 1


def _rows(batch: MessageBatch) -> list[Row]:
    headers = header_entries(batch)
    return [
        Row(
            batch.publisher(i),
            batch.sequence(i),
            batch.timestamp(i),
            batch.topic(i),
            batch.body(i),
            batch.expiration(i) or 0,
            (batch.correlation_id(i) or "").encode(),
            (batch.key(i) or "").encode(),
            headers[i],
        )
        for i in range(batch.count)
    ]


@pytest.mark.parametrize(
    ("rows", "runs", "gaps"),
    [
        ([Row(1, 5, 9, "t", b"")], 1, False),
        ([Row(_END, _END, -9, "größe", b"one")], 1, False),
        ([Row(1, 5, 9, "t", b"one", 3, b"id")], 1, False),
        ([Row(1, 5, 9, "t", b"one", headers=b"\x80")], 1, False),
        ([Row(1, 5, 9, "t", b"a", headers=b"\x80"), Row(1, 6, 9, "t", b"b")], 1, False),
        ([Row(1, 5, 9, "t", b"a"), Row(1, 6, 9, "t", b"b")], 1, False),
        ([Row(1, 5, 9, "t", b"a"), Row(1, 8, 9, "t", b"b")], 1, True),
        ([Row(1, 5, 9, "t", b"a"), Row(1, 6, 10, "t", b"b")], 2, False),
        ([Row(1, 5, 9, "t", b"a"), Row(1, 6, 8, "t", b"b")], 2, False),
        ([Row(1, 5, 9, "t", b"a"), Row(2, 6, 9, "t", b"b")], 2, False),
        ([Row(1, 5, 9, "t", b"a"), Row(1, 5, 9, "t", b"b")], 2, False),
        ([Row(1, 5, 9, "t", b"a"), Row(1, 3, 9, "t", b"b"), Row(1, _END, 9, "t", b"c")], 2, True),
        (
            [Row(_END, _END, -1, "t", b"a", 7), Row(0, 0, 1, "größe", b"b", 0, b"id", "schlüssel".encode())],
            2,
            False,
        ),
    ],
)
def test_batch_from_rows_reads_back_the_same_rows(rows: list[Row], runs: int, gaps: bool) -> None:
    batch = MessageBatch.parse(batch_from_rows(rows).encode())
    batch.verify()
    assert _rows(batch) == rows
    assert (batch.run_count, batch.has_sequences) == (runs, gaps)
    assert (batch.runs["flags"] == RUN_BY_SERVER).all()


def test_batch_from_rows_accepts_memoryview_bodies() -> None:
    body = memoryview(b"0123456789")
    batch = batch_from_rows(
        [Row(1, 1, 1, "t", body[2:4]), Row(1, 2, 1, "t", body[:0]), Row(1, 3, 1, "t", b"x")]
    )
    assert batch.bodies_list() == [b"23", b"", b"x"]


def test_batch_from_no_rows_is_refused() -> None:
    with pytest.raises(UsageError):
        batch_from_rows([])
