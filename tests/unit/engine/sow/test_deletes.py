"""Tests of deletes of records: selection, order, answers, resends, refusals and bounds."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from tests.helpers.sow_engine import SowEngine, deleted, publish, rejected, send
from tests.simulation.engine_peer import Peer
from tests.simulation.journal_world import read_log
from tickertape.base.errors import JournalFull
from tickertape.base.limits import sow_searches_per_frame_max
from tickertape.engine.limits import (
    sow_delete_round_rows,
    sow_deletes_per_frame_max,
)
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import commands
from tickertape.engine.sow.accepted import Overlay
from tickertape.engine.sow.accepted_row import AcceptedRow
from tickertape.engine.sow.state import delete as delete_module
from tickertape.engine.sow.state.delete import DeleteBuilder, decode
from tickertape.journal.retention import RetentionPolicy
from tickertape.payload.canonical import generated_key
from tickertape.wire.commands import Deleted, Persisted
from tickertape.wire.sow_command import SOW_TOPIC, SowDelete

ORDERS = SowDefinition("orders", key=("/id",))
_ENCODE = msgspec.msgpack.encode
_DECODE = msgspec.msgpack.decode


def body(key: object, value: object = 0) -> bytes:
    return msgspec.json.encode({"id": key, "v": value})


def by_keys(*keys: object, topic: str = "orders") -> SowDelete:
    return SowDelete(topic=topic, canonical=tuple(map(_ENCODE, keys)))


def filled(world: SowEngine, count: int, name: str = "p") -> Peer:
    """Return a client that published records with keys and values below `count`."""
    peer = world.connect(name)
    publish(peer, [("orders", body(key, key)) for key in range(count)])
    world.settle()
    return peer


def left(world: SowEngine) -> set[object]:
    """Return the key values of all records."""
    return {_DECODE(key) for key in world.records("orders")}


def test_delete_by_keys_removes_records_and_is_answered_before_the_acknowledgement() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 5)
    sequence = send(peer, [by_keys(1, 3, "unknown", 3)])
    assert not deleted(peer)
    assert left(world) == {0, 1, 2, 3, 4}
    world.settle()
    assert left(world) == {0, 2, 4}
    assert deleted(peer) == [
        Deleted(frame=2, sequence=sequence, matches=2, topic_matches=5, deleted=2, position=6)
    ]
    assert [type(command) for command, _ in peer.received[-2:]] == [Deleted, Persisted]
    (stored,) = world.log(SOW_TOPIC)
    assert stored.sequence == sequence
    assert decode(stored.body).sequences.tolist() == [2, 4, 0]


def test_delete_without_sequences_is_answered_by_the_number_in_the_frame() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3)
    send(peer, [("orders", body(7)), by_keys(7), by_keys(1)], sequenced=False)
    world.settle()
    assert left(world) == {0, 2}
    assert [(answer.frame, answer.sequence, answer.deleted) for answer in deleted(peer)] == [
        (2, 1, 1), (2, 2, 1)
    ]  # fmt: skip


def test_delete_by_data_removes_the_record_that_the_data_would_replace() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3)
    send(peer, [SowDelete(topic="orders", data=body(1.0, "any"))])
    world.settle()
    assert left(world) == {0, 2}


def test_delete_by_names_finds_generated_keys_of_records_and_of_messages_in_flight() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 5_000)
    names = tuple(generated_key("orders", _ENCODE(key)) for key in (7, 4_999, "new", "none"))
    publish(peer, [("orders", body("new"))])
    send(peer, [SowDelete(topic="orders", keys=names)])
    world.settle()
    assert left(world) == set(range(5_000)) - {7, 4_999}
    assert [answer.deleted for answer in deleted(peer)] == [3]


def test_delete_by_explicit_keys_removes_these_records() -> None:
    world = SowEngine(SowDefinition("orders"))
    peer = world.connect("p")
    publish(peer, [("orders", b"1"), ("orders", b"2")], keys=["k1", "k2"])
    send(peer, [SowDelete(topic="orders", keys=("k2", "k3"))])
    world.settle()
    assert left(world) == {"k1"}


def test_delete_by_data_with_explicit_keys_is_refused_with_one_cure() -> None:
    world = SowEngine(SowDefinition("orders"))
    peer = world.connect("p")
    send(peer, [SowDelete(topic="orders", data=b"1")])
    world.settle()
    (refusal,) = rejected(peer)
    assert refusal.code == "bad_sow_key"
    assert refusal.text.endswith("explicit keys, and data contains no key. Delete by keys or by filter.")


def test_delete_over_a_pattern_selects_one_topic_or_all() -> None:
    world = SowEngine(SowDefinition("all", key=("/id",), pattern="^p/"))
    peer = world.connect("p")
    publish(peer, [("p/a", body(1)), ("p/b", body(1)), ("p/a", body(2)), ("all", body(1))])
    send(peer, [SowDelete(topic="p/a", data=body(1)), SowDelete(topic="p/b", filter="/id = 1")])
    world.settle()
    assert [_DECODE(key) for key in sorted(world.records("all"))] == [["all", 1], ["p/a", 2]]
    send(peer, [SowDelete(topic="all", filter="/id > 0")])
    world.settle()
    assert world.records("all") == {}


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize(
    ("topic", "left_topics"), [("p/a", ["p/b"]), ("p/b", ["p/a"]), ("p/c", ["p/a", "p/b"]), ("all", [])]
)
def test_delete_by_names_over_a_pattern_selects_one_topic_or_all(
    explicit: bool, topic: str, left_topics: list[str]
) -> None:
    world = SowEngine(SowDefinition("all", key=() if explicit else ("/id",), pattern="^p/"))
    peer = world.connect("p")
    rows = [("p/a", body(1)), ("p/b", body(1))]
    publish(peer, rows, keys=["k", "k"] if explicit else ())
    world.settle()
    names = ("k",) if explicit else tuple(generated_key("all", _ENCODE([name, 1])) for name, _ in rows)
    send(peer, [SowDelete(topic=topic, keys=names)])
    world.settle()
    assert sorted(_DECODE(key)[0] for key in world.records("all")) == left_topics
    assert [answer.deleted for answer in deleted(peer)] == [2 - len(left_topics)]


def test_delete_sees_earlier_rows_of_the_frame_and_no_later_rows() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 1)
    send(
        peer,
        [
            ("orders", body(1, 50)),
            SowDelete(topic="orders", filter="/v >= 0"),
            ("orders", body(1, 60)),
            by_keys(2),
            ("orders", body(2, 70)),
        ],
    )
    world.settle()
    assert world.records("orders") == {_ENCODE(1): body(1, 60), _ENCODE(2): body(2, 70)}
    assert [answer.deleted for answer in deleted(peer)] == [2, 0]


def test_delete_by_filter_is_exact_at_the_position_of_the_record() -> None:
    world = SowEngine(ORDERS)
    count = 3 * sow_delete_round_rows
    peer, other = filled(world, count), world.connect("other")
    send(peer, [SowDelete(topic="orders", filter=f"/v < {count}")])
    world.work()
    # Its search has begun. These publishes precede it in the log.
    changed = [("orders", body(1, count)), ("orders", body("new", 0)), ("orders", body("other", count))]
    publish(other, changed)
    publish(peer, [("orders", body(2, 0))])
    world.settle()
    assert left(world) == {1, "other", 2}
    assert [(answer.deleted, answer.more) for answer in deleted(peer)] == [(count, False)]
    (stored,) = world.log(SOW_TOPIC)
    assert decode(stored.body).count == count, "a key that no longer matches is not named"


def test_delete_by_filter_tests_many_changed_records_in_rounds() -> None:
    world = SowEngine(ORDERS, segment_bytes=16 << 20)
    count = 3 * sow_delete_round_rows
    peer, other = filled(world, count), world.connect("other")
    send(peer, [SowDelete(topic="orders", filter="/v < 0")])
    for number in range(3):
        publish(other, [("orders", body(key, -1 if number == 1 else key)) for key in range(count)])
        world.work()
    publish(other, [("orders", body(5, -1))])
    world.settle()
    assert left(world) == set(range(count)) - {5}


def test_delete_without_matches_keeps_everything_and_takes_a_sequence() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3)
    send(peer, [SowDelete(topic="orders", filter="/v > 100")])
    world.settle()
    assert left(world) == {0, 1, 2}
    assert deleted(peer) == [Deleted(frame=2, sequence=4, matches=0, topic_matches=3, deleted=0, position=4)]
    assert peer.acked_sequence == 4


def test_delete_beyond_the_bound_leaves_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_module, "sow_delete_keys_max", 10)
    world = SowEngine(ORDERS)
    peer = filled(world, 25)
    answers = []
    for _ in range(3):
        send(peer, [SowDelete(topic="orders", filter="/v >= 0")])
        world.settle()
        answer = deleted(peer)[-1]
        answers.append((answer.matches, answer.deleted, answer.more))
    assert answers == [(25, 10, True), (15, 10, True), (5, 5, False)]
    assert left(world) == set()


def test_resent_delete_is_answered_from_the_log() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 5)
    delete = by_keys(1, 2)
    sequence = send(peer, [delete])
    publish(peer, [("orders", body(1, "later"))])
    world.settle()
    first = deleted(peer)[0]
    send(peer, [delete, ("orders", body(1, "later"))], first=sequence)
    world.settle()
    world.reopen()
    again = world.connect("p")
    again.next_sequence = sequence
    send(again, [delete, ("orders", body(1, "later")), ("orders", body(9))])
    world.settle()
    assert left(world) == {0, 1, 3, 4, 9}
    for answer in (deleted(peer)[1], deleted(again)[0]):
        assert msgspec.structs.replace(answer, frame=first.frame) == first
    assert first.deleted == 2
    assert len(world.log(SOW_TOPIC)) == 1


@pytest.mark.parametrize(
    ("code", "refused"),
    [
        ("bad_topic", SowDelete(topic="unknown", filter="TRUE")),
        ("bad_filter", SowDelete(topic="orders", filter="/v =")),
    ],
)
def test_refused_delete_is_refused_when_resent_below_a_persisted_message(
    code: str, refused: SowDelete
) -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3)
    sequence = send(peer, [refused])
    publish(peer, [("orders", body(7))])
    world.settle()
    world.reopen()
    again = world.connect("p")
    again.next_sequence = sequence
    send(again, [refused, ("orders", body(7))])
    send(again, [("orders", body(8))])
    world.settle()
    assert not deleted(again)
    (refusal,) = rejected(again)
    assert (refusal.code, refusal.refused or (refusal.sequence,)) == (code, (sequence,))
    assert again.acked_sequence == sequence + 2
    assert left(world) == {0, 1, 2, 7, 8}


def positions_of_deletes(world: SowEngine) -> list[int]:
    """Return the positions of all deletes in the log."""
    return [
        first + row
        for first, batch in read_log(world.broker.journal, world.disk)
        for row in range(batch.count)
        if batch.topic(row) == SOW_TOPIC
    ]


@pytest.mark.parametrize("sequenced", [True, False])
def test_answer_has_the_position_of_the_delete_in_the_log(sequenced: bool) -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 5)
    refused = SowDelete(topic="unknown", filter="TRUE")
    rows: list[tuple[str, bytes] | SowDelete] = [
        *(("orders", body(7)), by_keys(1), refused, ("orders", body(8)), by_keys(8), refused, by_keys(2)),
    ]
    send(peer, rows, sequenced=sequenced)
    send(peer, [by_keys(3)], sequenced=sequenced)
    world.settle()
    answers = deleted(peer)
    assert [answer.deleted for answer in answers] == [1, 1, 1, 1]
    assert [answer.position for answer in answers] == positions_of_deletes(world)
    assert len(world.log(SOW_TOPIC)) == 4


@pytest.mark.parametrize("settled", [True, False])
def test_answer_to_a_partly_repeated_frame_has_the_positions_of_all_deletes(settled: bool) -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 5)
    sequence = send(peer, [("orders", body(0)), by_keys(1)])
    if settled:
        world.settle()
    send(peer, [("orders", body(0)), by_keys(1), by_keys(2), ("orders", body(9))], first=sequence)
    world.settle()
    first, second = positions_of_deletes(world)
    assert [answer.position for answer in deleted(peer)] == [first, first, second]


def test_answer_to_a_repeated_delete_that_retention_removed_has_no_counts() -> None:
    world = SowEngine(ORDERS, segment_bytes=8_192, retention=RetentionPolicy(size_bytes=20_000))
    peer = filled(world, 5)
    sequence = send(peer, [by_keys(1, 2)])
    for _ in range(100):
        publish(peer, [("orders", body(3, "x" * 500))])
        world.settle()
    for _ in range(3):  # a checkpoint, then retention
        world.wake(70)
        world.settle()
    assert world.broker.journal.view.first_position > 5
    send(peer, [by_keys(1, 2)], first=sequence)
    world.settle()
    first, lost = deleted(peer)
    assert (first.deleted, first.counted) == (2, True)
    assert (lost.counted, lost.position, lost.more) == (False, None, False)


def test_delete_resent_before_the_commit_is_answered_once_persisted() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 5)
    sequence = send(peer, [by_keys(1, 2)])
    send(peer, [by_keys(1, 2)], first=sequence)
    assert not deleted(peer)
    world.settle()
    assert [answer.deleted for answer in deleted(peer)] == [2, 2]
    assert [answer.position for answer in deleted(peer)] == positions_of_deletes(world) * 2
    assert len(world.log(SOW_TOPIC)) == 1


def test_publish_of_another_client_behind_a_delete_stays() -> None:
    world = SowEngine(ORDERS)
    peer, other = filled(world, 2), world.connect("other")
    send(peer, [by_keys(0, 1)])
    publish(other, [("orders", body(0, "other"))])
    world.settle()
    assert world.records("orders") == {_ENCODE(0): body(0, "other")}


def test_delete_removes_an_earlier_message_in_flight_of_another_client() -> None:
    world = SowEngine(ORDERS)
    peer, other = filled(world, 2), world.connect("other")
    publish(other, [("orders", body(0, "other"))])
    send(peer, [by_keys(0)])
    world.settle()
    assert left(world) == {1}
    world.reopen()
    assert left(world) == {1}


@pytest.mark.parametrize(
    ("delete", "code", "text"),
    [
        (by_keys(1, topic="other"), "bad_topic", "'other': it is not a SOW topic"),
        (SowDelete(topic="orders", filter="/v >"), "bad_filter", "/v >"),
        (SowDelete(topic="orders", data=b'{"v":1}'), "bad_sow_key", "'/id' is missing"),
    ],
)
def test_invalid_delete_is_refused_and_the_rest_of_the_frame_stored(
    delete: SowDelete, code: str, text: str
) -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 2)
    send(peer, [("orders", body(7)), delete, by_keys(0)])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == (code, (4,))
    assert text in refusal.text
    assert left(world) == {1, 7}
    assert peer.acked_sequence == 5
    assert [(answer.sequence, answer.deleted) for answer in deleted(peer)] == [(5, 1)]


@pytest.mark.parametrize("pattern", [None, "^raw/"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x,y", "a character that is not in the Base64 alphabets"),
        ("k" * 257, "257 bytes"),
        ("", "the message key is missing"),
    ],
)
def test_delete_by_a_name_that_cannot_be_an_explicit_key_is_refused(
    name: str, text: str, pattern: str | None
) -> None:
    world = SowEngine(SowDefinition("raw", pattern=pattern))
    peer = world.connect("p")
    send(peer, [("raw", b"one")], keys=["k"])
    send(peer, [SowDelete(topic="raw", keys=("k", name)), SowDelete(topic="raw", keys=("other",))])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, refusal.refused) == ("bad_sow_key", (2,))
    assert text in refusal.text
    assert len(world.records("raw")) == 1
    assert [answer.deleted for answer in deleted(peer)] == [0]


def test_malformed_delete_is_refused() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 2)
    send(peer, [(SOW_TOPIC, b"\x81\xa5topic\xa1x"), (SOW_TOPIC, b"")])
    world.settle()
    assert [refusal.code for refusal in rejected(peer)] == ["bad_command"]
    assert peer.goodbye is None
    assert left(world) == {0, 1}


@pytest.mark.parametrize("sequenced", [True, False])
def test_delete_of_a_connection_that_closes_during_the_search_has_no_effect(sequenced: bool) -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3 * sow_delete_round_rows)
    send(peer, [SowDelete(topic="orders", filter="/v >= 0")], sequenced=sequenced)
    world.work()
    world.broker.disconnected(peer.conn)
    world.collect()
    world.settle()
    assert len(left(world)) == 3 * sow_delete_round_rows
    assert not world.broker.states.accepted_rows.overlay(world.state("orders")).is_watched


def test_publishes_wait_after_too_many_rounds_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "sow_delete_rounds_max", 1)
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    count = 2 * sow_delete_round_rows
    peer, other = filled(world, count), world.connect("other")
    publish(other, [("unkept", b"{}")])
    end = world.broker.journal.commits.accepted_end
    send(peer, [SowDelete(topic="orders", filter="/v >= 0")])
    frames = 0
    while world.broker.journal.commits.accepted_end == end + frames * count:
        world.work()
        publish(other, [("orders", body(key, frames)) for key in range(count)])
        frames += 1
        assert frames < 20, "the search never ends"
    publish(other, [("unkept", b"{}")])
    world.settle()
    assert [answer.deleted for answer in deleted(peer)] == [count]
    assert left(world) == set(range(count)), "the last publishes are behind the delete"
    assert other.acked_sequence == frames * count + 2
    assert not world.broker.states.accepted_rows.held


def test_delete_with_a_record_too_large_for_a_full_log_is_refused() -> None:
    world = SowEngine(ORDERS, segment_bytes=16_384)
    peer, other = world.connect("p"), world.connect("other")
    for nth in range(1, 20):
        world.disk.fail("preallocate", nth, errno.ENOSPC)
    key = 0
    while peer.goodbye is None:
        publish(peer, [("orders", body(key + at)) for at in range(20)])
        world.settle()
        key += 20
    before = left(world)
    assert len(before) > 100
    send(other, [SowDelete(topic="orders", filter="/v = 0")], sequenced=False)
    world.settle()
    assert [refusal.code for refusal in rejected(other)] == ["journal_full"]
    assert left(world) == before
    for _ in range(30):
        world.wake(1)
        world.settle()
    send(other, [SowDelete(topic="orders", filter="/v = 0")], sequenced=False)
    world.settle()
    assert left(world) == set()


def test_frame_behind_a_delete_waits_for_the_search() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3 * sow_delete_round_rows)
    send(peer, [SowDelete(topic="orders", filter="/v >= 0")])
    publish(peer, [("orders", body("behind"))])
    world.settle()
    assert left(world) == {"behind"}


@pytest.mark.parametrize(
    "key", [b"", b"\xff\xff", b"\x90", _ENCODE([5, 1]), _ENCODE("p/a"), b"\xa1x" + b"x" * 4_096]
)
def test_delete_by_a_canonical_key_that_no_record_can_have_is_refused(key: bytes) -> None:
    world = SowEngine(SowDefinition("all", key=("/id",), pattern="^p/"))
    peer = world.connect("p")
    send(peer, [("p/a", body(1)), SowDelete(topic="all", canonical=(key,)), ("p/a", body(2))])
    world.settle()
    assert [(refusal.code, refusal.refused) for refusal in rejected(peer)] == [("bad_sow_key", (2,))]
    assert len(world.records("all")) == 2


def test_delete_by_a_key_above_the_bound_is_refused_without_a_pattern() -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 1)
    send(peer, [SowDelete(topic="orders", canonical=(b"x" * 900_000,))])
    world.settle()
    (refusal,) = rejected(peer)
    assert (refusal.code, "a key has 900,000 bytes" in refusal.text) == ("bad_sow_key", True)
    assert not world.log(SOW_TOPIC)


@pytest.mark.parametrize("folded", [True, False])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SOW_KEY() IS NOT NULL", {"kept"}),
        (f"SOW_KEY() = '{generated_key('orders', _ENCODE(1))}'", {"kept", 0, 2}),
        ("BOOKMARK() = '{publisher}|2|'", {"kept", 0, 2}),
        ("CORRELATION_ID() IS NOT NULL", {"kept", 0, 1, 2}),
    ],
)
def test_delete_by_a_filter_over_parts_of_a_message_selects_like_a_query(
    text: str, expected: set[object], folded: bool
) -> None:
    world = SowEngine(ORDERS)
    peer = world.connect("p")
    publish(peer, [("orders", body(key, key)) for key in range(3)])
    if folded:
        world.settle()
    assert peer.logged_on is not None
    text = text.format(publisher=peer.logged_on.publisher)
    send(peer, [SowDelete(topic="orders", filter=text), ("orders", body("kept"))])
    world.settle()
    assert not rejected(peer)
    assert left(world) == expected


def test_steps_of_a_delete_by_filter_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step looks up and sorts a bounded number of keys, also of a delete that selects all records."""
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    count = 12 * sow_delete_round_rows
    peer, other = filled(world, count), world.connect("other")
    looked: list[int] = []
    added: list[int] = []
    latest, add = Overlay.latest, DeleteBuilder.add

    def look(self: Overlay, keys: Sequence[bytes]) -> list[AcceptedRow]:
        looked.append(len(keys))
        return latest(self, keys)

    def adding(self: DeleteBuilder, keys: Sequence[bytes], *columns: Any, **more: Any) -> None:
        added.append(len(keys))
        add(self, keys, *columns, **more)

    monkeypatch.setattr(Overlay, "latest", look)
    monkeypatch.setattr(DeleteBuilder, "add", adding)
    send(peer, [SowDelete(topic="orders", filter="/v < 0"), SowDelete(topic="orders", filter="/v >= 0")])
    for number in range(8):
        world.work()
        publish(other, [("orders", body(key, number)) for key in range(3 * sow_delete_round_rows)])
    world.settle()
    assert [answer.deleted for answer in deleted(peer)] == [0, count]
    assert max(looked) <= sow_delete_round_rows
    assert max(added) <= sow_delete_round_rows


