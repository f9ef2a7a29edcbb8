"""Retention keeps the last message of the log, also before many control records."""

from __future__ import annotations

import pytest

from tests.simulation.engine_peer import Peer
from tests.simulation.engine_world import EngineWorld
from tests.simulation.journal_world import drive
from tests.unit.engine.test_retention import HOUR, SEGMENT_BYTES, ask, expire, numbers, world_of
from tests.unit.engine.transactions.test_coordinator import Sink
from tickertape.base.names import publisher_id
from tickertape.journal import retention as retention_module
from tickertape.journal.commit import group_commit as commit_module
from tickertape.journal.format.segment import segment_path
from tickertape.journal.reading import log_reader as reader_module
from tickertape.journal.reading.log_view import ReadRequest
from tickertape.journal.retention import LastSearch, find_last_message, first_message, removable
from tickertape.wire.commands import Committed, Transaction


@pytest.fixture(autouse=True)
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start segments for transactions at the size of the others."""
    monkeypatch.setattr(commit_module, "_SPARE_BYTES", 0)


def bookmark_of(peer: Peer) -> str:
    return f"{publisher_id('pub')}|{peer.next_sequence - 1}|"


def only_records(world: EngineWorld, segments: int) -> None:
    """Commit empty transactions, which are control records, over `segments` more segments."""
    sink = Sink(world)
    target = numbers(world)[-1] + segments
    number = 0
    while numbers(world)[-1] < target:
        number += 1
        name = Transaction(publisher="sink", space="s" * 200, name=str(number))
        assert isinstance(sink.commit(transaction=name), Committed)


def restart(world: EngineWorld) -> None:
    world.broker.close(world.now())
    world.collect()
    while world.jobs:
        world.run_job()
    world.disk = world.disk.kill_clone()
    world.open()


@pytest.mark.parametrize("restarts", [0, 1, 2])
def test_retention_keeps_the_last_message_before_control_records(restarts: int) -> None:
    world, peer = world_of(HOUR, 3)
    bookmark, segment = bookmark_of(peer), numbers(world)[-1]
    only_records(world, 2)
    for _ in range(restarts):
        restart(world)
    expire(world)
    assert numbers(world)[0] == segment
    answer = ask(world, world.connect("reader"), "s", bookmark)
    assert (answer.code, answer.found) == ("", True)


def test_retention_continues_after_a_later_message() -> None:
    world, peer = world_of(HOUR, 3)
    only_records(world, 2)
    restart(world)
    expire(world)
    peer = world.connect("pub")
    peer.publish("t", [b"later"])
    world.settle()
    expire(world)
    assert numbers(world) == [numbers(world)[-1]]
    answer = ask(world, world.connect("reader"), "s", bookmark_of(peer))
    assert (answer.code, answer.found) == ("", True)


def test_a_start_reads_nothing_for_the_last_message_before_retention_is_due() -> None:
    world, _ = world_of(HOUR, 3)
    only_records(world, 1)
    restart(world)
    world.wake()
    assert world.reads == []
    world.wake(3_700)
    assert world.reads != []


def test_the_last_message_is_found_from_the_end_with_each_byte_read_about_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retention_module, "read_bytes_target", 1_000)
    monkeypatch.setattr(reader_module, "read_bytes_target", 1_000)
    world, _ = world_of(None, 2)
    last = world.broker.journal.commits.persisted_end - 1
    only_records(world, 3)
    restart(world)
    view = world.broker.journal.view
    reads: list[ReadRequest] = []

    def noted() -> LastSearch:
        steps = find_last_message(view)
        request = next(steps)
        while True:
            reads.append(request)
            try:
                request = steps.send((yield request))
            except StopIteration as done:
                found: int = done.value
                return found

    assert drive(world.disk, noted()) == last
    behind = sum(segment.end for segment in view.segments if segment.end_position > last)
    assert len(reads) > 5
    assert sum(read.size for read in reads) <= 2 * behind


def test_damage_behind_the_last_message_counts_as_a_message() -> None:
    world, _ = world_of(None, 2)
    only_records(world, 2)
    restart(world)
    view = world.broker.journal.view
    segment = view.segments[-2]
    handle = world.disk.open(segment_path(segment.number))
    world.disk.write(handle, segment.end - 10, [b"damaged"])
    world.disk.close(handle)
    last = drive(world.disk, find_last_message(view))
    assert segment.first_position <= last < segment.end_position


def test_log_of_only_control_records_keeps_the_last_position() -> None:
    world = EngineWorld(7, segment_bytes=SEGMENT_BYTES, retention=HOUR)
    only_records(world, 3)
    restart(world)
    view = world.broker.journal.view
    assert drive(world.disk, first_message(view, 0)) is None
    expire(world)
    assert len(numbers(world)) == 2, "the active segment and the segment of the last record"
    assert [s.number for s in removable(view, 10)] == []


def test_first_bookmark_is_available_after_a_new_message() -> None:
    world = EngineWorld(7, segment_bytes=SEGMENT_BYTES, retention=HOUR)
    only_records(world, 3)
    restart(world)
    expire(world)
    view = world.broker.journal.view
    assert (view.first, view.first_unknown) == (None, False)
    peer = world.connect("pub")
    peer.publish("t", [b"1"])
    world.settle()
    assert view.first is not None
    assert str(view.first.bookmark) == bookmark_of(peer)
