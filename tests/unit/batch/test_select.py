"""Slices and selections of batches: kept, dropped and refused content."""

from __future__ import annotations

import numpy as np
import pytest

from tickertape.base.errors import UsageError
from tickertape.batch import (
    BatchBuilder,
    MessageBatch,
    batch_from_bodies,
    merge,
    select,
    select_topic,
    slice_batch,
)


class Context:
    sub_id = "s"
    with_bookmark = True
    with_timestamp = False
    command = "publish"
    store = None
    came_again = False
    lease = None
    sow_keys = None


def mixed() -> MessageBatch:
    """Six messages in two runs, topics a b a | c a b, the second of each run with labels."""
    one, two = BatchBuilder(), BatchBuilder()
    one.add("a", b"1", sequence=1)
    one.add("b", b"22", sequence=2, key="k", correlation_id="x")
    one.add("a", b"", sequence=3, expiration_ms=7)
    two.add("c", b"4444", sequence=9)
    two.add("a", b"5", sequence=10, key="é")
    two.add("b", b"6", sequence=11, kind=1)
    return merge([one.build(7, 0, 70), two.build(8, 0, 80)])


def test_slice_of_a_whole_run_keeps_the_checksum() -> None:
    batch = mixed()
    part = slice_batch(batch, 3, 6)
    assert part.run(0) == batch.run(1)
    assert part.topics == ("a", "b", "c")
    cut = slice_batch(batch, 2, 5)
    assert cut.runs["flags"].tolist() == [1, 1]
    assert cut.runs["first_sequence"].tolist() == [3, 9]
    cut.verify()


def test_unused_topics_and_columns_are_dropped() -> None:
    batch = mixed()
    one = slice_batch(batch, 0, 1)
    assert (one.topics, one.topic_index, one.columns) == (("a",), None, 0)
    two = select(batch, np.array([0, 3]))
    assert two.topics == ("a", "c")
    assert two.topic_index is not None
    assert two.topic_index.tolist() == [0, 1]
    assert two.columns == 0, "each run has one message left: no gap, no label"
    assert select(batch, np.array([0, 2])).columns == 1 | 2, "a gap, and the expiration of the third"


def test_select_topic_omits_control_records() -> None:
    batch = mixed()
    b = select_topic(batch, "b")
    assert b is not None
    assert (b.bodies_list(), b.kinds, b.topics) == ([b"22"], None, ("b",))
    a = select_topic(batch, "a")
    assert a is not None
    assert a.bodies_list() == [b"1", b"", b"5"]
    assert a.sequences.tolist() == [1, 3, 10]
    assert a.key(2) == "é"
    assert select_topic(batch, "d") is None


def test_select_topic_of_a_single_topic_batch_gives_the_same_object() -> None:
    batch = batch_from_bodies("t", [b"1", b"2"])
    assert select_topic(batch, "t") is batch
    builder = BatchBuilder()
    builder.add("t", b"1", kind=1)
    assert select_topic(builder.build(), "t") is None
    builder.add("t", b"2")
    part = select_topic(builder.build(), "t")
    assert part is not None
    assert part.bodies_list() == [b"2"]


def test_selecting_every_message_gives_the_same_object() -> None:
    batch = mixed()
    assert slice_batch(batch, 0, 6) is batch
    assert select(batch, np.ones(6, np.bool_)) is batch
    assert select(batch, np.arange(6)) is batch


def test_adjacent_messages_are_selected_without_copy() -> None:
    batch = mixed()
    assert select(batch, np.array([1, 2, 3])).bodies.obj is batch.bodies.obj


def test_slice_and_selection_keep_the_context() -> None:
    batch = mixed()
    batch.context = Context()
    assert slice_batch(batch, 0, 2).context is batch.context
    assert select(batch, np.array([0, 4])).context is batch.context


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (3, 2), (-1, 2), (0, 7), (6, 7)])
def test_slice_outside_the_batch_is_refused(start: int, stop: int) -> None:
    with pytest.raises(UsageError, match=f"from {start} to {stop}"):
        slice_batch(mixed(), start, stop)


@pytest.mark.parametrize("indices", [[1, 1], [2, 1], [-1, 2], [0, 6], [6]])
def test_selection_with_unordered_or_outside_indices_is_refused(indices: list[int]) -> None:
    with pytest.raises(UsageError, match="increasing indices from 0 to 5"):
        select(mixed(), np.array(indices))


def test_selecting_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="Cannot select messages"):
        select(mixed(), np.zeros(6, np.bool_))
    with pytest.raises(UsageError, match="Cannot select messages"):
        select(mixed(), np.array([], np.int64))
    with pytest.raises(UsageError, match="mask of 5"):
        select(mixed(), np.ones(5, np.bool_))


def test_sequence_column_is_dropped_when_no_gap_is_left() -> None:
    builder = BatchBuilder()
    for sequence in (1, 2, 9, 10):
        builder.add("t", b"", sequence=sequence)
    batch = builder.build()
    assert slice_batch(batch, 1, 3).has_sequences
    tail = slice_batch(batch, 2, 4)
    assert not tail.has_sequences
    assert tail.sequences.tolist() == [9, 10]
    assert not slice_batch(merge([batch, batch]), 2, 6).has_sequences
