"""Retention in the engine: removal of segments, pins, and starts before the log."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive
from tickertape.base.bookmarks import format_timestamp
from tickertape.base.names import publisher_id
from tickertape.engine.retention import RetentionPin
from tickertape.journal.commit.jobs import RetireSegments
from tickertape.journal.retention import RetentionPolicy, due, gather, removable, unneeded
from tickertape.wire.commands import Ack, Completed, Ended, Resolve, Resolved

SEGMENT_BYTES = 8_192
HOUR = RetentionPolicy(age_seconds=3600)


def world_of(policy: RetentionPolicy | None, segments: int = 6) -> tuple[EngineWorld, Peer]:
    """Return a log of several segments by one publisher, without a tail in memory."""
    world = EngineWorld(7, segment_bytes=SEGMENT_BYTES, retention=policy)
    world.broker.journal.view.tail_bytes_max = 1
    peer = world.connect("pub")
    while world.broker.journal.view.segments[-1].number < segments:
        peer.publish("t", [world.rng.randbytes(300)] * 3)
        world.settle()
    return world, peer


def numbers(world: EngineWorld) -> list[int]:
    return [segment.number for segment in world.broker.journal.view.segments]


def files(world: EngineWorld) -> list[int]:
    return [int(name[:10]) for name in world.disk.names("journal")]


def expire(world: EngineWorld) -> None:
    """Let more than an hour pass and do all work."""
    world.wake(3_700)
    world.settle()
    world.wake(0.01)
    world.settle()


def ask(world: EngineWorld, peer: Peer, sub_id: str, bookmark: str, options: str = "") -> Ack:
    asked = peer.subscribe(sub_id, "t", bookmark=bookmark, options=options)
    world.settle()
    answer = peer.answers[asked]
    assert isinstance(answer, Ack)
    return answer


# -- when -----------------------------------------------------------------------------------------------


def test_retention_without_a_policy_removes_nothing() -> None:
    world, _ = world_of(None)
    expire(world)
    assert numbers(world)[0] == 1
    assert world.broker.retention.next_deadline() is None


def test_retention_by_age_keeps_only_the_segment_of_the_last_message() -> None:
    world, _ = world_of(HOUR)
    last = numbers(world)[-1]
    assert numbers(world)[0] == 1, "nothing is old yet"
    expire(world)
    assert numbers(world) == [last]
    assert [number for number in files(world) if number < last] == []
    assert world.told[-1].name == "segments_removed"
    assert world.broker.retention.removed_segments == last - 1


def test_retention_by_age_is_triggered_by_the_clock_alone() -> None:
    world, _ = world_of(HOUR)
    deadline = world.broker.next_deadline()
    assert deadline is not None
    assert deadline <= world.mono + 60
    world.wake(3_500)
    world.settle()
    assert numbers(world)[0] == 1
    world.wake(200)
    world.settle()
    assert numbers(world)[0] > 1


def test_retention_by_size_keeps_the_growing_log_within_the_limit() -> None:
    policy = RetentionPolicy(size_bytes=5 * SEGMENT_BYTES)
    world, peer = world_of(policy, 4)
    for _ in range(40):
        peer.publish("t", [world.rng.randbytes(300)] * 3)
        world.settle()
        taken = sum(len(data) for name, data in world.disk.contents().items() if "journal/" in name)
        assert taken <= 5 * SEGMENT_BYTES
    assert numbers(world)[0] > 3


def test_retention_after_a_restart_keeps_the_sealed_segment_of_the_last_message() -> None:
    world, peer = world_of(HOUR)
    bookmark = f"{publisher_id('pub')}|{peer.next_sequence - 1}|"
    world.broker.close(world.now())
    world.collect()
    while world.jobs:
        world.run_job()
    world.disk = world.disk.kill_clone()
    world.open()
    expire(world)
    assert len(numbers(world)) == 2
    answer = ask(world, world.connect("reader"), "s", bookmark)
    assert (answer.code, answer.found) == ("", True)


def test_many_segments_are_removed_in_a_few_jobs() -> None:
    world, _ = world_of(HOUR, 40)
    world.wake(3_700)
    jobs = 0
    while len(numbers(world)) > 1:
        while world.broker.has_work or world.reads:
            world.run_read() if world.reads else world.work()
        jobs += isinstance(world.jobs[0], RetireSegments)
        world.run_job()
        world.wake()
        assert jobs < 10
    assert jobs == 3


def test_stopped_server_starts_no_retention() -> None:
    world, _ = world_of(HOUR)
    world.broker.close(world.now())
    expire(world)
    assert world.broker.journal.commits.closed
    assert numbers(world)[0] == 1


def test_unfinished_removal_of_an_earlier_run_completes_without_a_policy() -> None:
    world, _ = world_of(HOUR)
    world.wake(3_700)
    while world.broker.has_work or world.reads:
        world.run_read() if world.reads else world.work()
    while not isinstance(world.jobs[0], RetireSegments):
        world.run_job()
    world.disk.fail("remove", 3, 5)
    world.run_job()
    world.disk = world.disk.kill_clone()
    world.retention = None
    world.open()
    assert world.broker.journal.leftovers == (3, 4, 5)
    world.wake()
    world.settle()
    assert min(files(world)) == 6
    assert world.broker.retention.next_deadline() is None


# -- pins -----------------------------------------------------------------------------------------------


def test_stalled_subscription_pins_segments_and_is_reported_once() -> None:
    world, _ = world_of(HOUR)
    reader = world.connect("slow one")
    reader.subscribe("behind", "t", bookmark="0", credit=2_000)
    for _ in range(60):
        world.step()
    before = len(reader.heard["behind"])
    assert before
    for _ in range(3):
        world.wake(3_700)
        for _ in range(30):
            world.step()
    assert numbers(world)[0] == 1
    held = [event for event in world.told if event.name == "retention_held"]
    assert len(held) == 1
    assert held[0].warning
    assert "'behind'" in str(held[0].fields["by"])
    assert "slow one" in str(held[0].fields["by"])
    retaining = world.broker.retention
    assert (retaining.held_segments, retaining.held_bytes > 0) == (5, True)
    # It continues and reads everything. Then the pinned segments are removed.
    world.settle()
    log = world.log("t")
    assert reader.heard["behind"] == log
    expire(world)
    assert numbers(world) == [6]
    assert world.broker.retention.held_segments == 0
    assert "retention_released" in [event.name for event in world.told]


def test_ended_subscription_pins_no_segments() -> None:
    world, _ = world_of(HOUR)
    reader = world.connect("slow one")
    reader.subscribe("behind", "t", bookmark="0", credit=500)
    for _ in range(30):
        world.step()
    world.wake(3_700)
    assert world.broker.retention.held_segments == 5
    world.broker.disconnected(reader.conn)
    del world.peers[reader.conn]
    expire(world)
    assert numbers(world) == [6]


def test_reader_in_the_middle_does_not_pin_earlier_segments() -> None:
    world, _ = world_of(HOUR)
    third = world.broker.journal.view.segments[2]
    reader = world.connect("reader")
    bounds = third.first_position, third.end_position
    reader.subscribe("part", "t", credit=500, positions=bounds, journal=world.broker.journal.identity)
    for _ in range(20):
        world.step()
    world.wake(3_700)
    for _ in range(60):
        if world.jobs or world.reads or world.broker.has_work:
            world.step()
    assert numbers(world)[0] == 3


def test_subscription_of_removed_segments_is_ended_as_bookmark_expired() -> None:
    world, _ = world_of(None)
    reader = world.connect("reader")
    reader.subscribe("s", "t", bookmark="0", credit=500)
    for _ in range(20):
        world.step()
    view = world.broker.journal.view
    gathered = drive(world.disk, gather(view, world.broker.journal.journal_id, 3))
    view.retire(gathered.retired, gathered.first)
    before = len(reader.heard["s"])
    sub = world.log_feeds(reader.conn)["s"]
    world.broker.services.log.cursors._cursor_of[sub].evict()
    world.settle()
    assert reader.marks["s"][-1] == "ended bookmark_expired"
    assert len(reader.heard["s"]) == before


def test_subscription_started_during_retention_keeps_all_segments() -> None:
    world, peer = world_of(HOUR)
    world.wake(3_700)
    assert world.broker.has_work or world.reads, "state of the segments is being collected"
    reader = world.connect("reader")
    reader.subscribe("late", "t", bookmark="0", credit=400)
    while world.broker.has_work or world.reads:
        world.run_read() if world.reads else world.work()
    assert not any(isinstance(job, RetireSegments) for job in world.jobs)
    assert numbers(world)[0] == 1
    world.settle()
    assert [h.sequence for h in reader.heard["late"]] == list(range(1, peer.next_sequence))


def test_additional_retention_pin_is_respected() -> None:
    world, _ = world_of(HOUR)
    second = world.broker.journal.view.segments[1]
    pins: list[RetentionPin | None] = [RetentionPin(second.first_position, "the queue 'work'")]
    world.broker.retention.pin(lambda: pins[0])
    expire(world)
    assert numbers(world)[0] == 2
    assert world.broker.retention.held_by == "the queue 'work'"
    pins[0] = None
    expire(world)
    assert numbers(world) == [6]


# -- starts before the log ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def old() -> tuple[EngineWorld, Peer, int, int]:
    """A log without its first segments, a reader, the first sequence left, and when the log began."""
    world, peer = world_of(HOUR, 4)
    begun = world.wall - 10_000_000
    world.wake(3_000)
    while world.broker.journal.view.segments[-1].number < 7:
        peer.publish("t", [world.rng.randbytes(300)] * 3)
        world.settle()
    world.wake(1_000)
    world.settle()
    assert numbers(world)[0] in (4, 5)
    first = world.log("t")[0].sequence
    assert first > 3
    return world, world.connect("reader"), first, begun


Old = tuple[EngineWorld, Peer, int, int]
PUB = publisher_id("pub")


@pytest.mark.parametrize("options", ["", "bookmark_not_found=epoch", "bookmark_not_found=now"])
@pytest.mark.parametrize(
    "form", ["{removed}", "{present},{removed}", "[{removed}:{present})", "({removed},{present}:{present}]"]
)
def test_bookmark_of_a_removed_message_is_refused_with_the_first_available(
    old: Old, form: str, options: str
) -> None:
    world, reader, first, _ = old
    text = form.format(removed=f"{PUB}|{first - 2}|", present=f"{PUB}|{first + 4}|")
    answer = ask(world, reader, f"{form} {options}", text, options=options)
    assert answer.code == "bookmark_expired"
    assert answer.available == f"{PUB}|{first}|"
    assert f"{PUB}|{first}|" in answer.text
    assert f"{PUB}|{first - 2}|" in answer.text
    assert reader.heard[f"{form} {options}"] == []


def test_last_removed_bookmark_is_refused_and_first_available_bookmark_works(old: Old) -> None:
    world, reader, first, _ = old
    assert ask(world, reader, "last gone", f"{PUB}|{first - 1}|").code == "bookmark_expired"
    answer = ask(world, reader, "first", f"{PUB}|{first}|")
    assert answer.code == ""
    assert reader.heard["first"][0].sequence == first + 1


def test_epoch_starts_at_the_first_remaining_message(old: Old) -> None:
    world, reader, first, _ = old
    assert ask(world, reader, "epoch", "0").code == ""
    assert reader.heard["epoch"][0].sequence == first


def test_timestamp_before_the_log_starts_at_epoch(old: Old) -> None:
    world, reader, first, begun = old
    assert ask(world, reader, "time", format_timestamp(begun)).code == ""
    assert reader.heard["time"][0].sequence == first


def test_time_range_before_the_log_completes_immediately(old: Old) -> None:
    world, reader, _, begun = old
    text = f"[{format_timestamp(begun)}:{format_timestamp(begun + 1_000_000)})"
    assert ask(world, reader, "before", text).code == ""
    assert reader.heard["before"] == []
    assert [type(c) for c, _ in reader.received[-2:]] == [Completed, Ended]


def test_range_end_at_a_removed_message_is_refused_unless_a_later_end_is_listed(old: Old) -> None:
    world, reader, first, _ = old
    assert ask(world, reader, "end", f"[0:{PUB}|{first - 1}|]").code == "bookmark_expired"
    assert ask(world, reader, "ends", f"[0:{PUB}|{first - 1}|,{PUB}|{first + 1}|]").code == ""
    assert [h.sequence for h in reader.heard["ends"]] == [first, first + 1]


def test_bookmark_that_never_existed_is_unknown_and_not_expired(old: Old) -> None:
    world, reader, _, _ = old
    for number, bookmark in enumerate((f"{PUB}|0|", "99|5|", f"{PUB}|{2**63}|")):
        answer = ask(world, reader, f"unknown{number}", bookmark, options="bookmark_not_found=fail")
        assert answer.code == "bookmark_unknown"
        assert answer.available == ""


def test_positions_and_resolve_before_the_log_are_refused_as_expired(old: Old) -> None:
    world, reader, first, _ = old
    identity = world.broker.journal.identity
    asked = reader.subscribe("positions", "t", positions=(0, 5), journal=identity)
    answer = reader.answers[asked]
    assert isinstance(answer, Ack)
    assert (answer.code, answer.available) == ("bookmark_expired", f"{PUB}|{first}|")
    reader.ids += 1
    reader.send(Resolve(id=reader.ids, topic="t", bookmark=f"{PUB}|1|"))
    world.settle()
    refused = reader.answers[reader.ids]
    assert isinstance(refused, Ack)
    assert refused.code == "bookmark_expired"
    reader.ids += 1
    reader.send(Resolve(id=reader.ids, topic="t", bookmark="0"))
    world.settle()
    resolved = next(c for c, _ in reversed(reader.received) if isinstance(c, Resolved))
    assert resolved.start == world.broker.journal.view.first_position


def test_message_of_a_removed_segment_is_still_detected_as_a_duplicate(old: Old) -> None:
    world, _, first, _ = old
    again = world.connect("pub")
    assert again.logged_on is not None
    assert again.logged_on.last_persisted >= first
    end = world.broker.journal.commits.accepted_end
    again.next_sequence = 1
    again.publish("t", [b"again"])
    world.settle()
    assert world.broker.journal.commits.accepted_end == end


# -- the decisions themselves -----------------------------------------------------------------------------


def test_removal_decisions_stop_at_the_first_kept_segment() -> None:
    world, _ = world_of(None)
    view = world.broker.journal.view
    segments = removable(view, world.broker.journal.commits.sealed_through)
    assert [s.number for s in segments] == [1, 2, 3, 4, 5]
    assert [s.number for s in removable(view, 2)] == [1, 2]
    wall = segments[2].timestamp
    assert due(segments, RetentionPolicy(age_seconds=0), wall, 0) == 2
    assert due(segments, RetentionPolicy(age_seconds=0), wall + 1, 0) == 3
    assert due(segments, RetentionPolicy(), wall, 10**12) == 0
    total = sum(s.file_bytes for s in segments)
    assert due(segments, RetentionPolicy(size_bytes=total), wall, total) == 0
    assert due(segments, RetentionPolicy(size_bytes=total - 1), wall, total) == 1
    assert due(segments, RetentionPolicy(size_bytes=0), wall, total) == 5
    assert unneeded(segments, None) == 5
    assert unneeded(segments, segments[1].end_position) == 2
    assert unneeded(segments, segments[1].end_position - 1) == 1
    assert unneeded(segments, 0) == 0


def test_segment_size_equals_the_file_size() -> None:
    world, _ = world_of(None)
    contents = world.disk.contents()
    for segment in world.broker.journal.view.segments:
        assert segment.file_bytes == len(contents[f"journal/{segment.number:010d}.segment"])
    journal = [data for name, data in contents.items() if name.startswith("journal/")]
    assert world.broker.journal.file_bytes == sum(map(len, journal))
