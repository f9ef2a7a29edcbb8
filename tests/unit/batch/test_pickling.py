"""Copies of messages and batches: pickled for another process, copied in this one."""

from __future__ import annotations

import copy
import pickle
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

from tickertape.base.errors import UsageError
from tickertape.batch import Message, MessageBatch
from tickertape.batch.builders.builder import BatchBuilder
from tickertape.batch.queue_lease import AckAccumulator, Hold, Lease
from tickertape.client.bookmark_store import MemoryBookmarkStore
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.subscriptions.routing import SharedBatch


class UnusedSettler:
    def acknowledged(self, gathering: AckAccumulator) -> None:
        raise AssertionError

    settled = acknowledged


def batch_of(count: int, context: SubscriptionContext | None = None) -> MessageBatch:
    builder = BatchBuilder()
    for number in range(count):
        body = b"body %d" % number
        builder.add(f"t{number % 2}", body, correlation_id=f"c{number}", key="k", expiration_ms=5_000)
    batch = builder.build(publisher=7, first_sequence=10, timestamp=1_000_000)
    batch.context = context
    return batch


def leased() -> SubscriptionContext:
    settler: Any = UnusedSettler()
    lease = Lease("q", 60_000_000, once=False, hold=Hold(), gathering=AckAccumulator(), settling=settler)
    return SubscriptionContext("s", lease=lease)


FIELDS = (
    "data", "topic", "underlying_topic", "command", "sub_id", "bookmark", "timestamp", "publisher",
    "sequence", "correlation_id", "sow_key", "expiration", "lease_expires",
)  # fmt: skip


def shown(message: Message) -> list[object]:
    return [getattr(message, name) for name in FIELDS]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickled_message_keeps_all_fields(protocol: int) -> None:
    for context in (None, SubscriptionContext("s", True, True, "publish", MemoryBookmarkStore()), leased()):
        for message in batch_of(3, context):
            again = pickle.loads(pickle.dumps(message, protocol))
            assert isinstance(again, Message)
            assert shown(again) == shown(message)


def test_pickled_message_does_not_include_the_batch() -> None:
    message = next(iter(batch_of(10_000)))
    assert len(pickle.dumps(message)) < 1_000


def test_pickled_batch_is_equal() -> None:
    batch = batch_of(5, SubscriptionContext("s", True, True))
    batch.positions = np.arange(5, dtype=np.uint64)
    again = pickle.loads(pickle.dumps(batch))
    assert isinstance(again, MessageBatch)
    assert again.encode() == batch.encode()
    assert [shown(message) for message in again] == [shown(message) for message in batch]
    assert again.positions is not None
    assert again.positions.tolist() == [0, 1, 2, 3, 4]


def test_pickled_share_of_a_shared_batch_has_only_selected_messages() -> None:
    share = SharedBatch(batch_of(6)).share([1, 4], 0, SubscriptionContext("s", True))
    assert [message.data for message in pickle.loads(pickle.dumps(share))] == [b"body 1", b"body 4"]
    share = SharedBatch(batch_of(6)).share([1, 4], 0, SubscriptionContext("s", True))
    assert pickle.loads(pickle.dumps(list(share)[1])).bookmark == "7|14|"


def test_copied_message_in_the_same_process_is_the_same_object() -> None:
    batch = batch_of(2)
    message = next(iter(batch))
    for make in (copy.copy, copy.deepcopy):
        assert make(message) is message
        assert make(batch) is batch
    assert copy.deepcopy({"kept": [message]})["kept"][0] is message


def test_pickled_message_cannot_be_discarded_where_the_original_can() -> None:
    batch = batch_of(1, SubscriptionContext("s", True, store=MemoryBookmarkStore()))
    with pytest.raises(UsageError, match="Discard the original"):
        pickle.loads(pickle.dumps(next(iter(batch)))).discard()
    with pytest.raises(UsageError, match="Discard the original"):
        pickle.loads(pickle.dumps(batch)).discard()
    assert pickle.loads(pickle.dumps(next(iter(batch_of(1))))).discard() is False


@pytest.mark.parametrize("action", ["ack", "cancel", "expire"])
def test_pickled_message_of_a_queue_cannot_be_settled(action: str) -> None:
    batch = batch_of(1, leased())
    for one in (batch, next(iter(batch))):
        again = pickle.loads(pickle.dumps(one))
        assert again.lease_expires == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)
        with pytest.raises(UsageError, match="a copied message of queue 'q'"):
            getattr(again, action)()
