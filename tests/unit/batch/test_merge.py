"""Merging batches: runs, stamps, topics and columns."""

from __future__ import annotations

import numpy as np
import pytest

from tests.helpers.reserved_batches import with_reserved
from tickertape.base.errors import UsageError
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies, merge, select, with_bodies


def _with_columns() -> MessageBatch:
    builder = BatchBuilder()
    builder.add("a", b"one", sequence=5, key="k", correlation_id="é")
    builder.add("b", b"", sequence=9, expiration_ms=20)
    builder.add("a", b"three", sequence=10, kind=1)
    return builder.build(publisher=3)


def test_single_batch_without_stamps_is_the_same_object() -> None:
    batch = batch_from_bodies("t", [b"1"])
    assert merge([batch]) is batch


def test_merge_of_no_batches_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one"):
        merge([])


def test_merge_refuses_stamps_that_do_not_match_the_runs() -> None:
    one = batch_from_bodies("t", [b"1"])
    with pytest.raises(UsageError, match="has 1 values"):
        merge([one, one], [Stamp(1, 1, 1)])
    with pytest.raises(UsageError, match="that have one run each"):
        merge([merge([one, one]), one], [Stamp(1, 1, 1), Stamp(1, 1, 1)])


@pytest.mark.parametrize("sizes", [[1], [1, 1, 1], [600], [3, 1, 600, 2]])
def test_runs_keep_checksums_and_get_stamps(sizes: list[int]) -> None:
    batches = [batch_from_bodies("t", [b"%d" % i] * i, publisher=9) for i in sizes]
    stamps = [Stamp(100 + i, 2**63 + 1000 * i, -i) for i in range(len(sizes))]
    merged = merge(batches, stamps)
    again = MessageBatch.parse(merged.encode())
    again.verify()
    assert [again.run(i)[:3] for i in range(len(sizes))] == stamps
    assert again.runs["count"].tolist() == sizes
    assert again.runs["crc"].tolist() == [b.run(0).crc for b in batches]
    assert again.bodies_list() == [body for b in batches for body in b.bodies_list()]
    assert again.topics == ("t",)
    assert again.topic_index is None
    assert merged.crc() == again.crc()


def test_stamping_one_batch_does_not_copy_bodies() -> None:
    batch = batch_from_bodies("t", [b"x" * 100] * 10, publisher=9)
    stamped = merge([batch], [Stamp(9, 1, 2)])
    assert stamped.bodies.obj is batch.bodies.obj
    assert batch.run(0).timestamp == 0


def test_topics_are_united_in_order_of_appearance() -> None:
    merged = merge([batch_from_bodies("b", [b"1", b"2"]), _with_columns(), batch_from_bodies("c", [b"4"])])
    again = MessageBatch.parse(merged.encode())
    assert again.topics == ("b", "a", "c")
    assert [again.topic(i) for i in range(6)] == ["b", "b", "a", "b", "a", "c"]


def test_merge_of_equal_topic_tables_keeps_one() -> None:
    merged = MessageBatch.parse(merge([_with_columns(), _with_columns()]).encode())
    assert merged.topics == ("a", "b")
    assert [merged.topic(i) for i in range(6)] == ["a", "b", "a"] * 2


def test_merge_fills_columns_that_a_batch_lacks() -> None:
    plain = batch_from_bodies("a", [b"x"], publisher=8, first_sequence=70)
    merged = MessageBatch.parse(merge([plain, _with_columns(), plain]).encode())
    merged.verify()
    assert merged.sequences.tolist() == [70, 5, 9, 10, 70]
    assert merged.publishers.tolist() == [8, 3, 3, 3, 8]
    assert merged.expirations is not None
    assert merged.expirations.tolist() == [0, 0, 20, 0, 0]
    assert merged.kinds is not None
    assert merged.kinds.tolist() == [0, 0, 0, 1, 0]
    assert [merged.key(i) for i in range(5)] == [None, "k", None, None, None]
    assert [merged.correlation_id(i) for i in range(5)] == [None, "é", None, None, None]


