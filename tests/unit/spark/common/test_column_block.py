"""Column blocks: plain batches, parsed batches, and damaged ones."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.unit.spark.common.test_schema import many_runs, one_run, several_topics, with_gaps
from tickertape.base.errors import BadBatch
from tickertape.batch import BatchBuilder, MessageBatch, batch_from_bodies
from tickertape.batch.format import RUN_DTYPE
from tickertape.spark.common.column_block import ColumnBlock, ColumnBlocks, block_of_batch, plain_block


def labelled() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("flights", b"body", correlation_id="id")
    return builder.build(publisher=3, first_sequence=1)


@pytest.mark.parametrize(
    "batch", [one_run(), one_run(count=1), many_runs(), batch_from_bodies("é" * 9, [b"", b"x" * 99, b""])]
)
def test_plain_block_equals_the_parsed_block(batch: MessageBatch) -> None:
    encoded = memoryview(batch.encode())
    plain, parsed = plain_block(encoded, 7), block_of_batch(MessageBatch.parse(encoded), 7)
    assert plain is not None
    assert [bytes(field) for field in plain[2:5]] == [bytes(field) for field in parsed[2:5]]
    assert (plain[:2], plain[5:]) == (parsed[:2], parsed[5:])


@pytest.mark.parametrize("batch", [several_topics(), with_gaps(), labelled()])
def test_batch_that_is_not_plain_has_no_plain_block(batch: MessageBatch) -> None:
    assert plain_block(memoryview(batch.encode()), 0) is None


def test_damaged_bytes_never_give_offsets_outside_the_bodies() -> None:
    """Offsets must stay inside the bodies, because Spark reads memory without a check."""
    rng = Random(3)
    for batch in (one_run(), many_runs()):
        encoded = batch.encode()
        for _ in range(600):
            damaged = bytearray(encoded)
            at = rng.randrange(batch.head_bytes)
            damaged[at : at + 4] = rng.choice((bytes(4), b"\xff" * 4, rng.randbytes(4)))
            piece = plain_block(memoryview(bytes(damaged[: len(encoded)])), 0)
            if piece is None:
                continue
            try:
                rows = ColumnBlocks([block_of_batch(batch), piece])
                offsets, count = rows.offsets, len(rows.sequences)
            except BadBatch:
                continue
            assert count == rows.count == batch.count + piece.messages
            assert offsets[0] == 0
            assert offsets[-1] == len(rows.bodies)
            assert (np.diff(offsets) >= 0).all()
    assert plain_block(memoryview(b""), 0) is None


def damaged_block(
    piece: ColumnBlock, offsets: list[int] | None = None, count: int | None = None
) -> ColumnBlock:
    if offsets is not None:
        piece = piece._replace(offsets=np.array(offsets, np.int32).tobytes())
    if count is not None:
        runs = np.frombuffer(piece.runs, RUN_DTYPE).copy()
        runs["count"][0] = count
        piece = piece._replace(runs=runs.tobytes())
    return piece


@pytest.mark.parametrize("offsets", [[0, 1, 0, 3], [1, 1, 1, 3], [0, 1, 2, 4], [0, 9, -3, 3]])
@pytest.mark.parametrize("at", [0, 1])
def test_offsets_that_do_not_ascend_are_refused(offsets: list[int], at: int) -> None:
    good = block_of_batch(batch_from_bodies("flights", [b"a", b"b", b"c"]))
    assert ColumnBlocks([good, good]).offsets.tolist() == [0, 1, 2, 3, 4, 5, 6]
    pieces = [good, good]
    pieces[at] = damaged_block(good, offsets)
    for some in (pieces, [pieces[at]]):
        with pytest.raises(BadBatch, match="do not ascend"):
            _ = ColumnBlocks(some).offsets


def test_runs_with_wrong_counts_are_refused_even_with_the_right_sum() -> None:
    good = block_of_batch(one_run())
    for pieces in (
        [damaged_block(good, count=2)],
        [damaged_block(good, count=2), damaged_block(good, count=4)],
    ):
        with pytest.raises(BadBatch, match="as many messages"):
            _ = ColumnBlocks(pieces).runs
