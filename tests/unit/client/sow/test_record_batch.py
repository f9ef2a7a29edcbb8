"""Record batches: the values of the marks in every use of a batch."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from tickertape.base.bookmarks import Bookmark
from tickertape.batch import BatchBuilder, MessageBatch, select, slice_batch
from tickertape.batch.format import I8
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.sow.record_batch import RecordBatch, marker
from tickertape.client.sow.record_keys import GroupKeys, RecordKeys
from tickertape.wire.sow_command import RecordMarks, decode_marks, encode_marks

PUBLISHERS = [3, 2**64 - 1, 3]
SEQUENCES = [9, 2**64 - 5, 4]
TIMESTAMPS = [1_000_000, 0, -5]
KEYS = RecordKeys((GroupKeys("a", ("/id",), "a", "^b", {}),))


def batch(*, labelled: bool = False) -> RecordBatch:
    builder = BatchBuilder()
    for number, topic in enumerate(("a", "b", "a")):
        key, label = (f"k{number}", "" if number == 1 else f"c{number}") if labelled else ("", "")
        life = 5_000 * labelled * number
        builder.add(topic, b'{"id":%d}' % number, key=key, correlation_id=label, expiration_ms=life)
    marks = encode_marks(PUBLISHERS, SEQUENCES, TIMESTAMPS)
    made = RecordBatch(MessageBatch.parse(builder.build().encode()), marks)
    made.context = SubscriptionContext(
        sub_id="q", command="sow", with_bookmark=True, with_timestamp=True, sow_keys=KEYS
    )
    return made


def values(found: MessageBatch) -> list[tuple[object, ...]]:
    return [
        (
            *(m.topic, m.data, m.publisher, m.sequence, m.bookmark, found.timestamp(m.index), m.sow_key),
            *(m.correlation_id, m.expiration),
        )
        for m in found
    ]


@pytest.mark.parametrize("labelled", [False, True])
def test_values_are_equal_before_and_after_runs_are_built(labelled: bool) -> None:
    lazy, built = batch(labelled=labelled), batch(labelled=labelled)
    assert built.run_count == 3
    built.verify()
    assert values(lazy) == values(built)
    assert "run_count" not in vars(lazy), "reading builds no runs"
    assert [int(p) for _, _, p, *_ in values(lazy)] == PUBLISHERS  # type: ignore[call-overload]
    assert [s for _, _, _, s, *_ in values(lazy)] == SEQUENCES
    parsed = MessageBatch.parse(lazy.encode())
    parsed.context = lazy.context
    assert values(parsed) == values(lazy)


@pytest.mark.parametrize("labelled", [False, True])
def test_slices_selections_and_pickles_keep_the_values(labelled: bool) -> None:
    expected = values(batch(labelled=labelled))
    made = batch(labelled=labelled)
    part = slice_batch(made, 1, 3)
    part.context = made.context
    assert values(part) == expected[1:]
    chosen = select(batch(labelled=labelled), np.array([0, 2], I8))
    chosen.context = made.context
    assert values(chosen) == [expected[0], expected[2]]
    assert values(pickle.loads(pickle.dumps(made))) == expected
    message = pickle.loads(pickle.dumps(list(made)[1]))
    assert (message.command, message.query_id, message.bookmark) == ("sow", "q", expected[1][4])
    assert message.sow_key == expected[1][6] is not None


def test_marks_are_decoded_without_a_lock_that_a_fork_could_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    together = Barrier(2)

    def decode(marks: bytes, count: int) -> RecordMarks:
        together.wait(10)  # Both threads decode now. A common lock would break the barrier.
        return decode_marks(marks, count)

    monkeypatch.setattr("tickertape.client.sow.record_batch.decode_marks", decode)
    with ThreadPoolExecutor(2) as threads:
        found = list(threads.map(lambda made: made.bookmark(0), [batch(), batch()]))
    assert found == ["3|9|"] * 2


def test_arrow_table_has_marks_and_generated_keys() -> None:
    made = batch()
    table = made.to_arrow(["topic", "publisher", "sequence", "timestamp", "data", "sow_key"])
    assert table.column("publisher").to_pylist() == PUBLISHERS
    assert table.column("sequence").to_pylist() == SEQUENCES
    assert table.column("sow_key").to_pylist() == [row[6] for row in values(made)]
    assert table.column("topic").to_pylist() == ["a", "b", "a"]
    assert "run_count" not in vars(made)
    assert batch(labelled=True).to_arrow(["sow_key"]).column(0).to_pylist() == ["k0", "k1", "k2"]
    assert batch(labelled=True).to_arrow(["correlation_id"]).column(0).to_pylist() == ["c0", None, "c2"]


def test_cost_is_the_cost_of_the_received_batch() -> None:
    assert batch().cost == 3 * (8 + 32)
    assert batch(labelled=True).cost == 3 * (8 + 32 + 2) + 4


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = batch().nothing


def test_marker_is_one_empty_message_without_cost() -> None:
    made = marker("orders", Bookmark(3, 7))
    (message,) = made
    assert (message.topic, message.data, made.cost, made.bookmark(0)) == ("orders", b"", 0, "3|7|")