def test_delete_by_many_keys_takes_steps_and_sees_messages_meanwhile() -> None:
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    count = 5 * sow_delete_round_rows
    peer, other = filled(world, count), world.connect("other")
    send(peer, [by_keys(*range(count), "late", "none")])
    world.work()
    assert not world.log(SOW_TOPIC), "the keys take several steps"
    publish(other, [("orders", body("late")), ("orders", body("other")), ("orders", body(1, "new"))])
    world.settle()
    assert left(world) == {"other"}
    assert [(one.matches, one.deleted, one.more) for one in deleted(peer)] == [(count + 1, count + 1, False)]
    (stored,) = world.log(SOW_TOPIC)
    assert decode(stored.body).count == count + 2


def test_rows_behind_a_large_delete_in_flight_see_the_deleted_keys() -> None:
    world = SowEngine(ORDERS, segment_bytes=64 << 20)
    count = 3 * sow_delete_round_rows
    peer, other = filled(world, count), world.connect("other")
    send(peer, [SowDelete(topic="orders", filter="/v >= 0")])
    while not world.broker.states.accepted_rows.overlay(world.state("orders"))._large:
        world.work()
    send(other, [("orders", b'{"id":5,"x":1}'), by_keys(6), ("orders", body(7))], deltas=[0])
    world.settle()
    assert world.records("orders") == {_ENCODE(5): b'{"id":5,"x":1}', _ENCODE(7): body(7)}
    assert [answer.deleted for answer in deleted(other)] == [0]


