"""Batches for tables: records of a result, and messages after it.

Must never compute keys by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tickertape.batch.encode import batch_from_bodies
from tickertape.batch.message_batch import MessageBatch
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.sow.record_batch import RecordBatch
from tickertape.client.sow.record_keys import RecordKeys, keys_of
from tickertape.wire.commands import GroupBegin
from tickertape.wire.sow_command import encode_marks

Row = tuple[int, int]
"""Id and sequence of a message."""


def body(identifier: int, sequence: int, padding: int = 0) -> bytes:
    """Return the body of a message. Its size depends on the sequence."""
    fields = {"id": identifier, "n": sequence, "pad": "x" * (padding + sequence % 3 * 50)}
    return msgspec.json.encode(fields)


def group(topic: str = "t", **fields: Any) -> RecordKeys:
    """Return the keys of a query of one SOW topic with the key `/id`."""
    values: dict[str, Any] = {"key": ("/id",), "domain": "t", "pattern": "", "explicit": False}
    begin = GroupBegin(sub_id="q", topic=topic, as_of="0", position=0, **(values | fields))
    return keys_of([begin], whole=True)


KEYS = group()


def key(identifier: int) -> str:
    """Return the key of a record of topic `t`."""
    found = KEYS.key("t", body(identifier, 0))
    assert found is not None
    return found


def messages(
    rows: Sequence[Row],
    *,
    topic: str = "t",
    keys: RecordKeys = KEYS,
    command: str = "publish",
    padding: int = 0,
) -> MessageBatch:
    """Return messages of one publisher. The sequences of a batch with several rows must rise by one."""
    bodies = [body(*row, padding) for row in rows]
    batch = batch_from_bodies(topic, bodies, publisher=7, first_sequence=rows[0][1])
    batch.context = SubscriptionContext("q", with_bookmark=True, command=command, sow_keys=keys)
    return batch


def records(rows: Sequence[Row], *, topic: str = "t", keys: RecordKeys = KEYS) -> MessageBatch:
    """Return records of a result. Their sequences are as given."""
    bodies = [body(*row) for row in rows]
    marks = encode_marks([7] * len(rows), [row[1] for row in rows], [0] * len(rows))
    batch = RecordBatch(batch_from_bodies(topic, bodies), marks)
    batch.context = SubscriptionContext("q", with_bookmark=True, command="sow", sow_keys=keys)
    return batch
