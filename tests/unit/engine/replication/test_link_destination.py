"""Destination of a link: named cases of control records, origins, first holes, pauses and bounds."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.simulation.journal_world import read_log
from tests.simulation.link_world import OWN, LinkWorld
from tickertape.base.errors import BadLink, CorruptBatch, LimitReached, PublisherCollision
from tickertape.base.limits import link_places_max
from tickertape.batch import KIND_CONTROL, BatchBuilder, MessageBatch, as_linked, batch_from_bodies, merge
from tickertape.engine.limits import link_step_messages_max, link_step_names_max, link_step_runs_max
from tickertape.engine.replication.destination.link_destination import LinkDestination
from tickertape.engine.runtime.publisher_ids import CONTROL_PUBLISHER, CONTROL_TOPIC, PublisherNamed
from tickertape.journal.format.replication_records import LogPlace, after, covered, encode_record
from tickertape.wire.link import (
    LinkAck,
    LinkCredit,
    LinkHoles,
    LinkNames,
    LinkOrigin,
    LinkRequest,
    LinkRuns,
    LinkSide,
)
from tickertape.wire.link_checks import control_publisher
from tickertape.wire.link_rows import NameRows, decode_places, decode_positions, encode_names, encode_pairs

SOURCE = bytes([7]) * 16
OTHER = bytes([8]) * 16
SIDE = LinkSide(instance="a", group="g", log=SOURCE, starts=encode_pairs([5], [0]))
FROM_OTHER = LinkOrigin(3, OTHER, "o", "g", (OTHER,))


def new_world() -> LinkWorld:
    world = LinkWorld(2, Counter())
    world.disk.counts = Counter()
    return world


def started(world: LinkWorld) -> LinkDestination:
    """Return a destination whose stream starts at position 0."""
    destination = LinkDestination(world.log, SIDE)
    destination.received(LinkHoles(position=0))
    return destination


def take(world: LinkWorld, destination: LinkDestination) -> None:
    """Take all steps, and sync."""
    while destination.pending:
        destination.step()
    persist(world)
    destination.log_persisted(world.journal.commits.persisted_end)


def persist(world: LinkWorld) -> None:
    world._disk_job()
    while world.jobs or world.journal.commits.queued:
        world._disk_job()
    world.places.log_persisted(world.journal.commits.persisted_end)


def records(world: LinkWorld) -> list[dict[str, Any]]:
    """Return the control records of the log, without places."""
    return [
        msgspec.msgpack.decode(batch.body(index))
        for _, batch in read_log(world.journal, world.disk)
        for index in range(batch.count)
        if batch.topic(index) == CONTROL_TOPIC
    ]


def control(body: bytes, sequence: int = 1, origin: LinkOrigin | None = None) -> MessageBatch:
    """Return a run of one control record of the source, or of another log."""
    builder = BatchBuilder()
    builder.add(CONTROL_TOPIC, body, kind=KIND_CONTROL)
    publisher = control_publisher(origin.log) if origin else CONTROL_PUBLISHER
    return as_linked(builder.build(publisher, sequence), origin.number if origin else 0, 9, late=False)


def messages(count: int, first: int = 1, publisher: int = 11, origin: int = 0) -> MessageBatch:
    batch = batch_from_bodies("t", [b"x"] * count, publisher=publisher, first_sequence=first, timestamp=4)
    return as_linked(batch, origin, 4, late=False)


def bound(name: str, publisher: int = 11) -> bytes:
    return msgspec.msgpack.encode(PublisherNamed(publisher=publisher, name=name))


# -- control records ----------------------------------------------------------------------------------


def test_binding_of_a_link_is_stored_before_the_first_message() -> None:
    world = new_world()
    destination = started(world)
    destination.received(LinkRuns(end=1), control(bound("desk")))
    destination.received(LinkRuns(end=2), messages(1))
    destination.received(LinkRuns(end=3), control(bound("desk"), 2))
    take(world, destination)
    assert [r["name"] for r in records(world) if r["type"] == "publisher"] == ["desk"]
    assert world.log.registry.name_of(11) == "desk"


def test_publisher_id_of_another_name_refuses_the_link_with_both_names() -> None:
    world = new_world()
    destination = started(world)
    world.writer.bind(11, "desk", derived=False)
    destination.received(LinkRuns(end=1), control(bound("shop")))
    with pytest.raises(PublisherCollision, match=r"'shop' there and to 'desk' here"):
        destination.step()


def test_rows_before_a_refused_record_are_written() -> None:
    world = new_world()
    destination = started(world)
    world.writer.bind(11, "desk", derived=False)
    destination.received(LinkRuns(end=1), messages(1, publisher=12))
    take(world, destination)
    destination.received(LinkRuns(end=2), messages(1, 2, publisher=12))
    destination.received(LinkRuns(end=3), control(bound("shop")))
    with pytest.raises(PublisherCollision):
        destination.step()
    persist(world)
    commits = world.journal.commits
    assert commits.persisted_end == commits.accepted_end


def test_record_of_a_type_that_travels_is_stored_with_the_log_of_the_source() -> None:
    world = new_world()
    destination = started(world)
    body = msgspec.msgpack.encode({"type": "downgraded", "latest_of": "level x", "position": 7})
    destination.received(LinkRuns(end=1), control(body))
    destination.received(LinkRuns(end=2), control(msgspec.msgpack.encode({"type": "started"}), 2))
    destination.received(LinkRuns(end=3), control(body, 1))
    take(world, destination)
    latest = f"{SOURCE.hex()} level x"
    assert [r for r in records(world) if r["type"] in ("downgraded", "started")] == [
        {"type": "downgraded", "latest_of": latest, "position": 7, "log": SOURCE}
    ]


def test_record_of_another_log_than_the_origin_is_refused() -> None:
    world = new_world()
    destination = started(world)
    body = msgspec.msgpack.encode({"type": "downgraded", "log": OWN})
    destination.received(LinkRuns(end=1), control(body))
    with pytest.raises(BadLink, match="another log"):
        destination.step()


def test_report_is_stored_and_counts_only_as_news() -> None:
    world = new_world()
    destination = started(world)
    for sequence, number in enumerate((4, 5, 4, 5, 6), 1):
        report = covered(number, 5, 1, [LogPlace(OWN, 1, 3)], [SOURCE, OWN], 17)
        destination.received(LinkRuns(end=sequence), control(encode_record(report), sequence))
    take(world, destination)
    found = [(r["number"], r["log"]) for r in records(world) if r["type"] == "covered"]
    assert found == [(4, SOURCE), (5, SOURCE), (6, SOURCE)]
    assert world.log.reports.reporters == {SOURCE}


def test_opening_of_this_log_that_a_source_returns_opens_a_hole_with_an_own_record() -> None:
    world = new_world()
    destination = started(world)
    own = LinkOrigin(1, OWN, "d", "g", (OWN,))
    body = encode_record(after(OWN, 11, 1, 9))
    destination.received(LinkRuns(end=1, origins=(own,)), control(body, 1, own))
    take(world, destination)
    assert [(r["after"], r.get("log")) for r in records(world) if r["type"] == "after"] == [(9, None)]
    assert [hole[:2] for hole in world.exact.known.holes(11)] == [(1, 9)]
    destination.received(LinkRuns(end=2), control(body, 1, own))
    take(world, destination)
    assert len([r for r in records(world) if r["type"] == "after"]) == 1


# -- origins --------------------------------------------------------------------------------------------


def test_origin_has_one_record_and_the_path_to_this_log() -> None:
    world = new_world()
    destination = started(world)
    destination.received(LinkRuns(end=1, origins=(FROM_OTHER,)), messages(2, origin=3))
    destination.received(LinkRuns(end=2), messages(2, 3, origin=3))
    take(world, destination)
    found = [r for r in records(world) if r["type"] == "origin"]
    assert [(r["journal"], r["path"]) for r in found] == [(OTHER, [OTHER, SOURCE])]


def test_known_messages_of_an_origin_write_no_record() -> None:
    world = new_world()
    destination = started(world)
    destination.received(LinkRuns(end=1), messages(2))
    destination.received(LinkRuns(end=2, origins=(FROM_OTHER,)), messages(2, origin=3))
    before = world.writer.duplicates
    take(world, destination)
    assert len([r for r in records(world) if r["type"] == "origin"]) == 1
    assert world.writer.duplicates - before == 2


def test_path_above_the_limit_is_refused() -> None:
    world = new_world()
    destination = started(world)
    logs = tuple(bytes([number]) * 16 for number in range(20, 36))
    origin = LinkOrigin(3, logs[0], "o", "g", logs)
    destination.received(LinkRuns(end=1, origins=(origin,)), messages(1, origin=3))
    with pytest.raises(LimitReached, match="17 servers"):
        destination.step()


# -- first holes and places -----------------------------------------------------------------------------


def test_first_holes_are_proven_and_expire_places_once() -> None:
    world = new_world()
    destination = LinkDestination(world.log, SIDE)
    rows = encode_pairs(sorted((11, CONTROL_PUBLISHER)), [6, 6])
    destination.received(LinkHoles(position=70, behind=True, rows=rows, more=True))
    take(world, destination)
    assert not destination.take_expired()
    destination.received(LinkHoles(position=70, behind=True, rows=encode_pairs([2**64 - 1], [1])))
    take(world, destination)
    assert (destination.take_expired(), destination.take_expired()) == (True, False)
    assert [hole[1::2] for hole in world.exact.known.holes(11)] == [(6, True)]
    assert not world.exact.known.holes(CONTROL_PUBLISHER), "each log numbers its own control records"
    assert destination.take_commands() == [LinkAck(durable=70), LinkCredit(bytes=48)]


def test_handshake_has_the_newest_place_of_each_start() -> None:
    world = new_world()
    for number in range(1, link_places_max + 3):
        world.places.move(LogPlace(SOURCE, number, number * 10))
    world.exact.write_soon()
    destination = LinkDestination(world.log, SIDE)
    assert destination.opened(SIDE).place is None, "no place is persisted"
    persist(world)
    opened = destination.opened(SIDE)
    assert opened.place == (link_places_max + 2, 10 * (link_places_max + 2))
    assert decode_places(opened.places).starts.tolist() == list(range(3, link_places_max + 3))


def test_commit_with_rows_of_a_link_ends_with_one_place() -> None:
    world = new_world()
    destination = started(world)
    for end in (1, 2, 3):
        destination.received(LinkRuns(end=end), messages(1, end))
    take(world, destination)
    _, last = read_log(world.journal, world.disk)[-1]
    assert [last.topic(index) for index in range(last.count)][-4:] == ["t", "t", "t", "$link"]


# -- bounds ---------------------------------------------------------------------------------------------


def test_step_appends_at_most_the_limit_of_messages() -> None:
    world = new_world()
    destination = started(world)
    destination.received(LinkRuns(end=1), messages(2 * link_step_messages_max + 5))
    known, highest = world.exact.known, [0]
    while destination.pending:
        destination.step()
        highest.append(known.highest(11))
    assert max(b - a for a, b in pairwise(highest)) <= link_step_messages_max
    assert highest[-1] == 2 * link_step_messages_max + 5


@pytest.mark.parametrize("records", [False, True], ids=["runs", "records"])
def test_step_appends_a_limited_number_of_small_runs_and_records(records: bool) -> None:
    world = new_world()
    destination = started(world)
    take(world, destination)
    if records:
        builder = BatchBuilder()
        for publisher in range(20, 20 + 300):
            builder.add(CONTROL_TOPIC, bound(f"p{publisher}", publisher), kind=KIND_CONTROL)
        batch = as_linked(builder.build(CONTROL_PUBLISHER, 1), 0, 9, late=False)
    else:
        batch = merge([messages(1, sequence) for sequence in range(1, 301)])
    destination.received(LinkRuns(end=1), batch)
    ends = [world.journal.commits.accepted_end]
    while destination.pending:
        destination.step()
        ends.append(world.journal.commits.accepted_end)
        persist(world)
    beside = 3
    """Records of an origin and of places."""
    assert max(b - a for a, b in pairwise(ends)) <= link_step_runs_max + beside
    assert ends[-1] >= 300


def test_step_examines_and_requests_a_limited_number_of_names() -> None:
    world = new_world()
    destination = started(world)
    take(world, destination)
    count = 2 * link_step_names_max + 5
    publishers = np.arange(20, 20 + count, dtype=np.uint64)
    ones = np.ones(count, np.uint64)
    rows = NameRows(publishers, ones, ones, np.zeros(count, np.uint32), ones.astype(np.int64))
    destination.received(LinkNames(end=1, rows=encode_names(rows)))
    sizes = []
    asked = 0
    while destination.pending:
        destination.step()
        for command in destination.take_commands():
            assert isinstance(command, LinkRequest), "the frame is not processed"
            positions = decode_positions(command.positions).tolist()
            assert positions == list(range(asked, asked + len(positions)))
            asked += len(positions)
            sizes.append(len(positions))
            answers = merge([messages(1, 1, int(publishers[row])) for row in positions])
            destination.received(LinkRuns(end=1, answers=command.positions), answers)
        if asked == count:
            break
    assert sizes == [link_step_names_max, link_step_names_max, 5]
    take(world, destination)
    assert destination.take_commands() == [LinkAck(durable=1), LinkCredit(bytes=36 * count)]
    assert world.exact.known.highest(int(publishers[-1])) == 1


@pytest.mark.parametrize("named", [False, True], ids=["runs", "names"])
def test_held_small_frames_use_memory_in_proportion_to_the_cost(named: bool) -> None:
    count = 2_000
    runs = [messages(1, sequence).encode() for sequence in range(1, count + 1)]
    one = np.ones(1, np.uint64)
    rows = [
        encode_names(NameRows(one * 11, one * first, one * first, one.astype("<u4"), one.astype("<i8")))
        for first in range(1, count + 1)
    ]
    world = new_world()
    destination = started(world)
    take(world, destination)
    destination.pause("sow_full")
    tracemalloc.start()
    for number in range(count):
        if named:
            destination.received(LinkNames(end=number + 1, rows=bytes([*rows[number]])))
        else:
            destination.received(LinkRuns(end=number + 1), MessageBatch.parse(bytes([*runs[number]])))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < count * 450
    destination.pause(None)
    if named:
        world.journal.highest[11] = count  # the log has them
    take(world, destination)
    assert world.exact.known.highest(11) == count
    cost = 36 * count if named else sum(MessageBatch.parse(run).cost for run in runs)
    assert destination.take_commands() == [LinkAck(durable=count), LinkCredit(bytes=cost)]


def test_frames_without_cost_use_the_memory_of_one() -> None:
    world = new_world()
    destination = started(world)
    destination.pause("sow_full")
    for end in range(1, 1_000):
        destination.received(LinkNames(end=end))
    assert len(destination._frames) == 1
    destination.pause(None)
    take(world, destination)
    assert destination.take_commands() == [LinkAck(durable=999)]


def test_paused_link_takes_no_frame_and_returns_no_credit() -> None:
    world = new_world()
    destination = started(world)
    batch = messages(3)
    destination.received(LinkRuns(end=1), batch)
    take(world, destination)
    destination.received(LinkRuns(end=2), messages(3, 4))
    destination.pause("sow_full")
    assert (destination.paused, destination.pending) == ("sow_full", False)
    assert destination.take_commands() == [LinkAck(durable=1)]
    destination.step()
    assert world.exact.known.highest(11) == 3
    destination.pause(None)
    take(world, destination)
    assert destination.take_commands() == [LinkAck(durable=2), LinkCredit(bytes=2 * batch.cost)]


def test_run_with_a_wrong_checksum_is_refused() -> None:
    data = bytearray(messages(2).encode())
    data[bytes(data).rindex(b"x")] ^= 1
    world = new_world()
    with pytest.raises(CorruptBatch):
        started(world).received(LinkRuns(end=1), MessageBatch.parse(bytes(data)))


def test_full_disk_pauses_the_link_until_space_is_free() -> None:
    world = new_world()
    destination = started(world)
    world.disk.space_bytes = world.disk._used
    end = 0
    while destination.paused is None:
        end += 1
        assert end < 1_000
        destination.received(LinkRuns(end=end), messages(100, 100 * end))
        take(world, destination)
    assert destination.paused == "journal_full"
    assert world.journal.commits.persisted_end == world.journal.commits.accepted_end
    destination.take_commands()
    destination.received(LinkRuns(end=end + 1), messages(100, 100 * end + 100))
    destination.step()
    assert destination.take_commands() == []
    world.disk.space_bytes = None
    world.journal.commits.wake(world._now()._replace(mono=world._mono + 2))
    take(world, destination)
    assert destination.pending, "the disk has a segment now"
    take(world, destination)
    assert LinkAck(durable=end + 1) in destination.take_commands()


def test_opening_fills_a_hole_that_the_limit_would_close() -> None:
    world = new_world()
    destination = LinkDestination(world.log, SIDE)
    control_of_source = control_publisher(SOURCE)
    rows = encode_pairs([control_of_source], [9])
    destination.received(LinkHoles(position=1, behind=True, rows=rows))
    take(world, destination)
    world.exact.known._total_max = 1
    opening = after(SOURCE, 12, 0, 5)
    destination.received(LinkRuns(end=2), control(encode_record(opening), 4))
    take(world, destination)
    assert [r["publisher"] for r in records(world) if r["type"] == "after"] == [control_of_source, 12]
    assert [(hole.first, hole.last) for hole in world.exact.known.holes(12)] == [(1, 5)]
    assert world.exact.known.count == 1
