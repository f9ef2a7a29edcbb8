"""Deliveries for several subscriptions: shares, credit, and malformed routes."""

from __future__ import annotations

import gc
import struct
import weakref
from random import Random

import numpy as np
import pytest

from tests.unit.client.peer import Named, Peer
from tickertape.base.errors import BadCommand, CorruptBatch
from tickertape.base.limits import combined_subscriptions_max
from tickertape.batch import BatchBuilder, MessageBatch, Stamp, batch_from_bodies, merge, select
from tickertape.client.common.effects import DeliverBatch, DeliverShared, End, EndConnection, OrderTogether
from tickertape.client.common.request import SubscriptionContext
from tickertape.client.common.subscribe_arguments import make_request
from tickertape.client.limits import credit_linger_seconds
from tickertape.client.subscriptions import routing as shares
from tickertape.client.subscriptions.routing import BatchView, RouteCache, in_order, routes_of
from tickertape.wire.commands import Ack, Credit, Credits, Deliver, Resume, Unsubscribe

CONTEXT = SubscriptionContext(sub_id="a", with_bookmark=True, with_timestamp=True)


def wide(count: int = 6) -> MessageBatch:
    """Return messages of two publishers and topics with all optional fields."""
    parts = []
    for publisher in (3, 4):
        builder = BatchBuilder()
        for i in range(count // 2):
            builder.add(
                f"topic-{i % 2}",
                b"%d-%d" % (publisher, i),
                expiration_ms=i,
                correlation_id=f"c{i}",
                key=f"k{i}",
            )
        parts.append(builder.build(publisher=publisher, first_sequence=10))
    return merge(parts, [Stamp(3, 10, 1_000_000), Stamp(4, 10, 2_000_000)])


def deliver(**rows: list[int]) -> Deliver:
    return Deliver(
        next=9,
        sub_ids=tuple(rows),
        counts=np.array([len(own) for own in rows.values()], "<u4").tobytes(),
        indices=np.array([row for own in rows.values() for row in own], "<u4").tobytes(),
    )


def share_of(batch: MessageBatch, rows: list[int]) -> MessageBatch:
    cost = select(batch, np.array(rows)).cost
    return RouteCache().add(batch).share(rows, cost, CONTEXT)


def shown(batch: MessageBatch) -> list[tuple[object, ...]]:
    return [
        (
            m.data, m.topic, m.bookmark, m.timestamp, m.publisher, m.sequence, m.correlation_id, m.sow_key,
            m.expiration, m.sub_id,
        )
        for m in batch
    ]  # fmt: skip


# -- shares -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [[0], [1, 4], [2, 3], [0, 2, 5], [0, 1, 2, 3, 4, 5]])
def test_share_equals_the_batch_of_the_selected_messages(rows: list[int]) -> None:
    whole = wide()
    plain = select(whole, np.array(rows))
    expected = MessageBatch.parse(plain.encode())
    expected.context = CONTEXT
    as_view, as_table = share_of(whole, rows), share_of(whole, rows)
    assert shown(as_view) == shown(expected)
    assert (len(as_view), as_view.cost) == (len(rows), expected.cost)
    assert [as_view.body(i) for i in range(len(rows))] == expected.bodies_list()
    assert as_table.encode() == expected.encode()
    assert as_table.to_arrow().equals(expected.to_arrow())
    as_table.verify()
    assert shown(as_table) == shown(expected)
    assert as_table.cost == expected.cost
    assert whole.context is None


def test_share_is_a_view_until_a_table_is_requested() -> None:
    share = share_of(wide(), [1, 4])
    assert isinstance(share, BatchView)
    messages = list(share)
    assert "bodies" not in share.__dict__
    assert share.topics == ("topic-1",)
    assert "bodies" in share.__dict__
    assert [message.bookmark for message in messages] == ["3|11|", "4|11|"]
    with pytest.raises(IndexError):
        share.body(2)
    with pytest.raises(AttributeError, match="no attribute 'colour'"):
        share.colour  # noqa: B018 - the access must raise


def test_shares_of_old_batches_are_copied_to_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = batch_from_bodies("orders", [b"x" * 1000] * 10, publisher=3, first_sequence=1)
    monkeypatch.setattr(shares, "shared_batches_bytes_max", 6 * batch.nbytes)
    recent = RouteCache()
    kept, seen = [], []
    for _ in range(6):
        whole = MessageBatch.parse(batch.encode())
        shared = recent.add(whole)
        kept.append([shared.share(rows, 2 * 1032, CONTEXT) for rows in ([0, 5], [3, 4])])
        seen.append(weakref.ref(shared))
        del whole, shared
    gc.collect()
    alive = [reference() is not None for reference in seen]
    assert alive == [False, False, False, True, True, True]
    for both in kept:
        for share, sequences in zip(both, ([1, 6], [4, 5]), strict=True):
            assert [m.sequence for m in share] == sequences
            assert share.bodies_list() == [b"x" * 1000] * 2
            assert share.bodies.nbytes == 2000
            assert len(memoryview(share.bodies.obj).cast("B")) < 3000


def test_in_order_puts_rows_in_the_order_of_the_batch() -> None:
    assert in_order([[0, 3], [1, 3, 4], []]) == [(0, 0), (1, 1), (3, 0), (3, 1), (4, 1)]


# -- malformed deliveries -----------------------------------------------------------------------------


def u4(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (Deliver(sub_ids=("a", "b"), counts=u4(1), indices=u4(0, 1, 2)), "2 subscriptions and 4 bytes"),
        (Deliver(sub_ids=("a",), counts=b"\1\0\0", indices=u4(0)), "1 subscriptions and 3 bytes"),
        (Deliver(sub_ids=("a",), counts=u4(1), indices=b"\0\0\0"), "bytes of counts"),
        (
            Deliver(sub_ids=("a", "b"), counts=u4(2, 2), indices=u4(0, 1, 2)),
            "add up to 4, but it has 3 indices",
        ),
        (Deliver(sub_ids=("a", "b"), counts=u4(2**32 - 1, 2**32 - 1), indices=u4(0, 1, 2)), "add up to"),
        (Deliver(sub_ids=("a", "b"), counts=u4(3, 0), indices=u4(0, 1, 2)), "add up to"),
        (Deliver(sub_ids=("a", "b"), counts=u4(2, 1), indices=u4(1, 0, 2)), "do not increase"),
        (Deliver(sub_ids=("a", "b"), counts=u4(2, 1), indices=u4(1, 1, 2)), "do not increase"),
        (Deliver(sub_ids=("a", "b"), counts=u4(2, 1), indices=u4(0, 3, 2)), "within the 3 messages"),
        (Deliver(sub_ids=("a", "b"), counts=u4(2, 1), indices=u4(0, 2**31, 2)), "within the 3 messages"),
        (Deliver(sub_ids=("a", "a"), counts=u4(2, 1), indices=u4(0, 1, 2)), "a subscription twice"),
        (Deliver(sub_ids=("a", "b"), counts=u4(1, 1), indices=u4(0, 1)), "a message has no subscription"),
        (Deliver(sub_ids=("a",), counts=u4(0), indices=b""), "add up to 0"),
        (Deliver(sub_id="a", sub_ids=("a",), counts=u4(3), indices=u4(0, 1, 2)), "one subscription and sev"),
        (Deliver(sub_id="a", counts=u4(3), indices=u4(0, 1, 2)), "one subscription and sev"),
    ],
)
def test_malformed_delivery_ends_the_connection(command: Deliver, says: str) -> None:
    peer = subscribed("a", "b")
    peer.say(command, batch_from_bodies("orders", [b"1", b"2", b"3"], publisher=3, first_sequence=1))
    (hangup,) = peer.took(EndConnection)
    assert isinstance(hangup.error, BadCommand)
    assert says in str(hangup.error)
    assert not peer.took(DeliverShared)
    assert not peer.took(DeliverBatch)


