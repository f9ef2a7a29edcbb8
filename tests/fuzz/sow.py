"""Fuzz targets of the state of the world: records of deleted keys, and merges of deltas.

Must never catch more than the allowed errors.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import groupby, pairwise
from typing import Final

import numpy as np

from tests.fuzz.bodies import BODY_TARGETS, short
from tests.fuzz.target import Target, taken
from tickertape.base.errors import JournalCorrupt
from tickertape.engine.sow.state.delete import (
    DeleteBuilder,
    DeleteKind,
    decode,
    encode,
)
from tickertape.engine.sow.state.merge import Merger
from tickertape.payload import Unreadable, message_type


def sow_delete(data: bytes) -> str:
    """Decode a record: `JournalCorrupt`, or one with ordered keys whose parts can all be read."""
    record = decode(data)
    with taken():
        keys, topics = record.keys(), record.topics_between(0, record.count)
        assert len(keys) == len(topics) == record.count
        assert sum(map(len, keys)) == len(record.key_bytes)
        for _, group in groupby(zip(topics, keys, strict=True), key=lambda row: row[0]):
            assert all(low < high for (_, low), (_, high) in pairwise(group))
        assert len(set(zip(topics, keys, strict=True))) == record.count
        publishers = record.publishers_between(0, record.count)
        assert ((publishers != 0) <= (record.sequences != 0)).all()
        assert all(len(record.logs[number - 1]) == 16 for number in record.log_numbers.tolist() if number)
        body = encode(record)
        assert record.encoded_bytes == len(body)
        assert encode(decode(body)) == body
    return record.kind.name


def _records() -> Sequence[bytes]:
    bodies = []
    for kind, topics in ((DeleteKind.DELETED, ["a", "b", "b"]), (DeleteKind.EXPIRED, None)):
        builder = DeleteBuilder("orders", bytes(16), kind)
        builder.add(
            [b"\xa3IBM", b"\xa4MSFT", b"\xa4MSFU"],
            np.array([5, 6, 5], np.uint64),
            np.array([1, 2, 3 * (kind is DeleteKind.EXPIRED)], np.uint64),
            np.array([10, 20, 30], np.int64),
            topics=topics,
        )
        bodies.append(encode(builder.build()))
    return [*bodies, encode(DeleteBuilder("orders", bytes(16)).build(0, 5))]


_BETWEEN: Final = b"|then|"


def merge(name: str, data: bytes) -> str:
    """Merge the second part of an input into the first: a body of the type, which the same delta keeps."""
    old, _, delta = data.partition(_BETWEEN)
    merger = Merger(name)
    try:
        result = merger.merge(old, delta)
    except Unreadable as error:
        short(error)
        raise
    with taken():
        message_type(name).check(result)
        assert len(result) <= 6 * (len(old) + len(delta)) + 16
        if name != "messagepack":  # whose maps may have a name that does not equal itself
            once = merger.merge(result, delta)
            assert merger.merge(once, delta) == once
    return "the delta" if result is delta else "merged"


def _pairs(name: str) -> Callable[[], Sequence[bytes]]:
    def pairs() -> Sequence[bytes]:
        bodies = BODY_TARGETS[name].seeds()
        return [old + _BETWEEN + delta for old in bodies for delta in bodies]

    return pairs


SOW_TARGETS: Final[dict[str, Target]] = {
    "sow_delete": Target(sow_delete, _records, allowed=(JournalCorrupt,)),
    **{
        f"merge_{name}": Target(
            functools.partial(merge, name),
            _pairs(name),
            words=BODY_TARGETS[name].words,
            cost=4,
            allowed=(Unreadable,),
        )
        for name in ("json", "messagepack", "bson", "fix")
    },
}
