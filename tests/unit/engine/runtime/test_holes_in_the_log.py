"""Log writer with replication: named cases of claims, late runs, and records of holes."""

from __future__ import annotations

import pytest

from tests.helpers.replicating_world import ReplicatingWorld, logged_on, send
from tests.simulation.journal_world import read_log
from tickertape.base.bookmarks import Bookmark
from tickertape.base.errors import JournalCorrupt
from tickertape.batch import BatchBuilder
from tickertape.engine.runtime.exact_append import LinkedRun
from tickertape.engine.runtime.holes import KnownSequences
from tickertape.journal.format.replication_records import (
    HoleRange,
    after,
)
from tickertape.journal.format.retired_state import is_expired
from tickertape.journal.retention import RetentionPolicy


def test_messages_of_another_instance_are_stored_late_behind_a_claim() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1, 2, 3])
    peer = logged_on(world, 6)
    send(world, peer, [2, 3, 5, 6, 7])
    send(world, peer, [4, 8])  # 4 follows 7 on its connection
    send(world, logged_on(world, 6), [4])
    assert world.rows() == [
        *(("new", s) for s in (1, 2, 3)),
        ("after", 6),
        ("late", 5),
        ("late", 6),
        ("new", 7),
        ("holes", [(4, 4)]),
        ("new", 8),
        ("late", 4),
        ("holes", []),
    ]
    assert world.broker.duplicates == 3


def test_late_message_at_the_highest_sequence_does_not_replace_the_claim() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1])
    send(world, logged_on(world, 4), [3])
    peer = logged_on(world, 6)
    send(world, peer, [4, 5, 7])
    assert world.rows() == [
        ("new", 1),
        ("after", 4),
        ("late", 3),
        ("holes", [(2, 2), (4, 4)]),
        ("late", 4),
        ("after", 6),
        ("late", 5),
        ("new", 7),
        ("holes", [(2, 2), (6, 6)]),
    ]


def test_client_without_a_claim_opens_an_unproven_hole_that_admits_no_client() -> None:
    world = ReplicatingWorld(1)
    peer = logged_on(world, None)
    send(world, peer, [5])
    send(world, logged_on(world, None), [3, 4, 5])
    assert world.rows() == [("unproven", 4), ("new", 5), ("holes", [(1, 4)])]
    assert world.broker.duplicates == 3


def test_message_behind_those_of_a_link_follows_an_after_record() -> None:
    world = ReplicatingWorld(1)
    peer = logged_on(world, 0)
    assert peer.logged_on is not None
    send(world, peer, [1])
    builder = BatchBuilder()
    builder.add("t", b"link", sequence=2)
    exact = world.broker._writer.exact
    assert exact is not None
    batch = builder.build(peer.logged_on.publisher)
    split = exact.known.split(peer.logged_on.publisher, batch.sequences, from_link=True)
    exact.append_linked(batch, split, LinkedRun(1, 5))
    exact.write_soon()
    send(world, peer, [3, 4])
    send(world, peer, [5])
    assert world.rows() == [("new", 1), ("new", 2), ("after", 2), ("new", 3), ("new", 4), ("new", 5)]


def test_records_and_messages_are_in_one_commit() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1])
    send(world, logged_on(world, 6), [5, 7])
    assert world.rows()[1:] == [("after", 6), ("late", 5), ("new", 7), ("holes", [(2, 4), (6, 6)])]
    (_, last) = read_log(world.broker.journal, world.disk)[-1]
    assert last.count == 4


def test_message_that_filled_a_hole_stays_known_after_retention() -> None:
    """The records about the hole are removed together with the message that filled it."""
    world = ReplicatingWorld(1, segment_bytes=8_192, retention=RetentionPolicy(age_seconds=3600))
    send(world, logged_on(world, None), [1])
    send(world, logged_on(world, 4), [3])
    send(world, logged_on(world, 4), [2, 4, 5])
    filler = logged_on(world, None, "filler")
    for _ in range(9):
        filler.publish("u", [b"y" * 2_000])
        world.settle()
    for _ in range(2):
        world.wake(3_700)
        world.settle()
    assert world.broker.journal.view.first_position > 9
    assert [row for row in world.rows() if row[0] in ("holes", "late")] == []
    world.disk = world.disk.crash_clone(world.rng)
    world.open()
    peer = logged_on(world, 4)
    assert peer.logged_on is not None
    assert peer.logged_on.last_persisted == 5
    before = world.broker.journal.commits.accepted_end
    send(world, peer, [1, 2, 3, 4, 5])
    assert world.broker.journal.commits.accepted_end == before
    assert world.broker.duplicates == 5
    bookmark = Bookmark(peer.logged_on.publisher, 4)
    assert is_expired(world.broker.journal.view.retired, bookmark)