def test_random_routes_are_valid_or_raise_bad_command() -> None:
    batch = batch_from_bodies("orders", [b"1", b"22", b"333"], publisher=3, first_sequence=1)
    rng = Random(7)
    good = bad = 0
    for _ in range(2000):
        ids = tuple("abc"[: rng.randrange(1, 4)])
        drawn = [sorted(rng.sample(range(3), rng.randrange(1, 4))) for _ in ids]
        numbers = [row for own in drawn for row in own]
        counts = [len(own) for own in drawn]
        for changed in (numbers, counts):
            if rng.random() < 0.4:
                changed[rng.randrange(len(changed))] = rng.choice([0, 1, 2, 3, 2**31, 2**32 - 1])
        try:
            routes = routes_of(Deliver(sub_ids=ids, counts=u4(*counts), indices=u4(*numbers)), batch)
        except BadCommand:
            bad += 1
            continue
        good += 1
        for _, rows, cost in routes:
            assert cost == select(batch, np.array(rows)).cost
        assert {row for _, rows, _ in routes for row in rows} == {0, 1, 2}
    assert good > 100
    assert bad > 100


# -- in the protocol machine --------------------------------------------------------------------------


def subscribed(*sub_ids: str, depth: int = 1000) -> Peer:
    peer = Peer().connect()
    for number, sub_id in enumerate(sub_ids):
        request = make_request("orders", sub_id, bookmark="0", depth=depth)
        peer.core.subscribe(Named(f"subscribe {sub_id}"), request, Named(f"sink {sub_id}"))
        peer.say(Ack(id=number + 1, start=0))
    peer.sent()
    return peer


