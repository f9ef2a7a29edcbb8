"""Resent messages of topics that no link brings: stored once, searched in ranges, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from tests.helpers.linked import join, links_of, run
from tests.simulation.engine_peer import Peer
from tests.simulation.linked_engine import TOPICS, LinkedEngine, body_of
from tests.simulation.linked_engines import link_to
from tickertape.base.errors import JournalError
from tickertape.base.names import publisher_id
from tickertape.batch import BatchBuilder, MessageBatch
from tickertape.engine.commands import key_checks
from tickertape.engine.limits import resent_search_sequences
from tickertape.engine.replication.destination import resent_messages
from tickertape.engine.runtime.sow_definition import SowDefinition
from tickertape.engine.sow import registry
from tickertape.journal.reading.sequence_search import find_sequences
from tickertape.journal.retention import RetentionPolicy
from tickertape.wire.commands import Publish

ORDERS, TRADES = TOPICS
"""Topics of even and of odd sequences."""


def make_pair(
    topic: str = ORDERS,
    retention: RetentionPolicy | None = None,
    sow: tuple[SowDefinition, ...] = (),
) -> tuple[LinkedEngine, LinkedEngine]:
    """Return two engines with one link, which passes one topic."""
    counts: Counter[str] = Counter()
    source = LinkedEngine(1, 0, (link_to(1, "replicate", topic=topic),), counts)
    destination = LinkedEngine(2, 1, (), counts, retention)
    if sow:
        destination.sow = sow
        destination.restart()
    join(source, destination)
    return source, destination


def logged_on(engine: LinkedEngine, name: str = "p") -> Peer:
    """Return a publisher without a claim."""
    peer = engine.connect(name)
    engine.settle()
    assert peer.logged_on is not None
    return peer


def send(peer: Peer, sequences: Iterable[int]) -> None:
    """Send a frame with messages of both topics."""
    publisher, rows = publisher_id(peer.name), [*sequences]
    builder = BatchBuilder()
    for sequence in rows:
        body = body_of(publisher, sequence)
        builder.add(TOPICS[sequence % 2], body, sequence=sequence, key=f"k{sequence}")
    peer.frames += 1
    batch = MessageBatch.parse(builder.build(publisher, first_sequence=rows[0]).encode())
    peer.send(Publish(frame=peer.frames, sequenced=True), batch)


def stored(engine: LinkedEngine) -> list[int]:
    """Return the sequences of all messages on the disk, in the order of the log."""
    return [sequence for _, (_, sequence) in sorted(engine.persisted.items())]


def brought(topic: str = ORDERS, **more: Any) -> tuple[LinkedEngine, LinkedEngine, Peer]:
    """Return two engines after messages 2 to 5 at the source, and their publisher at the destination."""
    source, destination = make_pair(topic, **more)
    send(logged_on(source), range(2, 6))
    run(source, destination)
    return source, destination, logged_on(destination)


def take_links(source: LinkedEngine, engine: LinkedEngine) -> None:
    """Take the rows of the link, without any other work of the destination."""
    links = links_of(engine)
    for _ in range(20):
        source.settle()
        for end in [*source.ends.values(), *engine.ends.values()]:
            while end.deliver():
                pass
        while any(links.pending):
            links.step()
        engine.wake()
        while engine.jobs:
            engine.run_job()


class Searches:
    """Counts the searches of the log."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ranges: list[tuple[int, int]] = []
        search = find_sequences

        def counted(view: Any, publisher: int, low: int, high: int) -> Any:
            self.ranges.append((low, high))
            return search(view, publisher, low, high)

        monkeypatch.setattr(resent_messages, "find_sequences", counted)


def test_resent_message_of_a_topic_without_a_link_is_stored_once() -> None:
    _, engine, peer = brought()
    assert stored(engine) == [2, 4]
    send(peer, range(2, 6))
    engine.settle()
    assert stored(engine) == [2, 4, 3, 5]
    assert peer.acked_sequence == 5
    again = logged_on(engine)
    send(again, range(2, 6))
    engine.settle()
    assert stored(engine) == [2, 4, 3, 5]
    assert again.acked_sequence == 5


def test_resent_message_stored_late_stays_known_after_a_restart() -> None:
    _, engine, peer = brought()
    send(peer, range(2, 6))
    engine.settle()
    engine.restart(power=True)
    peer = logged_on(engine)
    send(peer, range(2, 6))
    engine.settle()
    assert stored(engine) == [2, 4, 3, 5]
    assert peer.acked_sequence == 5


def test_resent_message_of_a_whole_topic_is_not_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Searches(monkeypatch)
    _, engine, peer = brought(".*")
    send(peer, range(2, 6))
    engine.settle()
    assert stored(engine) == [2, 3, 4, 5]
    assert searches.ranges == []
    assert engine.broker.duplicates == 4