def test_publisher_with_late_messages_only_counts_as_persisted() -> None:
    world = ReplicatingWorld(1)
    peer = logged_on(world, 9)
    assert peer.logged_on is not None
    send(world, peer, [3, 5])
    journal, publisher = world.broker.journal, peer.logged_on.publisher
    assert journal.persisted_highest[publisher] == 5
    send(world, logged_on(world, 9), [4])
    assert journal.persisted_highest[publisher] == 5, "4 is below it"
    assert journal.highest[publisher] == 9


def test_log_without_replication_has_no_records_and_no_late_runs() -> None:
    world = ReplicatingWorld(1)
    world.replicating = False
    world.disk = world.disk.kill_clone()
    world.open()
    send(world, logged_on(world, None), [5])
    send(world, logged_on(world, 9), [4, 5, 12])
    assert world.rows() == [("new", 5), ("new", 12)]


@pytest.mark.parametrize("replicating", [True, False])
def test_holes_of_the_log_apply_after_a_restart_with_and_without_replication(replicating: bool) -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1])
    send(world, logged_on(world, 6), [5])
    world.replicating = replicating
    world.disk = world.disk.crash_clone(world.rng)
    world.open()
    exact = world.broker._writer.exact
    assert exact is not None
    known = exact.known
    peer = logged_on(world, 6)
    assert peer.logged_on is not None
    assert [hole[:2] for hole in known.holes(peer.logged_on.publisher)] == [(2, 4), (6, 6)]
    assert peer.logged_on.last_persisted == 6, "a new publish store starts above the holes"
    send(world, peer, [3, 5])
    assert world.rows()[-2:] == [("late", 3), ("holes", [(2, 2), (4, 4), (6, 6)])]


def test_commit_on_a_full_disk_has_space_for_records_of_holes() -> None:
    """Without it the late run would wait for a new segment, and block all publishers."""
    stored = refused = 0
    for size in range(4_000, 70_000, 3_000):
        world = ReplicatingWorld(1, segment_bytes=262_144)
        send(world, logged_on(world, None), [1])
        peer = logged_on(world, 3_000)
        send(world, peer, list(range(3, 2_003, 2)))
        world.disk.space_bytes = world.disk._used
        first = logged_on(world, None, "filler")
        for _ in range(40):
            first.publish("u", [b"y" * size])
            world.settle()
        commits = world.broker.journal.commits
        if commits.full and commits.persisted_end == commits.accepted_end:
            send(world, peer, [2_500])
            stored += not peer.closed
            refused += peer.closed
            assert commits.persisted_end == commits.accepted_end
    assert stored
    assert refused


def test_unreadable_record_of_holes_is_reported() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1])
    registry_damage: list[JournalCorrupt] = []
    exact = world.broker._writer.exact
    assert exact is not None
    known = exact.known
    known.recover({"holes 7": b"\x81\xa4type\xa5holes", "after 7 x": b"\xc1"}, registry_damage)
    assert [str(one)[:24] for one in registry_damage] == [
        "Cannot restore 'holes 7'",
        "Cannot restore 'after 7 ",
    ]


def test_after_record_without_a_record_of_holes_opens_a_hole() -> None:
    world = ReplicatingWorld(1)
    exact = world.broker._writer.exact
    assert exact is not None
    known = exact.known
    after_record = b"\x84\xa4type\xa5after\xa9publisher\x07\xa7session\x00\xa5after\x09"
    assert known.recover({"after 7 x": after_record}, [])
    assert known.holes(7) == [HoleRange(1, 9, 0, True)]


def test_holes_before_a_position_are_closed_the_oldest_first() -> None:
    known = KnownSequences({})
    for publisher, position in ((1, 10), (2, 20), (3, 20), (4, 30)):
        known.open(publisher, 5, position)
    known.take_changed()
    assert not known.has_before(10)
    assert known.close_before(10, 9) == 0
    assert known.close_before(30, 1) == 1
    assert [1 in known, 2 in known] == [False, True]
    assert known.close_before(30, 9) == 2
    assert (known.count, known.take_changed(), known.take_closed()) == (1, [1, 2, 3], [])
    assert known.has_before(31)
    assert not known.has_before(30)


def test_one_commit_records_a_bounded_number_of_closed_holes() -> None:
    world = ReplicatingWorld(1)
    exact = world.broker._writer.exact
    assert exact is not None
    exact.append_after([after(world.broker.journal.journal_id, number, 0, 5) for number in range(1, 8)])
    send(world, logged_on(world, None), [1])
    end = world.broker.journal.commits.persisted_end
    assert [exact.close_holes(end, 2) for _ in range(3)] == [2, 0, 0], "without a commit"
    assert len(exact.known.changed) == 2
    send(world, logged_on(world, None, "next"), [1])
    assert not exact.known.changed
    assert exact.close_holes(end, 2) == 2
    assert exact.known.count == 3


def test_only_the_holes_of_one_record_are_closed() -> None:
    known = KnownSequences({})
    known.open(1, 5, 10)
    known.open(1, 9, 20)
    assert known.close_before(20, 9) == 1
    assert known.holes(1) == [HoleRange(6, 9, 20, True)]