def test_each_sink_gets_a_share_and_returns_the_credit() -> None:
    peer = subscribed("a", "b", "c")
    batch = batch_from_bodies("orders", [b"x" * 68] * 6, publisher=3, first_sequence=1)
    peer.say(deliver(a=[0, 2, 3, 4, 5], gone=[0], b=[1, 2]), batch)
    ((_, parts),) = peer.took(DeliverShared)
    assert [(sink, [m.sequence for m in share], rows) for sink, share, rows in parts] == [
        ("sink a", [1, 3, 4, 5, 6], [0, 2, 3, 4, 5]),
        ("sink b", [2, 3], [1, 2]),
    ]
    assert [message.sub_id for _, share, _ in parts for message in share] == ["a"] * 5 + ["b"] * 2
    for sink, share, _ in parts:
        peer.core.consumed(str(sink)[5:], share.cost)
    assert peer.sent() == [(Credit(sub_id="a", bytes=500), None)]
    peer.later(credit_linger_seconds)
    assert peer.sent() == [(Credit(sub_id="b", bytes=200), None)]


def test_credit_of_several_subscriptions_is_returned_in_one_command() -> None:
    names = [f"n{number}" for number in range(300)]
    peer = subscribed(*names)
    batch = batch_from_bodies("orders", [b"x" * 68], publisher=3, first_sequence=1)
    peer.say(deliver(**{name: [0] for name in names}), batch)
    for name in names:
        peer.core.consumed(name, 100)
    assert peer.sent() == []
    peer.later(credit_linger_seconds)
    (first, _), (second, _) = peer.sent()
    assert isinstance(first, Credits)
    assert isinstance(second, Credits)
    assert first.sub_ids + second.sub_ids == tuple(names)
    assert first.bytes + second.bytes == (100,) * 300
    assert len(first.sub_ids) == combined_subscriptions_max


def test_damaged_batch_ends_all_receiving_subscriptions() -> None:
    peer = subscribed("a", "b", "c")
    damaged = bytearray(batch_from_bodies("orders", [b"x" * 68] * 8, publisher=3, first_sequence=1).encode())
    damaged[-100] ^= 1
    peer.say(deliver(a=[0, 1, 2, 3], b=[4, 5, 6, 7]), MessageBatch.parse(damaged))
    ends = peer.took(End)
    assert [(end.sink, end.reason, type(end.error)) for end in ends] == [
        ("sink a", "corrupt_batch", CorruptBatch),
        ("sink b", "corrupt_batch", CorruptBatch),
    ]
    assert [command for command, _ in peer.sent()] == [
        Unsubscribe(id=4, sub_ids=("a",)),
        Unsubscribe(id=5, sub_ids=("b",)),
    ]


def test_subscriptions_resumed_by_one_command_are_joined_after_the_answer() -> None:
    peer = subscribed("a", "b", "c")
    peer.core.resume(Named("r"), ("a", "c", "a"))
    peer.core.resume(Named("s"), ("b",))
    assert [command for command, _ in peer.sent()] == [
        Resume(id=4, sub_ids=("a", "c", "a")),
        Resume(id=5, sub_ids=("b",)),
    ]
    assert peer.took(OrderTogether) == []
    peer.say(Ack(id=4))
    peer.say(Ack(id=5))
    assert peer.took(OrderTogether) == [OrderTogether([Named("sink a"), Named("sink c")])]


def test_credit_return_waits_for_a_pause_in_deliveries() -> None:
    peer = subscribed("a", "b", depth=100_000)
    batch = batch_from_bodies("orders", [b"x" * 68] * 2, publisher=3, first_sequence=1)
    for _ in range(20):
        peer.say(deliver(a=[0], b=[1]), batch)
        peer.core.consumed("a", 100)
        peer.later(credit_linger_seconds / 2)
    assert peer.sent() == []
    peer.later(credit_linger_seconds)
    assert peer.sent() == [(Credit(sub_id="a", bytes=2000), None)]
