"""Start searches during retention: they pin no segments and find remaining messages."""

from __future__ import annotations

import pytest

from tests.simulation.engine_world import EngineWorld
from tests.unit.engine.test_retention import HOUR, PUB, SEGMENT_BYTES, files, numbers, world_of
from tickertape.base.bookmarks import format_timestamp
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.commands import Ack, Resolve, Resolved


def _remove_before_the_reads(world: EngineWorld) -> None:
    """Remove segments while the reads of searches are still pending."""
    asked = list(world.reads)
    assert asked, "the search reads"
    world.wake(3_700)
    for _ in range(200):
        for read in [read for read in world.reads if read not in asked]:
            world.reads.remove(read)
            world.broker.read_done(read.token, world._bytes(read.request), world.now())
            world.collect()
        if world.broker.has_work:
            world.work()
        elif world.jobs:
            world.run_job()
    assert files(world)[0] == numbers(world)[0] > 1
    assert world.reads == asked


@pytest.mark.parametrize("in_time", [True, False])
def test_start_search_pins_no_segments_and_finds_remaining_messages(in_time: bool) -> None:
    world, peer = world_of(HOUR)
    segments = world.broker.journal.view.segments
    left = segments[-1].first_position
    bookmarks = {
        position: f"{heard.publisher}|{heard.sequence}|" for position, heard in world.positions().items()
    }
    first, last = bookmarks[min(bookmarks)], bookmarks[max(bookmarks)]
    begin = format_timestamp(segments[0].timestamp - 1)
    starts = {
        "removed": first,
        "list": f"{last},{first}",
        "present": last,
        "time": begin,
        "range": f"[{begin}:{last}]",
        "removed range": f"[{first}:{last}]",
        "removed end": f"[{begin}:{first}]",
        "unknown": "99|5|",
        "unknown of one": f"{PUB}|{peer.next_sequence + 5}|",
    }
    readers = {name: world.connect(name) for name in starts}
    asked = {
        name: readers[name].subscribe("s", "t", bookmark=text, credit=9_000) for name, text in starts.items()
    }
    before = {read.token: world._bytes(read.request) for read in world.reads}
    _remove_before_the_reads(world)
    for read in list(world.reads) if in_time else []:  # read before the files were removed
        world.reads.remove(read)
        world.broker.read_done(read.token, before[read.token], world.now())
        world.collect()
    world.settle()
    codes = {}
    for name, command in asked.items():
        answer = readers[name].answers[command]
        assert isinstance(answer, Ack)
        codes[name] = answer.code
    expired = "bookmark_expired"
    assert codes == {
        **dict.fromkeys(starts, ""),
        **dict.fromkeys(("removed", "list", "removed range", "removed end"), expired),
    }
    everything = [heard for position, heard in world.positions().items() if position >= left]
    assert readers["time"].heard["s"] == readers["range"].heard["s"] == everything
    assert readers["present"].heard["s"] == []
    assert world.broker.reads.budgets.log.held_bytes == 0


@pytest.mark.parametrize("form", ["{first},{late}", "[{first}:{late}]", "[{time}:{late}]", "[0:{late}]"])
def test_position_found_and_removed_before_the_search_ends_counts_as_removed(form: str) -> None:
    world, peer = world_of(HOUR)
    for _ in range(2):  # the last commit alone is in memory
        peer.publish("t", [world.rng.randbytes(300)] * 2)
        world.settle()
    segments = world.broker.journal.view.segments
    found = [
        (at, heard) for at, heard in sorted(world.positions().items()) if at >= segments[-1].first_position
    ]
    assert len(found) > 4
    late = f"{found[1][1].publisher}|{found[1][1].sequence}|"
    time = format_timestamp(segments[0].timestamp - 1)
    reader = world.connect("reader")
    bookmark = form.format(first=f"{PUB}|1|", late=late, time=time)
    command = reader.subscribe("s", "t", bookmark=bookmark, credit=9_000)
    if not form.startswith("[0"):
        (read,) = world.reads
        assert read.request.segment == 1
        world.run_read()
    (read,) = world.reads
    assert read.request.segment == segments[-1].number, "the start is found, and the end is searched"
    _remove_before_the_reads(world)
    world.settle()
    answer = reader.answers[command]
    assert isinstance(answer, Ack)
    if "{first}" in form:
        assert answer.code == "bookmark_expired"
        assert reader.heard["s"] == []
    else:
        assert (answer.code, reader.heard["s"]) == ("", [heard for _, heard in found[:2]])


def test_endless_searches_do_not_block_retention() -> None:
    world = EngineWorld(
        3, segment_bytes=SEGMENT_BYTES, retention=RetentionPolicy(size_bytes=4 * SEGMENT_BYTES)
    )
    world.broker.journal.view.tail_bytes_max = 1
    publisher, reader = world.connect("pub"), world.connect("reader")
    asked: list[int] = []
    for number in range(150):
        publisher.publish("t", [world.rng.randbytes(300)] * 3)
        reader.ids += 1
        asked.append(reader.ids)
        reader.send(Resolve(id=reader.ids, topic="t", bookmark=f"{PUB}|{max(3 * number - 20, 1)}|"))
        while world.jobs or world.broker.has_work:
            world.run_job() if world.jobs else world.work()
        while len(world.reads) > 2:
            world.reads.sort(key=lambda read: read.token)
            read = world.reads.pop(0)
            world.broker.read_done(read.token, world._bytes(read.request), world.now())
            world.collect()
        if number > 5:
            assert world.reads, "a search is always in progress"
        world.wake(0.1)
        taken = sum(len(data) for name, data in world.disk.contents().items() if "journal/" in name)
        assert taken <= 5 * SEGMENT_BYTES
    world.settle()
    assert world.broker.retention.removed_segments > 10
    answered = {command.id for command, _ in reader.received if isinstance(command, Ack | Resolved)}
    assert answered == set(asked)
    assert world.broker.reads.budgets.log.held_bytes == 0
