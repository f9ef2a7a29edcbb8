"""Tests of SOW topics in the engine: keys at the intake, the fold of the log, restart and back-pressure."""

from __future__ import annotations

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, publish, rejected, send
from tickertape.batch import MessageBatch
from tickertape.batch.format import Int64s
from tickertape.engine.limits import fold_step_rows_max, sow_key_check_rows_max, state_lag_bytes_max
from tickertape.engine.runtime.effects import PauseReading, ResumeReading
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow.state.delete import DeleteBuilder, DeleteKind, DeleteRecord
from tickertape.engine.sow.topic import RowKeys, StateTopic
from tickertape.wire.commands import Sow
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete

ORDERS = SowDefinition("orders", key=("/id",))
_ENCODE = msgspec.msgpack.encode


def body(key: object, value: object = 0) -> bytes:
    return msgspec.json.encode({"id": key, "v": value})


def test_state_has_the_last_message_of_each_key() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1, "a")), ("orders", body(2, "b")), ("orders", body(1, "c"))])
    publish(peer, [("orders", body(2, "d")), ("orders", body("2", "e"))])
    world.settle()
    assert world.records("orders") == {
        _ENCODE(1): body(1, "c"), _ENCODE(2): body(2, "d"), _ENCODE("2"): body("2", "e")
    }  # fmt: skip
    assert world.broker.states.fold.folded == world.broker.journal.commits.persisted_end


def test_message_without_a_key_is_refused_and_the_rest_of_the_frame_stored() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    bad = [b"{}", b'{"id":null}', b'{"id":[1]}', b"no json"]
    publish(
        peer, [("orders", body(1)), *(("orders", one) for one in bad), ("other", b"{}"), ("orders", body(2))]
    )
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == ("bad_sow_key", (2, 3, 4, 5))
    assert "they have no valid key" in refusal.text
    assert [heard.body for heard in world.log("orders")] == [body(1), body(2)]
    assert world.records("orders") == {_ENCODE(1): body(1), _ENCODE(2): body(2)}
    assert world.state("orders").refused == len(bad)
    assert peer.acked_sequence == 7


def test_frame_of_bad_messages_only_is_refused_whole() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", b"{}"), ("orders", b"[]")])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.sequence, refusal.refused) == ("bad_sow_key", 2, ())
    assert not world.log()


def test_resent_message_without_a_key_is_a_duplicate_and_not_refused() -> None:
    world = SowEngine()
    peer = world.connect("p")
    publish(peer, [("orders", b"{}"), ("orders", body(1))])
    world.settle()
    world.reopen(ORDERS)
    again = world.connect("p")
    again.next_sequence = 1
    publish(again, [("orders", b"{}"), ("orders", body(1)), ("orders", body(2))])
    world.settle()
    assert not rejected(again)
    assert again.acked_sequence == 3
    assert world.records("orders") == {_ENCODE(1): body(1), _ENCODE(2): body(2)}


def test_message_key_on_a_topic_with_generated_keys_is_refused() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(1)), ("orders", body(2)), ("orders", b"{}")], keys=["", "k", "k"])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == ("bad_sow_key", (2, 3))
    assert "it has a message key, and the topic has generated keys" in refusal.text
    assert world.records("orders") == {_ENCODE(1): body(1)}


@pytest.mark.parametrize("large", [False, True])
def test_lost_refusal_of_a_message_without_a_key_is_repeated(large: bool) -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    more = [("orders", body(1))] * (sow_key_check_rows_max if large else 1)
    publish(peer, [("orders", b"{}"), *more])
    world.settle()
    again = world.connect("p")
    again.next_sequence = 1
    publish(again, [("orders", b"{}"), *more, ("orders", body(2))])
    world.settle()
    (refusal,) = rejected(again)
    assert (refusal.code, refusal.refused) == ("bad_sow_key", (1,))
    assert again.acked_sequence == len(more) + 2
    assert world.records("orders") == {_ENCODE(1): body(1), _ENCODE(2): body(2)}
    assert len(world.log()) == len(more) + 1


@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("delta", [False, True])
def test_resent_frame_of_a_stored_and_a_refused_message_is_answered_like_the_first(
    delta: bool, between: bool
) -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    world.broker.states.message_bytes_max = 200
    large = msgspec.json.encode({"id": 1, "w": "y" * 150})  # with the message before
    rows = [("orders", body(1, "x" * 150)), ("orders", large if delta else b"{}")]
    sequence = send(peer, rows, deltas=[1] if delta else [])
    world.settle()
    again = world.connect("p")
    if between:
        publish(world.connect("other"), [("orders", body(5))] * 3)
    send(again, rows, deltas=[1] if delta else [], first=sequence)
    send(again, [SowDelete(topic="orders", filter="/id = 1")], first=sequence + 2)
    world.settle()
    (first,), (second,) = rejected(peer), rejected(again)
    assert (second.code, second.refused) == (first.code, first.refused) == (first.code, (2,))
    assert again.acked_sequence == sequence + 2
    assert world.records("orders") == ({_ENCODE(5): body(5)} if between else {})
    assert not len(world.broker.states.accepted_rows)