def test_thousands_of_resent_messages_need_one_search_for_each_range(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Searches(monkeypatch)
    source, engine = make_pair()
    first = logged_on(source)
    count = 3 * resent_search_sequences // 2
    for begin in range(1, count + 1, 1_000):
        send(first, range(begin, min(begin + 1_000, count + 1)))
        source.settle()
    run(source, engine)
    peer = logged_on(engine)
    for sequence in range(1, count + 1):
        send(peer, [sequence])
    engine.settle()
    assert sorted(stored(engine)) == [*range(1, count + 1)]
    assert peer.acked_sequence == count
    assert searches.ranges == [(1, resent_search_sequences), (resent_search_sequences + 1, count)]


def test_messages_accepted_before_a_search_are_found_although_the_disk_lacks_some() -> None:
    _, engine, peer = brought()
    send(peer, range(2, 6))
    while engine.broker.has_work:
        engine.work()
    assert engine.jobs, "the disk has not written them"
    again = engine.connect("p")
    assert peer.closed
    send(again, range(2, 6))
    engine.settle()
    assert stored(engine) == [2, 4, 3, 5]


def test_message_that_retention_removed_is_stored_once_more() -> None:
    _, engine, peer = brought(retention=RetentionPolicy(size_bytes=1))
    send(peer, range(2, 6))
    engine.settle()
    for sequence in range(6, 400):
        send(peer, [sequence])
        engine.settle()
    engine.wake(60.0)
    engine.settle()
    assert engine.broker.journal.view.first_position > max(
        at for at, (_, sequence) in engine.persisted.items() if sequence == 3
    )
    again = logged_on(engine)
    send(again, [2, 3])
    engine.settle()
    assert stored(engine)[-1] == 3
    assert stored(engine).count(2) == 1


def test_frames_behind_a_search_keep_the_order() -> None:
    _, engine, peer = brought()
    engine.broker.journal.view.tail.clear()
    send(peer, [3])
    assert engine.reads, "the search reads from the disk"
    send(peer, [4, 5])
    send(peer, [6, 7])
    assert not stored(engine).count(6)
    engine.settle()
    assert stored(engine) == [2, 4, 3, 5, 6, 7]
    assert peer.acked_sequence == 7


def test_failed_search_ends_the_connection_without_an_acknowledgement() -> None:
    _, engine, peer = brought()
    engine.broker.journal.view.tail.clear()
    send(peer, [3])
    read = engine.reads.pop()
    engine.broker.read_done(read.token, JournalError("Cannot read: broken disk."), engine.now())
    engine.collect()
    engine.settle()
    assert peer.closed
    assert (peer.acked_sequence, stored(engine)) == (0, [2, 4])


def test_connection_that_ends_during_a_search_stores_nothing() -> None:
    _, engine, peer = brought()
    engine.broker.journal.view.tail.clear()
    send(peer, [3])
    send(peer, [6])
    engine.broker.disconnected(peer.conn)
    del engine.peers[peer.conn]
    engine.settle()
    assert stored(engine) == [2, 4]
    again = logged_on(engine)
    send(again, [3, 6])
    engine.settle()
    assert stored(engine) == [2, 4, 3, 6]


def test_message_in_an_unproven_hole_is_stored_without_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = Searches(monkeypatch)
    _, engine, peer = brought()
    send(peer, [9, 10])  # no claim: 6 to 8 may be elsewhere
    again = logged_on(engine)
    send(again, [6, 7, 9])
    engine.settle()
    assert 7 in stored(engine)
    assert stored(engine).count(9) == 1
    assert all(low == 9 for low, _ in searches.ranges)


def test_links_that_raise_the_highest_sequence_during_a_search_cause_another_one() -> None:
    source, engine, peer = brought()
    engine.broker.journal.view.tail.clear()
    send(peer, [3, 7, 9])
    assert engine.reads
    other = logged_on(source)
    send(other, [8, 10])
    source.settle()
    read, engine.reads = engine.reads, []
    take_links(source, engine)
    assert 8 in stored(engine)
    engine.reads += read
    engine.settle()
    assert sorted(stored(engine)) == [2, 3, 4, 7, 8, 9, 10]
    assert peer.acked_sequence == 9


def test_links_that_raise_the_highest_sequence_during_a_key_check_cause_a_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (key_checks, registry):
        monkeypatch.setattr(module, "sow_key_check_rows_max", 1)
    source, engine, peer = brought(sow=(SowDefinition(ORDERS),))
    send(peer, range(6, 9))
    assert engine.broker.reads.pending[0], "the keys are checked in several steps"
    send(logged_on(source), [6, 7, 8, 10])
    source.settle()
    take_links(source, engine)
    assert stored(engine) == [2, 4, 6, 8, 10]
    engine.settle()
    assert stored(engine) == [2, 4, 6, 8, 10, 7]
    assert peer.acked_sequence == 8
