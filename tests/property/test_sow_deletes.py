"""Delete records against a dict: the builder keeps the last row of each key, in order, within the bounds."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tickertape.engine.sow.state import delete, delete_rows, key_order
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind, DeleteRecord, decode, encode

KEYS = st.binary(max_size=3) | st.lists(st.sampled_from([b"\0", b"a", b"\xff"]), max_size=20).map(b"".join)


class Row(NamedTuple):
    """A row of the program."""

    key: bytes
    topic: str
    publisher: int
    sequence: int
    order_stamp: int
    live: bool


ROWS = st.builds(
    Row,
    KEYS,
    st.sampled_from(["", "a", "b", "\u00e9", "\U0001f600"]),
    st.integers(1, 4) | st.integers(1, 2**64 - 1),
    st.integers(0, 2) | st.integers(0, 2**64 - 1),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
)


def add(builder: DeleteBuilder, rows: list[Row], *, topics: bool) -> None:
    builder.add(
        [row.key for row in rows],
        np.array([row.publisher for row in rows], np.uint64),
        np.array([row.sequence for row in rows], np.uint64),
        np.array([row.order_stamp for row in rows], np.int64),
        topics=[row.topic for row in rows] if topics else None,
        live=np.array([row.live for row in rows], np.bool_),
    )


def rows_of(record: DeleteRecord, *, topics: bool) -> list[tuple[str, bytes, int, int, int]]:
    return list(
        zip(
            record.topics_between(0, record.count) if topics else [""] * record.count,
            record.keys(),
            record.publishers_between(0, record.count).tolist(),
            record.sequences.tolist(),
            record.order_stamps.tolist(),
            strict=True,
        )
    )


@given(
    st.lists(st.lists(ROWS, max_size=12), max_size=4),
    st.booleans(),
    st.integers(1, 8),
    st.integers(200, 600),
    st.sampled_from(DeleteKind),
    st.sampled_from([0, 1, 2, 8]),
    st.integers(0, 4),
)
def test_builder_equals_a_dict_of_the_last_rows(
    pieces: list[list[Row]],
    topics: bool,
    keys_max: int,
    bytes_max: int,
    kind: DeleteKind,
    words_max: int,
    merged_after: int,
) -> None:
    if kind is DeleteKind.EXPIRED:
        pieces = [[row for row in piece if row.sequence] for piece in pieces]
    last = {(row.topic if topics else "", row.key): row for piece in pieces for row in piece}
    names = [row.topic if topics else "" for piece in pieces for row in piece]
    expected = [
        (topic, key, row.publisher, row.sequence, row.order_stamp) if row.sequence else (topic, key, 0, 0, 0)
        for (topic, key), row in sorted(last.items(), key=lambda item: (names.index(item[0][0]), item[0][1]))
    ]
    deleted = sum(row.live and row.sequence > 0 for row in last.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(key_order, "_WORDS_MAX", words_max)
        patch.setattr(delete, "sow_delete_keys_max", keys_max)
        patch.setattr(delete, "sow_expiry_step_max", keys_max)
        builder = DeleteBuilder("all", bytes(16), kind)
        patch.setattr(delete_rows, "_SAMPLE_ROWS", 2)
        patch.setattr(delete_rows, "sow_delete_sort_rows", 4)
        for number, piece in enumerate(pieces):
            if number == merged_after:
                for _ in builder.merge():
                    pass
            add(builder, piece, topics=topics)
        patch.setattr(delete, "sow_delete_record_bytes_max", bytes_max)
        records = [builder.build()]
        while builder.count:
            records.append(builder.build())
        bodies = [encode(record) for record in records]
        decoded = [decode(body) for body in bodies]
        assert [row for record in decoded for row in rows_of(record, topics=topics)] == expected
        assert [record.encoded_bytes for record in records] == [len(body) for body in bodies]
        assert all(record.encoded_bytes <= bytes_max for record in records)
        assert all(record.count <= keys_max for record in records)
        assert [record.more for record in decoded] == [True] * (len(records) - 1) + [False]
        assert sum(record.counts.deleted for record in decoded) == deleted * (kind is DeleteKind.DELETED)
        assert [encode(record) for record in decoded] == bodies
        patch.setattr(delete, "sow_delete_record_bytes_max", 1 << 20)
        for record, following in pairwise(decoded):
            assert record.count == keys_max or size_with_first(record, following, last, topics) > bytes_max


def size_with_first(
    record: DeleteRecord, following: DeleteRecord, last: dict[tuple[str, bytes], Row], topics: bool
) -> int:
    """Return the size of a record with the first key of the next one."""
    names = [
        *zip(record.topics_between(0, record.count), record.keys(), strict=True),
        (following.topics_between(0, 1)[0], following.keys_between(0, 1)[0]),
    ]
    builder = DeleteBuilder("all", bytes(16), record.kind)
    add(builder, [last[topic if topics else "", key] for topic, key in names], topics=topics)
    found = builder.build()
    assert found.count <= record.count + 1
    return found.encoded_bytes