def test_messages_without_a_key_from_before_the_configuration_are_counted() -> None:
    world = SowEngine()
    peer = world.connect("p")
    publish(peer, [("orders", b"{}"), ("orders", body(1)), ("orders", b"null")])
    world.settle()
    world.reopen(ORDERS)
    assert world.state("orders").fold.unkeyed == 2
    assert world.records("orders") == {_ENCODE(1): body(1)}


def test_state_after_a_restart_equals_the_state_before() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    for number in range(50):
        publish(peer, [("orders", body(key % 17, number)) for key in range(number)] or [("orders", body(99))])
    world.settle()
    before = world.records("orders")
    assert len(before) == 18
    world.reopen()
    assert world.records("orders") == before


def test_frame_with_several_topics_changes_each_state() -> None:
    world = SowEngine(ORDERS, SowDefinition("trades", key=("/id", "/v")))
    peer = world.connect("p")
    publish(
        peer,
        [
            ("trades", body(1, 1)),
            ("orders", body(1, 1)),
            ("other", b"x"),
            ("trades", body(1, 2)),
            ("orders", body(1, 2)),
        ],
    )
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, 2)}
    assert world.records("trades") == {_ENCODE([1, 1]): body(1, 1), _ENCODE([1, 2]): body(1, 2)}


def test_state_over_a_pattern_keeps_keys_of_different_topics_apart() -> None:
    world = SowEngine(SowDefinition("all", key=("/id",), pattern="^p/"))
    peer = world.connect("p")
    publish(peer, [("p/a", body(1, 1)), ("p/b", body(1, 2)), ("q/a", body(1, 3)), ("all", body(1, 4))])
    world.settle()
    assert world.records("all") == {
        _ENCODE(["p/a", 1]): body(1, 1), _ENCODE(["p/b", 1]): body(1, 2), _ENCODE(["all", 1]): body(1, 4)
    }  # fmt: skip


def test_explicit_keys_are_the_message_keys() -> None:
    world = SowEngine(SowDefinition("orders"))
    peer = world.connect("p")
    publish(
        peer,
        [("orders", b"a"), ("orders", b"b"), ("orders", b"c"), ("orders", b"d")],
        keys=["k1", "", "k1", "k,2"],
    )
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == ("bad_sow_key", (2, 4))
    assert world.records("orders") == {_ENCODE("k1"): b"c"}


def test_publisher_ahead_of_the_fold_is_not_read_until_the_fold_follows() -> None:
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    peer, other = world.connect("p"), world.connect("other")
    large = [
        ("orders", msgspec.json.encode({"id": n, "text": "x" * 480})) for n in range(2 * fold_step_rows_max)
    ]
    frames = 0
    while not world.pauses:
        publish(peer, large)
        while world.jobs:
            world.run_job()
        frames += 1
        assert frames < 40
    publish(other, [("unkept", b"{}")])
    assert world.pauses == [PauseReading(peer.conn, "state")]
    assert world.broker.states.fold.lag_bytes > state_lag_bytes_max
    world.settle()
    assert world.pauses == [PauseReading(peer.conn, "state"), ResumeReading(peer.conn, "state")]
    assert len(world.records("orders")) == len(large)


def record_of(world: SowEngine, kind: DeleteKind, *keys: int) -> DeleteRecord:
    """Return a delete or expiry record that names the current messages of keys."""
    fold = world.state("orders").fold
    names = [_ENCODE(key) for key in keys]
    slots = fold.keys.find(names)
    rows = fold.records.rows(slots)
    builder = DeleteBuilder("orders", world.state("orders").key_fingerprint, kind)
    builder.add(names, fold.records.publishers.ids(rows.publishers), rows.sequences, rows.order_stamps)
    return builder.build(len(keys), len(keys))


def test_delete_removes_the_messages_that_the_record_names() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(100)])
    world.settle()
    named = record_of(world, DeleteKind.DELETED, *range(60))
    publish(peer, [("orders", body(7, "later"))])
    world.write_delete(named)
    kept = {_ENCODE(key): body(key) for key in range(60, 100)} | {_ENCODE(7): body(7, "later")}
    assert world.records("orders") == kept
    assert world.state("orders").fold.deleted == 59
    world.reopen()
    assert world.records("orders") == kept