def test_sequence_column_is_kept_for_the_same_publisher() -> None:
    merged = merge([_with_columns()], [Stamp(3, 5, 77)])
    assert merged.sequences.tolist() == [5, 9, 10]
    assert merged.timestamps.tolist() == [77] * 3


@pytest.mark.parametrize("stamp", [Stamp(4, 5, 0), Stamp(3, 6, 0)])
def test_sequence_column_is_replaced_for_another_publisher_or_start(stamp: Stamp) -> None:
    alone = merge([_with_columns()], [stamp])
    first = stamp.first_sequence
    assert alone.sequences.tolist() == [first, first + 1, first + 2]
    assert not alone.columns & 1
    both = MessageBatch.parse(merge([_with_columns(), _with_columns()], [stamp, Stamp(3, 5, 0)]).encode())
    assert both.sequences.tolist() == [first, first + 1, first + 2, 5, 9, 10]


def test_merging_merged_batches_keeps_all_runs() -> None:
    one = batch_from_bodies("t", [b"1", b"2"], publisher=1, first_sequence=4)
    merged = merge([merge([one, _with_columns()]), one])
    assert merged.run_count == 3
    assert MessageBatch.parse(merged.encode()).sequences.tolist() == [4, 5, 5, 9, 10, 4, 5]


def _stamped(timestamp: int, order_stamp: int | None = None) -> MessageBatch:
    batch = batch_from_bodies("t", [b"1", b"2"], first_sequence=1, timestamp=timestamp)
    return batch if order_stamp is None else with_reserved(batch, order_stamps=[order_stamp])


def _order_stamps(batch: MessageBatch) -> list[int] | None:
    stamps = MessageBatch.parse(batch.encode()).order_stamps
    return None if stamps is None else stamps.tolist()


def test_run_without_an_order_stamp_is_merged_with_the_final_timestamp() -> None:
    parts = [_stamped(5), _stamped(6, 3), _stamped(7)]
    assert _order_stamps(merge(parts)) == [5, 3, 7]
    stamps = [Stamp(1, 1, 50), Stamp(1, 3, 60), Stamp(1, 5, 70)]
    assert _order_stamps(merge(parts, stamps)) == [50, 3, 70]
    assert _order_stamps(merge([merge(parts), _stamped(9)])) == [5, 3, 7, 9]


def test_order_stamps_that_equal_the_timestamps_are_not_stored() -> None:
    assert _order_stamps(merge([_stamped(5), _stamped(6, 6)])) is None
    assert _order_stamps(merge([_stamped(5), _stamped(6, 9)], [Stamp(1, 1, 5), Stamp(1, 3, 9)])) is None
    merged = merge([_stamped(5), _stamped(6, 3), _stamped(7)])
    assert _order_stamps(select(merged, np.array([0, 1, 4]))) is None
    assert _order_stamps(select(merged, np.array([1, 3]))) == [5, 3]


def test_stamped_batch_keeps_order_stamp_flags_and_origin() -> None:
    batch = with_reserved(_stamped(5, 3), run_flags=[2], origins=[7])
    stamped = MessageBatch.parse(merge([batch], [Stamp(9, 4, 60)]).encode())
    assert _order_stamps(stamped) == [3]
    assert stamped.run(0)[:3] == (9, 4, 60)
    assert (stamped.run(0).flags, stamped.run(0).origin) == (2, 7)


def test_new_bodies_are_flagged_as_merged_on_request() -> None:
    batch = with_reserved(merge([_stamped(5), _stamped(6)]), run_flags=[2, 0], origins=[7, 0])
    bodies = [b"x"] * 4
    assert with_bodies(batch, bodies).runs["flags"].tolist() == [3, 1]
    merged = MessageBatch.parse(with_bodies(batch, bodies, merged=True).encode())
    assert merged.runs["flags"].tolist() == [7, 5]
    assert merged.runs["origin"].tolist() == [7, 0]
