"""Batches built from Arrow columns stay within the limits of a server."""

from __future__ import annotations

import pyarrow as pa
import pytest

from tickertape.base.errors import BadMessage, BadTopic
from tickertape.base.limits import label_bytes_max, publish_topics_max
from tickertape.batch.builders.columns import OutColumns, batches_from_columns

COST = 64 * 1024


def test_long_labels_count_towards_the_batch_size() -> None:
    rows = 300
    keys = pa.array([f"{n:04}" + "k" * (label_bytes_max - 4) if n % 3 else None for n in range(rows)])
    ids = pa.array([f"{n:04}" + "c" * 2_000 for n in range(rows)])
    data = pa.array([b"%d" % n for n in range(rows)])
    made = list(batches_from_columns(OutColumns(data, "t", keys, ids), COST, 1_000))
    assert max(batch.nbytes for batch in made) < 2 * COST
    found = [(bytes(m.data), m.sow_key, m.correlation_id) for batch in made for m in batch]
    assert found == list(zip(data.to_pylist(), keys.to_pylist(), ids.to_pylist(), strict=True))


def test_batch_has_at_most_as_many_topics_as_a_server_accepts() -> None:
    topics = [f"t/{n % (publish_topics_max + 900)}" for n in range(3 * publish_topics_max)]
    data = pa.array([b"%d" % n for n in range(len(topics))])
    made = list(batches_from_columns(OutColumns(data, pa.array(topics)), 1 << 30, 10_000))
    assert max(len(batch.topics) for batch in made) == publish_topics_max
    assert [batch.topic(i) for batch in made for i in range(batch.count)] == topics
    bodies = [body for batch in made for body in batch.bodies_list()]
    assert bodies == data.to_pylist()


def test_rows_are_split_at_the_message_limit_and_keep_column_values() -> None:
    data = pa.array([b"x", b"yy", b"zzz", b"", b"v"])
    expirations = pa.array([1, None, 3, 0, 5])
    made = list(batches_from_columns(OutColumns(data, "t", expiration_ms=expirations), COST, 2))
    assert [batch.count for batch in made] == [2, 2, 1]
    assert [value for batch in made for value in batch.to_arrow(["expiration_ms"]).column(0).to_pylist()] == [
        1, None, 3, None, 5
    ]  # fmt: skip
    with pytest.raises(BadTopic, match="1 of 2 topics are null"):
        list(batches_from_columns(OutColumns(data[:2], pa.array(["a", None])), COST, 2))


def test_too_long_label_of_a_column_is_a_bad_message() -> None:
    keys = pa.array(["k", "k" * (label_bytes_max + 1)])
    with pytest.raises(BadMessage, match="Invalid key of 4097 bytes"):
        list(batches_from_columns(OutColumns(pa.array([b"a", b"b"]), "t", keys), COST, 1_000))