def test_expiry_of_a_replaced_message_changes_nothing() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",), expiration="enabled"))
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(3)])
    world.settle()
    named = record_of(world, DeleteKind.EXPIRED, 0, 1)
    publish(peer, [("orders", body(1, "later"))])
    world.write_delete(named)
    assert world.records("orders") == {_ENCODE(1): body(1, "later"), _ENCODE(2): body(2)}
    assert world.state("orders").fold.expired == 1


def test_delete_within_a_commit_precedes_later_messages_of_the_commit() -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(key)) for key in range(50)])
    world.settle()
    named = record_of(world, DeleteKind.DELETED, *range(50))
    publish(peer, [("orders", body(0, "first"))])  # this commit is in flight, and the next one has the rest
    publish(peer, [("orders", body(2, "before"))])
    world.append_delete(named)
    publish(peer, [("orders", body(1, "second")), ("orders", body(1, "third"))])
    world.settle()
    (commit,) = [part for part in world.broker.journal.view.tail if SOW_TOPIC in part.batch.topics]
    assert commit.batch.count == 4
    assert world.records("orders") == {
        _ENCODE(0): body(0, "first"), _ENCODE(1): body(1, "third"), _ENCODE(2): body(2, "before")
    }  # fmt: skip


def test_damaged_delete_stops_the_states_and_no_publisher_waits() -> None:
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    peer, reader = world.connect("p"), world.connect("reader")
    publish(peer, [("orders", body(1))])
    world.settle()
    world.write_broken_delete()
    assert [event.name for event in world.told] == ["sow_stopped"]
    large = [("orders", msgspec.json.encode({"id": n, "text": "x" * 480})) for n in range(4_096)]
    while world.broker.journal.commits.persisted_end < 16 * len(large):
        publish(peer, large)
        world.settle()
    assert world.broker.states.fold.lag_bytes == 0
    assert not world.pauses
    assert len(world.broker.states.accepted_rows) == 0
    send(peer, [SowDelete(topic="orders", canonical=(_ENCODE(1),)), ("orders", body(1))], deltas=[1])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, len(refusal.refused)) == ("journal_corrupt", 0)
    assert "`tickertape journal verify`" in refusal.text
    reader.marks["q"] = []
    reader.send(Sow(id=1, sub_id="q", topic="orders", credit=4096))
    world.settle()
    assert reader.marks["q"] == ["ended journal_corrupt"]


@pytest.mark.parametrize("explicit", [False, True])
def test_keys_of_a_large_frame_are_checked_in_pieces(explicit: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = StateTopic.read_keys

    def reading(self: StateTopic, batch: MessageBatch, rows: Int64s) -> RowKeys:
        sizes.append(len(rows))
        return read(self, batch, rows)

    monkeypatch.setattr(StateTopic, "read_keys", reading)
    world = SowEngine(SowDefinition("orders", key=() if explicit else ("/id",)), segment_bytes=64 << 20)
    peer = world.connect("p")
    count = 3 * sow_key_check_rows_max
    bad = 2 * sow_key_check_rows_max + 1
    messages = [("orders", b"{}" if row == bad else b'{"id":%d}' % row) for row in range(count)]
    keys = ["" if row == bad else f"k{row}" for row in range(count)]
    publish(peer, messages, keys=keys if explicit else ())
    publish(peer, [("plain", b"behind")])
    assert world.broker.journal.commits.accepted_end == 0, "later frames wait"
    world.settle()
    assert sizes == [sow_key_check_rows_max] * 3
    assert [refusal.refused for refusal in rejected(peer)] == [(bad + 1,)]
    assert len(world.records("orders")) == count - 1
    (behind,) = world.log("plain")
    assert behind.sequence == count + 1
    assert peer.acked_sequence == count + 1


@pytest.mark.parametrize("sequenced", [False, True])
def test_large_frame_of_a_connection_that_closes_is_stored_only_without_sequences(sequenced: bool) -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",)), segment_bytes=64 << 20)
    peer = world.connect("p")
    count = 3 * sow_key_check_rows_max
    send(peer, [("orders", b'{"id":%d}' % row) for row in range(count)], sequenced=sequenced)
    world.broker.disconnected(peer.conn)
    world.collect()
    world.settle()
    assert len(world.records("orders")) == (0 if sequenced else count)


def test_large_frame_with_a_delete_is_searched_behind_the_check_of_keys() -> None:
    world = SowEngine(SowDefinition("orders", key=("/id",)), segment_bytes=64 << 20)
    peer = world.connect("p")
    count = 2 * sow_key_check_rows_max
    rows: list[tuple[str, bytes] | SowDelete] = [("orders", b'{"id":%d}' % row) for row in range(count)]
    send(peer, [*rows, SowDelete(topic="orders", filter="/id > 5")])
    publish(peer, [("orders", b'{"id":"behind"}')])
    world.settle()
    assert len(world.records("orders")) == 7