@pytest.mark.parametrize("delete", [by_keys(1), SowDelete(topic="orders", filter="/v = 1")])
def test_deletes_of_other_connections_wait_for_a_search_that_holds_the_topic(delete: SowDelete) -> None:
    world = SowEngine(ORDERS)
    filled(world, 3)
    other = world.connect("other")
    overlay = world.broker.states.accepted_rows.overlay(world.state("orders"))
    overlay.hold()
    end = world.broker.journal.commits.accepted_end
    send(other, [delete])
    publish(other, [("plain", b"behind")])
    for _ in range(20):
        world.work()
    assert world.broker.journal.commits.accepted_end == end, "the delete waits, and the frame behind it"
    overlay.release()
    world.settle()
    assert left(world) == {0, 2}
    assert [message.topic for message in world.log("plain")] == ["plain"]


def test_search_ends_when_the_log_becomes_full_before_the_delete(monkeypatch: pytest.MonkeyPatch) -> None:
    world = SowEngine(ORDERS)
    peer = filled(world, 3 * sow_delete_round_rows)
    send(peer, [SowDelete(topic="orders", filter="/v >= 0")])
    overlay = world.broker.states.accepted_rows.overlay(world.state("orders"))
    states = [(overlay.is_watched, overlay.is_held)]

    def full(_: object) -> None:
        raise JournalFull("Cannot prepare the next segment: no space. Free space.")

    monkeypatch.setattr(world.broker._writer, "check_room", full)
    world.settle()
    assert peer.goodbye is not None
    assert peer.goodbye.code == "journal_full"
    states.append((overlay.is_watched, overlay.is_held))
    assert states == [(True, False), (False, False)]


def test_deletes_of_a_frame_are_bounded() -> None:
    world = SowEngine(ORDERS)
    peer, other = filled(world, 1), world.connect("other")
    many = [SowDelete(topic="orders", filter="/v = 1")] * (sow_searches_per_frame_max + 2)
    first = send(peer, many)
    world.settle()
    beyond = first + sow_searches_per_frame_max
    assert [(refusal.code, refusal.refused) for refusal in rejected(peer)] == [
        ("limit_reached", (beyond, beyond + 1))
    ]
    assert "too many deletes that need a search, such as those by filter. Send at most 16" in (
        rejected(peer)[0].text
    )
    send(other, [by_keys(1)] * (sow_deletes_per_frame_max + 1))
    assert other.goodbye is not None
    assert other.goodbye.code == "bad_batch"
