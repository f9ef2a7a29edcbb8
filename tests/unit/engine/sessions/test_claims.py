"""Claims of publishers at their logon: holes, the answer, the event, and clients without a claim."""

from __future__ import annotations

from tests.helpers.replicating_world import ReplicatingWorld, logged_on, send
from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tickertape.base.limits import last_persisted_max
from tickertape.engine.runtime.effects import LogEvent
from tickertape.wire.commands import Logon, LogonReplication
from tickertape.wire.frames import encode_frame


def replication_of(peer: Peer) -> LogonReplication:
    assert peer.logged_on is not None
    assert peer.logged_on.replication is not None
    return peer.logged_on.replication


def behind_events(world: EngineWorld) -> list[LogEvent]:
    return [event for event in world.told if event.name == "publisher_behind"]


def test_claim_above_the_log_opens_a_proven_hole_with_an_event() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1, 2])
    peer = logged_on(world, 6)
    assert replication_of(peer) == LogonReplication(start=7, group="group", behind=True)
    assert world.rows() == [("new", 1), ("new", 2)], "only a message opens the hole"
    send(world, peer, [7])
    assert world.rows()[2:] == [("after", 6), ("new", 7), ("holes", [(3, 6)])]
    assert behind_events(world) == [
        LogEvent(
            "publisher_behind", warning=False, fields={"client": "pub", "sequences": 4, "first": 3, "last": 6}
        )
    ]
    send(world, peer, [8])
    assert len(behind_events(world)) == 1


def test_resent_messages_below_the_claim_fill_the_hole_late() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1, 2])
    send(world, logged_on(world, 6), [7])
    peer = logged_on(world, 3)
    assert replication_of(peer).behind, "3 is claimed, and in the hole"
    send(world, peer, [4, 5, 6, 7])
    assert world.rows()[-4:] == [("late", 4), ("late", 5), ("late", 6), ("holes", [(3, 3)])]
    assert not replication_of(logged_on(world, 2)).behind, "the hole is above the claim"
    assert replication_of(logged_on(world, 3)).behind


def test_claim_that_the_log_has_opens_no_hole_and_is_not_behind() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1, 2, 3])
    peer = logged_on(world, 3)
    assert not replication_of(peer).behind
    send(world, peer, [4])
    assert world.rows()[3:] == [("after", 3), ("new", 4)]
    assert behind_events(world) == []


def test_fresh_store_opens_an_unproven_hole_that_makes_no_later_claim_behind() -> None:
    world = ReplicatingWorld(1)
    peer = logged_on(world, None)
    assert not replication_of(peer).behind
    send(world, peer, [100])
    assert world.rows() == [("unproven", 99), ("new", 100), ("holes", [(1, 99)])]
    assert behind_events(world) == []
    assert not replication_of(logged_on(world, 100)).behind


def test_client_of_an_older_version_writes_the_unproven_record_after_the_proven_one() -> None:
    """Row 13 of the counterexamples: other logs need the proven record too."""
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1, 2])
    peer = world.connect("pub")  # as a client without the fields of a claim
    world.settle()
    send(world, peer, [5])
    assert world.rows()[2:] == [("after", 2), ("unproven", 4), ("new", 5), ("holes", [(3, 4)])]


def test_session_of_the_logon_is_in_the_record_of_the_claim() -> None:
    world = ReplicatingWorld(1)
    world.acknowledged = lambda _: None  # type: ignore[method-assign,assignment]
    peer = world.connect("pub", persisted=6, session=2**64 - 1)
    world.settle()
    send(world, peer, [7])
    (record,) = world.after_records()
    assert (record.after, record.session, record.unproven) == (6, 2**64 - 1, False)


def test_claim_of_a_client_without_sequences_opens_no_hole() -> None:
    world = ReplicatingWorld(1)
    peer = logged_on(world, 6)
    peer.publish("t", [b"x"], sequenced=False)
    world.settle()
    assert [row for row in world.rows() if row[0] != "new"] == []
    assert behind_events(world) == []


def test_claim_above_the_largest_sequence_is_refused() -> None:
    world = ReplicatingWorld(1)
    peer = world.connect("pub", persisted=last_persisted_max + 1, session=1)
    assert peer.goodbye is not None
    assert peer.goodbye.code == "bad_command"
    assert peer.goodbye.text == (
        f"Cannot log on: the claim {last_persisted_max + 1} is above {last_persisted_max}, the largest "
        "allowed sequence. Correct the client."
    )
    assert world.connect("pub", persisted=last_persisted_max, session=1).logged_on is not None


def test_highest_claim_keeps_the_last_persisted_sequence_of_the_answer() -> None:
    """A fresh store of another process starts above the claim, and `PublisherTakenOver` needs it."""
    world = ReplicatingWorld(1)
    send(world, logged_on(world, None), [1])
    send(world, logged_on(world, 6), [5])
    peer = logged_on(world, 6)
    assert peer.logged_on is not None
    assert peer.logged_on.last_persisted == 6


def test_log_without_replication_ignores_the_claim() -> None:
    world = ReplicatingWorld(1)
    world.replicating = False
    world.disk = world.disk.kill_clone()
    world.open()
    peer = logged_on(world, 6)
    assert peer.logged_on is not None
    assert peer.logged_on.replication is None
    assert b"replication" not in b"".join(bytes(part) for part in encode_frame(peer.logged_on))
    send(world, peer, [7])
    assert world.rows() == [("new", 7)]


def test_log_with_holes_of_an_earlier_replication_says_so() -> None:
    world = ReplicatingWorld(1)
    send(world, logged_on(world, 6), [7])
    world.replicating = False
    world.disk = world.disk.crash_clone(world.rng)
    world.open()
    found = replication_of(logged_on(world, 6))
    assert found == LogonReplication(start=world.broker.journal.commits.epoch, behind=True)
    assert found.start


def test_logon_without_a_publish_store_has_no_byte_more() -> None:
    plain = b"".join(bytes(part) for part in encode_frame(Logon(name="pub")))
    zero = b"".join(bytes(part) for part in encode_frame(Logon(name="pub", persisted=0, session=0)))
    assert plain == zero
    assert b"session" not in plain
